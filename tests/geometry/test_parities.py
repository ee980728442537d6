"""Signs that only their products tell, against all signs."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from paramsym import ParameterSymmetry, Space, act
from paramsym.algebra import Permutation, Signs
from paramsym.geometry.pair import Pair
from paramsym.geometry.parities import parities
from paramsym.structure.axes import parse_axis
from tests.geometry.orbits import State, generator

SIZES = {"a": 3, "b": 2, "c": 2}
TYPES = {"ab": "a, b", "bc": "b, c", "c": "c", "stretched": "4, b⊙c"}


def system(*names: str) -> ParameterSymmetry:
    """Three families of signs, of which some tensors tell products."""
    spaces = {n: Space(n, Signs(size)) for n, size in SIZES.items()}
    signature = {n: tuple(parse_axis(x) for x in TYPES[n].split(", ")) for n in names}
    return ParameterSymmetry(spaces, signature)


def shapes(symmetry: ParameterSymmetry) -> dict[str, tuple[int, ...]]:
    return {n: tuple(axis.size(symmetry.sizes) for axis in axes)
            for n, axes in symmetry.signature.items()}  # fmt: skip


def drawn(symmetry: ParameterSymmetry, seed: int) -> State:
    source = generator(seed)
    return {n: torch.randn(s, generator=source, dtype=torch.float64)
            for n, s in shapes(symmetry).items()}  # fmt: skip


def every_choice() -> list[dict[str, Tensor]]:
    """All 2⁷ signs."""
    split = list(SIZES.values())
    return [
        dict(zip(SIZES, torch.tensor(bits, dtype=torch.float64).split(split), strict=True))
        for bits in product((1.0, -1.0), repeat=sum(split))
    ]


def satisfied(
    symmetry: ParameterSymmetry, y: State, x: State, signs: dict[str, Tensor]
) -> list[bool]:
    """Which places agree in sign under a choice, the clearest first."""
    found: list[tuple[float, bool]] = []
    for name, axes in symmetry.signature.items():
        factor = torch.ones((), dtype=torch.float64)
        for k, axis in enumerate(axes):
            own = torch.ones(axis.size(symmetry.sizes), dtype=torch.float64)
            for space in SIZES:
                own = own * signs[space] if space in str(axis) else own
            factor = factor[..., None] * own if k else own
        read = y[name] * x[name] * factor
        read = read.sum(0) if name == "stretched" else read
        found += [(abs(value), value > 0) for value in read.flatten().tolist()]
    return [right for _, right in sorted(found, key=lambda each: -each[0])]


@pytest.mark.parametrize("names", [("ab", "bc", "c"), ("ab", "c"), ("ab", "bc", "c", "stretched")],
                         ids="+".join)  # fmt: skip
def test_planted_signs_are_found(names: tuple[str, ...]) -> None:
    symmetry = system(*names)
    for seed in range(20):
        x = drawn(symmetry, seed)
        planted = every_choice()[(37 * seed) % 128]
        y = act(symmetry, symmetry.element(planted), x)
        pair = Pair(symmetry, y, dict(x))
        pair.apply(parities(pair, (), [*SIZES]))
        assert all(torch.equal(pair.moving[n], y[n]) for n in names)
        assert seed == 0 or not all(torch.equal(x[n], y[n]) for n in names)  # the control


@pytest.mark.parametrize("names", [("ab", "bc", "c"), ("ab", "bc", "c", "stretched")], ids="+".join)
def test_where_places_contradict_each_other_the_clearest_are_kept(names: tuple[str, ...]) -> None:
    """Greedy elimination satisfies the equations that come first in the order of all choices."""
    symmetry = system(*names)
    contradicted = 0
    for seed in range(20):
        y, x = drawn(symmetry, seed), drawn(symmetry, 100 + seed)
        values = parities(Pair(symmetry, y, dict(x)), (), [*SIZES])
        signs = {n: value.diagonal for n, value in values.items() if value.diagonal is not None}
        own = satisfied(symmetry, y, x, signs)
        assert own == max(satisfied(symmetry, y, x, choice) for choice in every_choice())
        contradicted += not all(own)
        flipped = {**signs, "c": -signs["c"]}  # the control
        assert satisfied(symmetry, y, x, flipped) < own
    assert contradicted > 5


def test_what_nothing_tells_stays() -> None:
    symmetry = system("c")
    x = drawn(symmetry, 0)
    assert {*parities(Pair(symmetry, {"c": -x["c"]}, x), (), [*SIZES])} == {"c"}
    nothing = {"c": torch.zeros_like(x["c"])}
    assert parities(Pair(symmetry, nothing, x), (), [*SIZES]) == {}


def test_blocks_that_carry_other_unknown_spaces_tell_nothing() -> None:
    spaces = {"a": Space("a", Signs(3)), "p": Space("p", Permutation(4))}
    signature = {"w": (parse_axis("a"), parse_axis("p"))}
    symmetry = ParameterSymmetry(spaces, signature)
    x = drawn(symmetry, 0)
    assert parities(Pair(symmetry, {"w": -x["w"]}, dict(x)), (), ["a", "p"]) == {}
    found = parities(Pair(symmetry, {"w": -x["w"]}, dict(x)), ("p",), ["a"])
    assert found["a"].diagonal is not None and found["a"].diagonal.tolist() == [-1.0] * 3

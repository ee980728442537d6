"""Restrictions of every symmetry of the zoo: subgroups that keep the function, and say so."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from paramsym import ParameterSymmetry, act
from paramsym.algebra import (
    AbstractMonomial,
    Element,
    Group,
    Monomial,
    Orthogonal,
    Permutation,
    PositiveScaling,
    SignedPermutation,
)
from paramsym.algebra.complex_scaling import AbstractComplexScaling
from paramsym.recording.precision import converted
from paramsym.structure.axes import parts_of
from paramsym.structure.element import GroupElement, Slide
from paramsym.structure.orbit import orbit_dimension
from paramsym.structure.text import is_free
from tests.tracing.zoo import ZOO, build, derived, errors

GROUPS: dict[str, Callable[[int], Group]] = {
    "Permutation": Permutation,
    "Orthogonal": Orthogonal,
    "PositiveScaling": PositiveScaling,
    "SignedPermutation": SignedPermutation,
    "Monomial": lambda n: Monomial(n, signed=True),
}
FEW = ["MLP, ReLU", "MLP, radial", "convolutions", "Llama", "GPT-NeoX", "ResNet"]


@cache
def case(name: str) -> tuple[torch.nn.Module, Any, ParameterSymmetry]:
    model, inputs = build(name)
    return model, inputs, derived(name)


def read_in(symmetry: ParameterSymmetry, element: GroupElement) -> GroupElement:
    """An element of a smaller group as an element of a symmetry, by dense matrices."""

    def value(name: str, found: Element) -> Element:
        group = symmetry.spaces[name].group
        if isinstance(group, (AbstractMonomial, AbstractComplexScaling)):
            return found
        return Element(matrix=group.matrix(found, torch.float64))

    parts = [
        part if isinstance(part, Slide) else {n: value(n, found) for n, found in part.items()}
        for part in element.parts
    ]
    return GroupElement(symmetry, tuple(parts))


def distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """The largest difference of two states, relative to the largest entry of each tensor."""
    return max(
        float((a[n] - b[n]).abs().max() / a[n].abs().max().clamp_min(1.0))
        for n in a
        if a[n].numel() and a[n].dtype != torch.bool
    )


def assert_is_a_subgroup(
    small: ParameterSymmetry, symmetry: ParameterSymmetry, state: dict
) -> None:
    """Its elements are elements of the symmetry that act alike, and what it says fits."""
    generator = torch.Generator().manual_seed(7)
    g, h = (small.sample(generator, 0.5) for _ in range(2))
    assert distance(act(small, g, state), act(symmetry, read_in(symmetry, g), state)) < 1e-10
    for name, space in small.spaces.items():
        assert space.group <= symmetry.spaces[name].group
    one_by_one = act(small, g, act(small, h, state))
    assert distance(act(small, g @ h, state), one_by_one) < 1e-8
    assert distance(act(small, ~g, act(small, g, state)), state) < 1e-8
    assert all(small.shape(name) == symmetry.shape(name) for name in symmetry.signature)
    assert ParameterSymmetry.from_json(small.to_json()) == small
    below = {base for space in small.spaces.values() for base in space.over}
    assert all(is_free(space) or space.name in below for space in small.spaces.values())


def pairs() -> Iterator[Any]:
    """Every network with every group; at once, a few of them, and the others with one in turn."""
    for n, name in enumerate(ZOO):
        for k, group in enumerate(GROUPS):
            at_once = name in FEW or (n - k) % len(GROUPS) == 0
            yield pytest.param(name, group, marks=() if at_once else pytest.mark.slow)


@pytest.mark.parametrize(("name", "group"), [*pairs()])
def test_the_meet_with_a_group_keeps_the_function(name: str, group: str) -> None:
    model, inputs, symmetry = case(name)
    small = symmetry.restrict(GROUPS[group])
    assert all(space.group <= GROUPS[group](space.size) for space in small.spaces.values())
    assert_is_a_subgroup(small, symmetry, converted(model, torch.float64))
    found = errors(model, small, inputs, each=False)
    assert found["everything"] < 1e-10 < 1e-3 < found["a wrong move"]
    assert small.restrict(GROUPS[group]) == small
    assert symmetry.restrict() == symmetry


@pytest.mark.parametrize("name", ZOO)
def test_spaces_by_pattern_move_alone(name: str) -> None:
    model, inputs, symmetry = case(name)
    state = converted(model, torch.float64)
    draw = random.Random(name)
    names = [*symmetry.spaces, *(shift.name for shift in symmetry.shifts)]
    for _ in range(3):
        chosen = draw.sample(names, draw.randint(1, len(names)))[:4]
        patterns = [_pattern(n, draw) for n in chosen]
        small = symmetry.restrict(spaces=patterns)
        assert {*chosen} & {n for n, s in symmetry.spaces.items() if is_free(s)} <= {*small.spaces}
        assert {*chosen} & {s.name for s in symmetry.shifts} <= {s.name for s in small.shifts}
        assert_is_a_subgroup(small, symmetry, state)
        found = errors(model, small, inputs, each=False)
        assert found["everything"] < 1e-10 < 1e-3 < found["a wrong move"]


def _pattern(name: str, draw: random.Random) -> str:
    """A pattern that matches a name: itself, or with a part of it left open."""
    parts = name.split(".")
    place = draw.randrange(len(parts))
    if parts[place].isdigit():
        parts[place] = draw.choice(["*", "{0..99}", "{" + parts[place] + ",77}"])
    elif draw.random() < 0.5:
        parts[place] = "*"
    return ".".join(parts)


@pytest.mark.parametrize("name", FEW)
def test_an_orbit_of_a_subgroup_is_not_larger(name: str) -> None:
    model, _, symmetry = case(name)
    state = dict(model.state_dict())
    whole = orbit_dimension(symmetry, state)
    sizes = [orbit_dimension(symmetry.restrict(group), state) for group in GROUPS.values()]
    assert max(sizes) <= whole
    still = orbit_dimension(symmetry.restrict(Permutation, translations=False), state)
    assert still == orbit_dimension(symmetry.restrict(spaces=()), state) <= min(sizes)
    assert still < whole  # a restriction that did nothing would be seen


def test_a_larger_element_is_no_element_of_the_subgroup() -> None:
    _, _, symmetry = case("MLP, radial")
    small = symmetry.restrict(Permutation)
    g = symmetry.sample(torch.Generator().manual_seed(0), only="mlp")
    assert symmetry.spaces["mlp"].group.contains(g["mlp"])  # type: ignore[arg-type]
    assert not small.spaces["mlp"].group.contains(g["mlp"])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["Llama", "ViT", "GPT-NeoX"])
def test_an_order_in_a_frame_without_its_frame_is_another_function(name: str) -> None:
    """The frames of a restricted rotation are needed, and on dual axes the other way round."""
    model, inputs, symmetry = case(name)
    small = symmetry.restrict(Permutation, spaces="residual", translations=False)
    assert errors(model, small, inputs, each=False)["everything"] < 1e-12
    text = small.to_json()
    assert "]*" in text
    for wrong in (text.replace("]*", "]"), re.sub(r"residual\[[^\]]*\]", "residual", text)):
        other = ParameterSymmetry.from_json(wrong)
        assert errors(model, other, inputs, each=False)["everything"] > 1e-3


@pytest.mark.parametrize("group", ["Permutation", "SignedPermutation", "Monomial"])
def test_frames_follow_the_power_alone(group: str) -> None:
    """RMS norm gains on axes of either side: what is left of a rotation acts as it did."""
    model, inputs, symmetry = case("Llama")
    small = symmetry.restrict(GROUPS[group], spaces="residual", translations=False)
    framed = [p for axes in small.signature.values() for a in axes for p in parts_of(a) if p.frame]
    assert {item.factors[0][1] for item in framed} == {-1}
    assert not any(frame.exponent < 0 for item in framed for frame in item.frame)
    state = converted(model, torch.float64)
    g = small.sample(torch.Generator().manual_seed(0))
    assert distance(act(small, g, state), act(symmetry, g, state)) < 1e-12  # read in by itself
    assert distance(act(small, g, state), state) > 1e-3
    dual = small.dual  # a gradient in the same frames, which stand the other way round
    assert {p.factors[0][1] for axes in dual.signature.values() for a in axes
            for p in parts_of(a) if p.frame} == {1}  # fmt: skip
    pairing = sum((act(dual, g, state)[n] * act(small, g, state)[n]).sum() for n in small.signature)
    plain = sum((state[n] * state[n]).sum() for n in small.signature)
    torch.testing.assert_close(pairing, plain)

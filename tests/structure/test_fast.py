"""The fast path of `act` is the general path, only faster."""

from fractions import Fraction

import pytest
import torch

from paramsym import ParameterSymmetry, Space, act
from paramsym.algebra import (
    Group,
    Monomial,
    Orthogonal,
    Permutation,
    PositiveScaling,
    SignedPermutation,
)
from paramsym.structure import blockwise, fast
from paramsym.structure.axes import parse_axis

GROUPS: list[type[Group]] = [Permutation, PositiveScaling, SignedPermutation, Monomial]
TYPES = {
    "matrix": "a, b*",
    "rows": "a, 300",
    "columns": "300, b",
    "kernel": "a, b*, 3, 3",
    "power": "a^2, b^-2",
    "root": "c^1/2, 300",
    "scalars": "(a d*), b",
}


def _symmetry(group: type[Group]) -> ParameterSymmetry:
    root = PositiveScaling(307)
    spaces = {
        "a": Space("a", group(311)),
        "b": Space("b", group(263)),
        "c": Space("c", root),
        "d": Space("d", PositiveScaling(1), over=("a",)),
    }
    signature = {n: tuple(map(parse_axis, t.split(", "))) for n, t in TYPES.items()}
    return ParameterSymmetry(spaces, signature)


@pytest.mark.parametrize("group", GROUPS, ids=lambda g: g.__name__)
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_panels_agree_with_the_general_path(
    group: type[Group],
    layout: str,
    dtype: torch.dtype,
    generator: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    symmetry = _symmetry(group)
    element = symmetry.sample(generator, dtype=dtype)
    params = {}
    for name in TYPES:
        shape = symmetry.shape(name)
        made = torch.randn(*shape, generator=generator, dtype=dtype)
        params[name] = made if layout == "contiguous" else made.mT.contiguous().mT
        assert made.numel() >= fast._SMALL
    taken = []
    original = blockwise.monomial_matrix

    def counted(*arguments):
        result = original(*arguments)
        taken.append(result is not None)
        return result

    monkeypatch.setattr(blockwise, "monomial_matrix", counted)
    monkeypatch.setattr(fast, "_PANEL", 1 << 12)  # several panels, the last of them shorter
    quick = act(symmetry, element, params)
    assert all(taken) and len(taken) == len(TYPES)
    monkeypatch.setattr(blockwise, "monomial_matrix", lambda *_: None)
    slow = act(symmetry, element, params)
    for name in TYPES:
        torch.testing.assert_close(quick[name], slow[name], rtol=8 * torch.finfo(dtype).eps, atol=0)
        assert quick[name].dtype == dtype


def test_what_is_not_monomial_is_left_to_the_general_path(generator: torch.Generator) -> None:
    symmetry = _symmetry(Permutation)
    element = symmetry.sample(generator)
    values, x = element.parts[0], torch.zeros(311, 263)
    axes = symmetry.signature["matrix"]
    assert fast.monomial_matrix(symmetry, values, x, axes) is not None
    for other in (x.int(), x[:3], torch.zeros(1 << 17)):
        assert fast.monomial_matrix(symmetry, values, other, axes[: other.ndim]) is None
    third = (parse_axis("2"), parse_axis("300"), parse_axis("a"))
    assert fast.monomial_matrix(symmetry, values, torch.zeros(2, 300, 311), third) is None
    assert Fraction(1, 2) in dict(symmetry.signature["root"][0].factors).values()


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", TYPES)
def test_half_precision_is_rounded_once(
    half: torch.dtype, name: str, generator: torch.Generator
) -> None:
    symmetry = _symmetry(Monomial)
    element = symmetry.sample(generator, dtype=torch.float32)
    x = torch.randn(symmetry.shape(name), generator=generator).to(half)
    made = fast.monomial_matrix(symmetry, element.parts[0], x, symmetry.signature[name])
    assert made is not None and made.dtype == half
    exact = act(symmetry, element, {n: x.float() if n == name else torch.zeros(
        symmetry.shape(n)) for n in TYPES})[name]  # fmt: skip
    torch.testing.assert_close(made, exact.to(half), rtol=torch.finfo(half).eps, atol=0)
    assert (made != exact.to(half)).float().mean() < 1e-3  # ties of rounding alone


def test_a_frame_whose_space_stays_is_no_hindrance(generator: torch.Generator) -> None:
    spaces = {
        "r": Space("r", Orthogonal(263)),
        "n": Space("n", PositiveScaling(263)),
        "h": Space("h", Permutation(311)),
    }
    texts = {"w": "h, r[g]*⊙n", "g": "n^-1"}
    symmetry = ParameterSymmetry(
        spaces, {n: tuple(map(parse_axis, t.split(", "))) for n, t in texts.items()}
    )
    x = torch.randn(311, 263, generator=generator)
    still = symmetry.sample(generator, only=["n", "h"], dtype=torch.float32).parts[0]
    turned = symmetry.sample(generator, dtype=torch.float32).parts[0]
    axes = symmetry.signature["w"]
    assert fast.monomial_matrix(symmetry, still, x, axes) is not None
    assert fast.monomial_matrix(symmetry, turned, x, axes) is None

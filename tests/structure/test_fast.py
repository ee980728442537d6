"""The fast path of `act` is the general path, only faster."""

import pytest
import torch

from paramsym import ParameterSymmetry, Space, act
from paramsym.algebra import (
    ComplexScaling,
    GeneralLinear,
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
    original = blockwise.moved_by_axes

    def counted(*arguments):
        result = original(*arguments)
        taken.append(result is not None)
        return result

    monkeypatch.setattr(blockwise, "moved_by_axes", counted)
    monkeypatch.setattr(fast, "_PANEL", 1 << 12)  # several panels, the last of them shorter
    quick = act(symmetry, element, params)
    assert all(taken) and len(taken) == len(TYPES)
    monkeypatch.setattr(blockwise, "moved_by_axes", lambda *_: None)
    slow = act(symmetry, element, params)
    for name in TYPES:
        torch.testing.assert_close(quick[name], slow[name], rtol=8 * torch.finfo(dtype).eps, atol=0)
        assert quick[name].dtype == dtype


def plans(symmetry, element, name, x) -> list[fast.AxisPlan] | None:
    part = element.parts[0]
    return fast.plans_of(symmetry, symmetry.spaces, part, name, x, {"g": torch.ones(263)})


def test_what_is_small_or_whole_numbers_is_left_to_the_general_path(
    generator: torch.Generator,
) -> None:
    symmetry = _symmetry(Permutation)
    element, x = symmetry.sample(generator), torch.zeros(311, 263)
    assert plans(symmetry, element, "matrix", x) is not None
    for other in (x.int(), x[:3], torch.zeros(1 << 17)):
        assert plans(symmetry, element, "matrix", other) is None


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", TYPES)
def test_half_precision_is_rounded_once(
    half: torch.dtype, name: str, generator: torch.Generator
) -> None:
    symmetry = _symmetry(Monomial)
    element = symmetry.sample(generator, dtype=torch.float32)
    x = torch.randn(symmetry.shape(name), generator=generator).to(half)
    zeros = {n: torch.zeros(symmetry.shape(n)) for n in TYPES}
    made = fast.moved_by_axes(symmetry, symmetry.spaces, element.parts[0], name, {name: x})
    assert made is not None and made.dtype == half
    exact = act(symmetry, element, {**zeros, name: x.float()})[name].to(half)
    torch.testing.assert_close(made, exact, rtol=torch.finfo(half).eps, atol=0)
    assert (made != exact).float().mean() < 1e-3  # ties of rounding alone


def _headed() -> ParameterSymmetry:
    """Heads in groups, bases and phases within them, beside a stream in the frame of a gain."""
    spaces = {
        "r": Space("r", Orthogonal(263)),
        "n": Space("n", PositiveScaling(263)),
        "h": Space("h", Permutation(6)),
        "k": Space("k", Permutation(4), over=("h",)),
        "b": Space("b", GeneralLinear(16), over=("h",)),
        "f": Space("f", Permutation(13)),
        "z": Space("z", ComplexScaling(2), over=("h", "f")),
    }
    texts = {
        "orders": "(h k 16), 263",
        "bases": "(h b), r[g]*⊙n",
        "readers": "(h k b*), 263",
        "phases": "(h z f), r[g]*⊙n",
        "turned": "(h z* f), 263",
        "writers": "r, (h k b*)",
        "table": "311, r",
        "g": "n^-1",
    }
    return ParameterSymmetry(
        spaces, {n: tuple(map(parse_axis, t.split(", "))) for n, t in texts.items()}
    )


MIXED = {  # which axes are more than an order and a scale, for all spaces and without two of them
    "orders": ((), ()), "bases": ((0, 1), (0,)), "readers": ((0,), (0,)),
    "phases": ((1,), ()), "turned": ((), ()), "writers": ((0, 1), (1,)), "table": ((1,), ()),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MIXED)
def test_axes_that_mix_their_entries_agree_with_the_general_path(
    name: str, dtype: torch.dtype, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast, "_SMALL", 1)
    monkeypatch.setattr(fast, "_MIXED", 1 << 10)
    symmetry = _headed()
    for only, wanted in zip((None, ["n", "h", "k", "b", "f", "z"]), MIXED[name], strict=True):
        element = symmetry.sample(generator, only=only)
        params = {
            n: torch.rand(symmetry.shape(n), generator=generator, dtype=torch.float64).to(dtype)
            for n in symmetry.signature
        }
        found = plans(symmetry, element, name, params[name])
        assert found is not None
        assert tuple(k for k, plan in enumerate(found) if plan.mixed is not None) == wanted
        quick = act(symmetry, element, params)[name]
        with monkeypatch.context() as slowly:
            slowly.setattr(blockwise, "moved_by_axes", lambda *_: None)
            slow = act(symmetry, element, params)[name]
        near = 8 * torch.finfo(dtype).eps * float(slow.abs().max())
        torch.testing.assert_close(quick, slow, rtol=0, atol=near)


def test_axes_whose_copies_are_told_on_another_axis_are_left_to_the_general_path(
    generator: torch.Generator,
) -> None:
    spaces = {
        "e": Space("e", Permutation(7)),
        "u": Space("u", Permutation(300), over=("e",)),
    }
    axes = {"w": tuple(map(parse_axis, ["e", "u", "40"]))}
    symmetry = ParameterSymmetry(spaces, axes)
    element, x = symmetry.sample(generator), torch.zeros(7, 300, 40)
    assert fast.plans_of(symmetry, spaces, element.parts[0], "w", x, {}) is None
    still = symmetry.sample(generator, only=["e"])
    assert fast.plans_of(symmetry, spaces, still.parts[0], "w", x, {}) is not None

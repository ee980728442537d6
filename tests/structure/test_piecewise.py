"""Types of an axis for each piece of another one."""

from __future__ import annotations

import itertools

import pytest
import torch

from paramsym import ParameterSymmetry, act
from paramsym.algebra import GeneralLinear, Orthogonal, Permutation, PositiveScaling
from paramsym.structure.axes import (
    Carried,
    Fixed,
    Piecewise,
    TypeSyntaxError,
    carried,
    parse_axis,
    piecewise,
)
from paramsym.structure.fast import axis_plans
from paramsym.structure.pieces import at_place, cut, cutting, plain
from paramsym.structure.space import Space
from paramsym.structure.walk import walked

SPACES = {
    "a": Space("a", GeneralLinear(3)), "b": Space("b", Orthogonal(3)),
    "p": Space("p", Permutation(3)), "s": Space("s", PositiveScaling(1), ("p",)),
    "h": Space("h", Permutation(2)), "c": Space("c", GeneralLinear(3), ("h",)),
}  # fmt: skip
TEXTS = [
    "{0: a | b}", "{0: a | 2 × b}", "{1: {0: a | b} | 3 × a*}", "({1: a | b*} 2)", "{0: (p s) | p}",
    "({1: p | (p s)} 2) + 3", "{2: a + 3 | 6}",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_printed_is_read_back(text: str) -> None:
    axis = parse_axis(text)
    assert str(axis) == text
    assert parse_axis(str(axis.T)).T == axis


@pytest.mark.parametrize(
    "text", ["{0: a", "{a: b}", "{0 a}", "{0: a | }", "{0: 2 × }", "{0: a; b}"]
)
def test_what_is_no_type_is_refused(text: str) -> None:
    with pytest.raises(TypeSyntaxError):
        parse_axis(text)


def test_pieces_of_one_type_are_one() -> None:
    assert piecewise(0, [(1, Fixed(3)), (2, Fixed(3))]) == Fixed(3)
    a, b = carried("a"), carried("b")
    assert piecewise(0, [(1, a), (1, a), (1, b)]) == Piecewise(0, ((2, a), (1, b)))


def test_a_sum_is_cut_between_and_inside_its_terms() -> None:
    sizes = {"a": 3}
    axis = parse_axis("2 + a + 4")
    assert [*map(str, cut(axis, (1, 1, 3, 4), sizes))] == ["1", "1", "a", "4"]
    assert [*map(str, cut(axis, (5, 1, 3), sizes))] == ["2 + a", "1", "3"]
    with pytest.raises(ValueError, match="'a' is one"):
        cut(axis, (3, 6), sizes)


WRONG = {
    "by itself": "{0: a | b}, 3", "no such axis": "2, {5: a | b}", "too few": "3, {0: a | b}",
    "two that tell each other": "{1: a | 2 × b}, {0: a | 2 × b}", "sizes": "2, {0: a | 4}",
    "through a space": "a, {0: a | 2 × b}", "in a sum": "2, {0: a | b} + 3",
    "of a factor": "({0: a | b} 2), 3", "too many of a factor": "({1: a | b} 3), 3",
}  # fmt: skip


@pytest.mark.parametrize("why", WRONG)
def test_what_does_not_fit_is_refused(why: str) -> None:
    axes = tuple(parse_axis(text) for text in WRONG[why].split(", "))
    with pytest.raises(ValueError, match="A type for each piece of another axis"):
        ParameterSymmetry(SPACES, {"w": axes})


# Signatures, and by hand the plain types of some windows that tile the tensor.
SIGNATURES = {
    "one": ("2, {0: a | b*}, 4", [("0:1", "1, a, 4"), ("1:2", "1, b*, 4")]),
    "two by one": (
        "3, {0: a | 2 × b}, {0: 2 × p | (p s)}",
        [("0:1", "1, a, p"), ("1:2", "1, b, p"), ("2:3", "1, b, (p s)")],
    ),
    "nested": (
        "2, 2, {0: {1: a | b} | a*}",
        [("0:1, 0:1", "1, 1, a"), ("0:1, 1:2", "1, 1, b"), ("1:2", "1, 2, a*")],
    ),
    "a sum": ("h + 1, {0: 2 × a | b}", [("0:2", "h, a"), ("2:3", "1, b")]),
    "copies": ("2, h, {0: c | c*}", [("0:1", "1, h, c"), ("1:2", "1, h, c*")]),
    "a factor": ("({1: a | b*} 2), 4", [("0::2", "a, 4"), ("1::2", "b*, 4")]),
    "behind heads": ("(h ({1: c | c*} 2))", [("0::2", "(h c)"), ("1::2", "(h c*)")]),
    "a scalar": ("({1: p | (p s)} 2), 2", [("0::2", "p, 2"), ("1::2", "(p s), 2")]),
}  # fmt: skip


def typed(text: str) -> ParameterSymmetry:
    return ParameterSymmetry(SPACES, {"w": tuple(map(parse_axis, text.split(", ")))})


def window(text: str) -> tuple[slice, ...]:
    """`0:1, 1::2` as slices."""
    return tuple(
        slice(*(int(n) if n else None for n in part.split(":"))) for part in text.split(", ")
    )


@pytest.mark.parametrize("name", SIGNATURES)
def test_each_window_moves_as_a_tensor_of_its_plain_types(name: str) -> None:
    text, windows = SIGNATURES[name]
    symmetry = typed(text)
    x = torch.randn(symmetry.shape("w"), dtype=torch.float64)
    g = symmetry.sample(torch.Generator().manual_seed(0))
    moved = act(symmetry, g, {"w": x})["w"]
    seen = torch.zeros_like(x)
    for places, types in windows:
        small, at = typed(types), window(places)
        element = small.element({n: g[n] for n in SPACES})
        torch.testing.assert_close(
            moved[at], act(small, element, {"w": x[at].contiguous()})["w"], rtol=0, atol=1e-13
        )
        seen[at] += 1
    assert bool((seen == 1).all())  # the windows tile the tensor
    back = act(symmetry, ~g, {"w": moved})["w"]
    torch.testing.assert_close(back, x, rtol=0, atol=1e-12)
    assert ParameterSymmetry.from_json(symmetry.to_json()) == symmetry


@pytest.mark.parametrize("name", SIGNATURES)
def test_blocks_come_as_they_are_walked(name: str) -> None:
    symmetry = typed(SIGNATURES[name][0])
    x = torch.arange(float(torch.Size(symmetry.shape("w")).numel())).reshape(symmetry.shape("w"))
    met: list[torch.Tensor] = []
    same = walked(
        x, symmetry.signature["w"], symmetry.sizes, lambda b, *_: (met.append(b.clone()), b)[1]
    )
    assert torch.equal(same, x)
    assert [b.tolist() for b in met] == [b.view(x).tolist() for b in symmetry.blocks["w"]]


@pytest.mark.parametrize("name", SIGNATURES)
def test_what_holds_at_a_place_is_what_holds_in_its_piece(name: str) -> None:
    symmetry = typed(SIGNATURES[name][0])
    axes = symmetry.signature["w"]
    pieces = [*plain(axes, symmetry.sizes)]
    for place in itertools.product(*map(range, symmetry.shape("w"))):
        inside = [
            own for start, own in pieces if all(a <= p for a, p in zip(start, place, strict=True))
        ]
        found = at_place(axes, place)
        mine = {str(k): own for k, own in enumerate(found) if isinstance(axes[k], Piecewise)}
        assert all(str(inside[-1][int(k)]) == str(own) for k, own in mine.items())


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_restriction_moves_as_the_whole_does(name: str) -> None:
    symmetry = typed(SIGNATURES[name][0])
    smaller = symmetry.restrict(spaces=["a", "s", "h"])
    x = torch.randn(symmetry.shape("w"), dtype=torch.float64)
    g = smaller.sample(torch.Generator().manual_seed(0))
    there = symmetry.element({n: g[n] for n in smaller.spaces})
    found, wanted = (act(s, e, {"w": x})["w"] for s, e in ((smaller, g), (symmetry, there)))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-13)


def test_types_by_pieces_are_not_moved_axis_by_axis() -> None:
    """What acts along an axis alone is not known where another one tells it."""
    symmetry = typed("2, {0: p | 3}, 4")
    g = symmetry.sample(torch.Generator().manual_seed(0))
    (values,) = g.parts
    assert isinstance(values, dict)
    assert axis_plans(symmetry, SPACES, values, "w", torch.float64, {}) is None
    assert cutting(symmetry.signature["w"]) == {0}
    assert all(
        isinstance(axis, Fixed | Carried) for axis in at_place(symmetry.signature["w"], (0, 0, 0))
    )

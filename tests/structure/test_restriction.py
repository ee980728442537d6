"""Restriction by hand: what is left of types, which of two yields, and which shifts stay."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paramsym import ParameterSymmetry, Space, act, find_symmetry
from paramsym.algebra import (
    ComplexScaling,
    GeneralLinear,
    Group,
    Monomial,
    Orthogonal,
    Permutation,
    PositiveScaling,
    Scaling,
    SignedPermutation,
    Signs,
    Trivial,
    Wreath,
)
from paramsym.structure.axes import parse_axis
from paramsym.structure.element import Slide
from paramsym.structure.patterns import UnknownName
from paramsym.structure.shift import Shift, Term, Window


def written(types: dict[str, str], *spaces: Space, shifts: tuple[Shift, ...] = ()):
    signature = {n: tuple(map(parse_axis, t.split(", "))) for n, t in types.items()}
    return ParameterSymmetry({s.name: s for s in spaces}, signature, shifts)


def types(symmetry: ParameterSymmetry) -> dict[str, str]:
    return {name: ", ".join(map(str, axes)) for name, axes in symmetry.signature.items()}


def groups(symmetry: ParameterSymmetry) -> dict[str, Group]:
    return {name: space.group for name, space in symmetry.spaces.items()}


def signed(n: int) -> Monomial:
    return Monomial(n, signed=True)


def assert_acts_as_a_group(symmetry: ParameterSymmetry, seed: int = 0) -> None:
    """Words multiply and invert on random parameters."""
    generator = torch.Generator().manual_seed(seed)
    state = {
        name: torch.randn(symmetry.shape(name), generator=generator, dtype=torch.float64)
        for name in symmetry.signature
    }
    g, h = symmetry.sample(generator), symmetry.sample(generator)
    product, steps = act(symmetry, g @ h, state), act(symmetry, g, act(symmetry, h, state))
    back = act(symmetry, ~g, act(symmetry, g, state))
    for name in state:
        torch.testing.assert_close(product[name], steps[name])
        torch.testing.assert_close(back[name], state[name])


# -- what is left of types -------------------------------------------------------------------------

HEAD, QK = Space("head", Permutation(3)), Space("qk", GeneralLinear(4), ("head",))
HEADS = {"q": "(head qk), 5", "k": "5, (head qk*)", "out": "(head 4), 5", "gate": "head"}


def test_an_index_of_copies_stays_where_they_stand() -> None:
    small = written(HEADS, HEAD, QK).restrict(spaces="qk")
    assert groups(small) == {"head": Trivial(3), "qk": GeneralLinear(4)}
    assert small.spaces["head"].why == "restricted: held still"
    assert types(small) == {"q": "(head qk), 5", "k": "5, (head qk*)", "out": "12, 5", "gate": "3"}
    assert small.dimension("qk") == 3 * 16
    assert_acts_as_a_group(small)


def test_copies_leave_an_index_without_them() -> None:
    small = written(HEADS, HEAD, QK).restrict(spaces="head")
    assert groups(small) == {"head": Permutation(3)}
    assert types(small) == {"q": "(head 4), 5", "k": "5, (head 4)", "out": "(head 4), 5",
                            "gate": "head"}  # fmt: skip


def test_what_moves_nothing_leaves_sizes() -> None:
    symmetry = written(
        {"a": "(2 h 3), h + 3 + u", "b": "(h s*)", "c": "h^0, (u + h)", "d": "(2 2), 2 + 2"},
        Space("h", Monomial(4)), Space("u", Scaling(2)), Space("s", Scaling(1), ("h",)),
    )  # fmt: skip
    assert types(symmetry.restrict(spaces="u")) == {
        "a": "24, 7 + u", "b": "4", "c": "4, u + 4", "d": "(2 2), 2 + 2",
    }  # fmt: skip
    assert types(symmetry.restrict(spaces=["h", "u"]))["b"] == "h"
    assert types(symmetry.restrict(spaces=())) == {
        "a": "24, 9", "b": "4", "c": "4, 6", "d": "(2 2), 2 + 2",
    }  # fmt: skip
    assert types(symmetry.restrict(PositiveScaling))["c"] == "4, u + h"  # no order that ^0 keeps
    assert symmetry.restrict() == symmetry


def test_scalars_over_units_keep_their_index() -> None:
    symmetry = written({"w": "(h s), 5"}, Space("h", Permutation(4)),
                       Space("s", Scaling(1), ("h",)))  # fmt: skip
    small = symmetry.restrict(PositiveScaling)
    assert groups(small) == {"h": Trivial(4), "s": PositiveScaling(1)}
    assert types(small) == types(symmetry)
    assert types(symmetry.restrict(Permutation)) == {"w": "h, 5"}


# -- which of two yields ---------------------------------------------------------------------------


def beside(scales: Group) -> ParameterSymmetry:
    """A change of basis with scales in place."""
    return written({"w": "b⊙s^-1, 5", "v": "b, 3", "u": "s"}, Space("b", GeneralLinear(4)),
                   Space("s", scales))  # fmt: skip


def test_an_order_yields_to_scales_that_have_more_dimensions() -> None:
    small = beside(PositiveScaling(4)).restrict(Monomial)
    assert groups(small) == {"b": PositiveScaling(4), "s": PositiveScaling(4)}
    assert small.spaces["b"].why == "restricted: no order beside s"
    assert_acts_as_a_group(small)
    small = beside(PositiveScaling(4)).restrict(Monomial, spaces="b")
    assert groups(small) == {"b": Monomial(4)}  # nothing beside it
    assert types(small) == {"w": "b, 5", "v": "b, 3", "u": "4"}


def test_signs_yield_to_an_order_that_has_more_components() -> None:
    small = beside(Signs(4)).restrict(SignedPermutation)  # 2⁴ < 4!
    assert groups(small) == {"b": SignedPermutation(4)}
    assert types(small) == {"w": "b, 5", "v": "b, 3", "u": "4"}
    assert_acts_as_a_group(small)
    few = written({"w": "b⊙s"}, Space("b", GeneralLinear(3)), Space("s", Signs(3)))
    assert groups(few.restrict(SignedPermutation)) == {"b": Signs(3), "s": Signs(3)}  # 2³ > 3!


def test_an_order_yields_to_what_indexes_copies() -> None:
    symmetry = written({"w": "(b⊙h t)"}, Space("b", GeneralLinear(3)), Space("h", Permutation(3)),
                       Space("t", PositiveScaling(1), ("h",)))  # fmt: skip
    small = symmetry.restrict(Monomial)
    assert groups(small) == {"b": PositiveScaling(3), "h": Trivial(3), "t": PositiveScaling(1)}
    assert_acts_as_a_group(small)
    assert groups(symmetry.restrict(Permutation)) == {"h": Permutation(3)}  # 3! each: the first


def test_an_order_keeps_its_frame_on_either_side_with_signs_and_scales() -> None:
    framed = {"w": "b[g]*, 5", "v": "5, b[g]", "g": "4"}
    symmetry = written(framed, Space("b", GeneralLinear(4)))
    for group in (signed, Monomial, SignedPermutation, Permutation):
        small = symmetry.restrict(group)
        assert groups(small) == {"b": group(4)}
        assert types(small) == framed
        assert_acts_as_a_group(small)
        assert_acts_alike(small, symmetry)
    scales = symmetry.restrict(PositiveScaling)
    assert types(scales) == {"w": "b*, 5", "v": "5, b", "g": "4"}  # they commute with the frame
    assert_acts_alike(scales, symmetry)


def assert_acts_alike(small: ParameterSymmetry, symmetry: ParameterSymmetry) -> None:
    """Elements of the smaller symmetry act as those of the larger one with the same matrices."""
    generator = torch.Generator().manual_seed(1)
    state = {
        name: torch.randn(symmetry.shape(name), generator=generator, dtype=torch.float64)
        for name in symmetry.signature
    }
    g = small.sample(generator)
    dense = {
        n: symmetry.spaces[n].group.matrix(v, torch.float64)
        for part in g.parts if not isinstance(part, Slide) for n, v in part.items()
    }  # fmt: skip
    moved = act(small, g, state)
    for same in (act(symmetry, symmetry.element(dense), state), act(symmetry, g, state)):
        for name in state:
            torch.testing.assert_close(moved[name], same[name])
    assert any((moved[name] - state[name]).abs().max() > 1e-3 for name in state)


def test_an_order_in_a_frame_that_moves_stays_a_letter_of_a_word() -> None:
    symmetry = written({"w": "b[g]*, 5", "g": "s"}, Space("b", Orthogonal(4)),
                       Space("s", Scaling(4)))  # fmt: skip
    small = symmetry.restrict(signed)
    assert groups(small) == {"b": SignedPermutation(4), "s": Scaling(4)}
    assert small.clashes == {"b": {"s"}}
    assert_acts_as_a_group(small)
    generator = torch.Generator().manual_seed(0)
    assert len((small.sample(generator) @ small.sample(generator)).parts) > 1


# -- which shifts stay -----------------------------------------------------------------------------


def _slide(name: str, parameter: str, space: str) -> Shift:
    window = Window(parameter, "i", (4,), (1,))
    return Shift(name, "slides", "i", (4,), (Term(window),), space=space, kind="origin")


def sliding() -> ParameterSymmetry:
    return written(
        {"a": "h.0.mlp", "b": "h.1.mlp", "c": "4"},
        Space("h.0.mlp", Monomial(4)), Space("h.1.mlp", Scaling(4)),
        shifts=(_slide("shift:a", "a", "h.0.mlp"), _slide("shift:b", "b", "h.1.mlp"),
                _slide("shift:c", "c", "")),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "spaces", "shifts"),
    [
        ({}, ["h.0.mlp", "h.1.mlp"], ["shift:a", "shift:b", "shift:c"]),
        ({"translations": True}, ["h.0.mlp", "h.1.mlp"], ["shift:a", "shift:b", "shift:c"]),
        ({"translations": False}, ["h.0.mlp", "h.1.mlp"], []),
        ({"spaces": "h.0.*"}, ["h.0.mlp"], ["shift:a"]),
        ({"spaces": ["h.0.*", "shift:c"]}, ["h.0.mlp"], ["shift:a", "shift:c"]),
        ({"spaces": "shift:*"}, [], ["shift:a", "shift:b", "shift:c"]),
        ({"spaces": "h.{0..3}.mlp"}, ["h.0.mlp", "h.1.mlp"], ["shift:a", "shift:b"]),
        ({"spaces": "h.*", "translations": False}, ["h.0.mlp", "h.1.mlp"], []),
        ({"groups": Permutation}, ["h.0.mlp"], ["shift:a", "shift:b", "shift:c"]),
        ({"groups": Permutation, "spaces": "*.mlp"}, ["h.0.mlp"], ["shift:a", "shift:b"]),
    ],
)
def test_arguments_combine(arguments: dict, spaces: list[str], shifts: list[str]) -> None:
    small = sliding().restrict(**arguments)
    assert [*small.spaces] == spaces and [s.name for s in small.shifts] == shifts
    for shift in small.shifts:  # a shift speaks of a space that is there, or of none
        assert shift.space in {"", *small.spaces}
    assert ParameterSymmetry.from_json(small.to_json()) == small


# -- names and groups that there are not -----------------------------------------------------------


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    with pytest.raises(UnknownName, match=r"restrict\(spaces=…\): 'h.2.\*'.*h.{0..1}.mlp.*print"):
        sliding().restrict(spaces=["h.0.mlp", "h.2.*"])


def test_a_constructor_must_give_a_group_of_the_size() -> None:
    symmetry = written({"w": "h"}, Space("h", GeneralLinear(5)))
    blocks = lambda n: Wreath(GeneralLinear(1), n)  # noqa: E731
    for wrong in (ComplexScaling, lambda n: Permutation(n + 1), lambda n: None, blocks):
        with pytest.raises(ValueError, match="space 'h', which has 5 coordinates.*Expected a func"):
            symmetry.restrict(wrong)  # type: ignore[arg-type]


def test_sample_moves_what_patterns_name() -> None:
    symmetry = sliding()
    generator = torch.Generator().manual_seed(0)
    (values, slide) = symmetry.sample(generator, only=["h.{0,9}.mlp", "*:c"]).parts
    assert [*values] == ["h.0.mlp"] and slide.shift == "shift:c"  # type: ignore[misc,union-attr]
    assert symmetry.sample(generator, only=[]).parts == ()
    with pytest.raises(UnknownName, match=r"sample\(only=…\): 'h9'"):
        symmetry.sample(generator, only="h9")


def test_the_reason_says_what_was_met() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    symmetry = find_symmetry(model, (torch.randn(2, 4),))
    small = symmetry.restrict(Permutation)
    (space,) = small.spaces.values()
    assert space.why == "restricted: Monomial(6) & Permutation(6)"
    assert symmetry.restrict(Monomial) == symmetry  # nothing to say where nothing changed
    assert "Permutation(6)" in str(small) and small.checked == symmetry.checked


class Gated(nn.Module):
    """A product of two branches, whose scales leave a restriction to orders."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.u, self.b = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.sin(self.a(x)) * self.u(x))


@pytest.mark.parametrize("kind", [Permutation, PositiveScaling, Orthogonal])
def test_elements_of_a_restriction_move_the_whole(kind: type) -> None:
    """Also where spaces are gone from the smaller symmetry."""
    torch.manual_seed(0)
    model = Gated().double()
    symmetry = find_symmetry(model, (torch.randn(5, 3, dtype=torch.float64),))
    smaller = symmetry.restrict(groups=kind)
    state = model.state_dict()
    g = smaller.sample(torch.Generator().manual_seed(1))
    ours, theirs = act(symmetry, g, state), act(smaller, g, state)
    for name in state:
        torch.testing.assert_close(ours[name], theirs[name])
    if kind is not Orthogonal:
        assert smaller.spaces.keys() != symmetry.spaces.keys() or kind is PositiveScaling
        assert any(not torch.equal(ours[name], state[name]) for name in state)

"""The commuting subgroup, read off types: what is trained, frozen, over copies, translated."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paramsym import ParameterSymmetry, find_symmetry
from paramsym.algebra import (
    GeneralLinear,
    Monomial,
    Orthogonal,
    Permutation,
    SignedPermutation,
    Signs,
)
from paramsym.privacy import commuting_subgroup
from paramsym.structure.axes import parse_axis
from paramsym.structure.space import Space


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.Linear(4, 3))


def groups(symmetry: ParameterSymmetry) -> dict[str, object]:
    return {space.name: space.group for space in symmetry.spaces.values()}


@pytest.fixture(scope="module")
def found() -> ParameterSymmetry:
    return find_symmetry(mlp(), (torch.randn(7, 6),), free_inputs=True, free_outputs=True)


def test_inner_products_keep_what_is_orthogonal(found: ParameterSymmetry) -> None:
    assert groups(commuting_subgroup(found, "sgd")) == {
        "input": Orthogonal(6), "mlp": Permutation(5), "mlp.2": Orthogonal(4),
        "output": Orthogonal(3),
    }  # fmt: skip


def test_entrywise_steps_keep_signed_permutations(found: ParameterSymmetry) -> None:
    assert groups(commuting_subgroup(found, "adam")) == {
        "input": SignedPermutation(6), "mlp": Permutation(5), "mlp.2": SignedPermutation(4),
        "output": SignedPermutation(3),
    }  # fmt: skip


def test_all_parts_of_a_step_have_their_say(found: ParameterSymmetry) -> None:
    both = commuting_subgroup(found, ("sgd", "clip_grad_value"))
    assert groups(both) == groups(commuting_subgroup(found, "adam"))


def test_who_does_not_train_keeps_everything(found: ParameterSymmetry) -> None:
    assert commuting_subgroup(found, None) is found


def test_what_moves_frozen_tensors_alone_keeps_its_group(found: ParameterSymmetry) -> None:
    last = commuting_subgroup(found, "adam", trainable=["3.weight", "3.bias"])
    assert groups(last) == {
        "input": GeneralLinear(6), "mlp": Monomial(5), "mlp.2": SignedPermutation(4),
        "output": SignedPermutation(3),
    }  # fmt: skip


def test_scalings_stay_where_they_are_asked_for(found: ParameterSymmetry) -> None:
    scaled = commuting_subgroup(found, "sgd", scalings=True)
    assert groups(scaled)["mlp"] == Monomial(5) and groups(scaled)["input"] == Orthogonal(6)


def test_translations_stay_under_inner_products_without_decay() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 2))
    symmetry = find_symmetry(model, (torch.randn(5, 4),))
    constant = {shift.name for shift in symmetry.shifts if not any(t.factors for t in shift.terms)}
    assert constant and len(constant) < len(symmetry.shifts)
    plain = commuting_subgroup(symmetry, torch.optim.SGD(model.parameters(), lr=0.1))
    assert {shift.name for shift in plain.shifts} == constant
    decaying = torch.optim.SGD(model.parameters(), 0.1, weight_decay=0.01)
    assert not commuting_subgroup(symmetry, decaying).shifts
    assert not commuting_subgroup(symmetry, "adam").shifts


def test_copies_along_the_other_axis_of_a_matrix_are_held_from_means_over_rows() -> None:
    """Each row of `table` has an order of its own; (head unit) on one axis is an order of rows."""
    spaces = {
        "head": Space("head", Permutation(3)),
        "unit": Space("unit", Permutation(4), over=("head",)),
    }
    signature = {
        "table": (parse_axis("head"), parse_axis("unit")),
        "flat": (parse_axis("(head unit)"), parse_axis("5")),
        "stack": (parse_axis("head"), parse_axis("unit"), parse_axis("5")),
    }
    whole = ParameterSymmetry(spaces, signature)
    assert groups(commuting_subgroup(whole, "adam")) == groups(whole)
    assert groups(commuting_subgroup(whole, "adafactor")) == {"head": Permutation(3)}
    rest = ParameterSymmetry(spaces, {n: signature[n] for n in ("flat", "stack")})
    assert groups(commuting_subgroup(rest, "adafactor")) == groups(rest)


def test_a_rotation_in_the_frame_of_a_trained_gain_does_not_commute() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.norm, self.out = nn.Linear(4, 6), nn.RMSNorm(6), nn.Linear(6, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.norm(self.into(x)))

    model = Normed()
    symmetry = find_symmetry(model, (torch.randn(5, 4),))
    framed = [s for s in symmetry.spaces if any(leg.frame for leg in symmetry.legs(s))]
    assert framed and isinstance(symmetry.spaces[framed[0]].group, Orthogonal)
    kept = commuting_subgroup(symmetry, "sgd").spaces[framed[0]].group
    assert kept <= SignedPermutation(6) and Signs(6) <= kept


def test_translations_under_batch_statistics_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    symmetry = find_symmetry(model, (torch.randn(5, 4),), training=True)
    assert any(not any(term.factors for term in shift.terms) for shift in symmetry.shifts)
    assert not commuting_subgroup(symmetry, torch.optim.SGD).shifts


def test_names_of_no_parameter_are_refused(found: ParameterSymmetry) -> None:
    with pytest.raises(ValueError, match=r"'3\.wieght' is none of the 6 parameters"):
        commuting_subgroup(found, "adam", trainable=["3.wieght"])

"""Planted claims: false ones whose falsehood one random move, or one draw, may not show."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from paramsym import ParameterSymmetry, audit, find_symmetry, verify
from paramsym.algebra import (
    Group,
    Monomial,
    Orthogonal,
    Permutation,
    Scaling,
    SignedPermutation,
    Signs,
)
from paramsym.checking.refute import refute
from paramsym.checking.weaker import _held
from paramsym.structure.axes import Fixed, carried
from paramsym.structure.space import Space

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))


def by_hand(model: nn.Module, group: Group, *rows: str) -> ParameterSymmetry:
    """A symmetry that moves the rows of some tensors and nothing else."""
    types = {n: tuple(map(Fixed, p.shape)) for n, p in model.named_parameters()}
    types |= {n: (carried("h"), *types[n][1:]) for n in rows}
    return ParameterSymmetry({"h": Space("h", group)}, types)


class Product(nn.Module):
    """The product of odd units: an even number of signs changes nothing."""

    def __init__(self, count: int):
        super().__init__()
        self.units, self.out = nn.Linear(4, count, bias=False), nn.Linear(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.units(x)).prod(-1, keepdim=True))


@pytest.mark.parametrize("count", [2, 3, 6, 7, 12])
def test_signs_of_single_units_are_refuted_where_pairs_of_them_are_true(count: int) -> None:
    model = Product(count)
    false = by_hand(model, Signs(count), "units.weight")
    assert refute(model, false, (X,)).checked.refuted
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        assert verify(model, false, (X,), generator=generator).error > 1e-3
    true = by_hand(model, Permutation(count), "units.weight")  # a product has no order
    checked = refute(model, true, (X,)).checked
    assert checked.passes and not checked.refuted
    assert verify(model, true, (X,)).error < 1e-12


class TiedHead(nn.Module):
    """Three units, which a draw of their biases may close all at once."""

    def __init__(self):
        super().__init__()
        self.table, self.mix = nn.Embedding(9, 3), nn.Linear(3, 3)
        self.bias = nn.Parameter(torch.randn(9))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.mix(self.table(tokens).mean(1)))
        return hidden @ self.table.weight.T + self.bias


def test_a_draw_that_sees_nothing_does_not_take_an_alarm_back() -> None:
    model, inputs = TiedHead(), (torch.randint(9, (3, 5)),)
    for group in (Permutation(3), Monomial(3), Scaling(3)):
        false = by_hand(model, group, "mix.weight", "mix.bias")  # nobody undoes it
        assert refute(model, false, inputs).checked.refuted, group
    assert not find_symmetry(model, inputs).checked.refuted


def test_what_claims_to_be_approximate_is_refuted_beyond_a_small_error() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    symmetry = find_symmetry(model, (X,))
    (name,) = symmetry.spaces
    for group, exact in ((Monomial(5, signed=True), False), (Monomial(5, signed=True), True)):
        false = replace(symmetry, spaces={name: Space(name, group, exact=exact)})
        found = audit(model, (X,), symmetry=false)
        assert not found.complete and [*found.refuted] == [name] and not found.approximate
        assert not found.explained and not found.nullity
    loose = replace(symmetry, spaces={name: Space(name, SignedPermutation(5), exact=False)})
    assert audit(model, (X,), symmetry=loose).complete


def test_a_live_parameter_that_is_called_dead_is_refuted_beside_a_shift_that_moves_it() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 3, 3, groups=1), nn.Conv1d(3, 3, 3, groups=3), nn.Tanh())
    model.append(nn.Conv1d(3, 2, 1)).append(nn.Flatten())
    inputs = (torch.randn(4, 2, 7),)
    symmetry = find_symmetry(model, inputs)
    assert any("1.bias" in shift.parameters for shift in symmetry.shifts)
    assert audit(model, inputs, symmetry=symmetry).complete
    found = audit(model, inputs, symmetry=replace(symmetry, dead=("1.bias",)))
    assert not found.complete and "dead parameters" in found.refuted


def test_holding_a_tensor_holds_the_orders_that_stand_beside_its_bases() -> None:
    """A basis that becomes trivial is monomial, and may then not stand beside an order."""
    types = {"w": (carried("b"), Fixed(2)), "v": (replace(carried("b"), factors=(
        *carried("b").factors, *carried("n").factors)),)}  # fmt: skip
    spaces = {"b": Space("b", Orthogonal(3)), "n": Space("n", Permutation(3))}
    held = _held(ParameterSymmetry(spaces, types), ["w"])
    assert {str(space.group) for space in held.spaces.values()} == {"Trivial(3)"}

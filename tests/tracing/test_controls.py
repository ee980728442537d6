"""A proof that cannot flatter: wrong claims that the given weights, or a large output, would hide.

Each case has a claim that is wrong and one that is right, so that neither passing nor failing is
what the check always does.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from paramsym import assert_invariant, audit, find_symmetry, verify
from paramsym.algebra import Monomial, Permutation, SignedPermutation
from paramsym.checking.measure import change, scale_of, step_of
from paramsym.checking.refute import refute
from paramsym.structure.symmetry import ParameterSymmetry

X = torch.linspace(-1, 1, 20, dtype=torch.float64).reshape(5, 4)


def network(outputs: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, outputs)).double()


def right_and_wrong(model: nn.Module) -> tuple[ParameterSymmetry, ParameterSymmetry]:
    """The symmetry of a tanh network, and one that scales its units as if tanh were homogeneous."""
    symmetry = find_symmetry(model, (X,))
    (name,) = (n for n, s in symmetry.spaces.items() if s.group == SignedPermutation(6))
    wrong = replace(symmetry.spaces[name], group=Monomial(6))
    return symmetry, replace(symmetry, spaces={**symmetry.spaces, name: wrong})


class LowRank(nn.Module):
    """W + B A with B zero, as adapters begin, behind tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6).double(), nn.Linear(6, 3).double()
        self.a = nn.Parameter(torch.randn(2, 6, dtype=torch.float64))
        self.b = nn.Parameter(torch.zeros(3, 2, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.first(x)) @ (self.b @ self.a).T + 0 * self.last.bias


class ZeroGate(nn.Module):
    """A residual branch behind a gate of zero (ReZero, adaLN-zero)."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = network(4)
        self.gate = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.gate * self.branch(x)


def zero_head() -> nn.Module:
    model = network()
    nn.init.zeros_(model[2].weight)  # type: ignore[arg-type]
    return model


@pytest.mark.parametrize("make", [zero_head, LowRank, ZeroGate], ids=["head", "B", "gate"])
def test_what_the_given_weights_hide_is_measured_elsewhere(make) -> None:
    torch.manual_seed(0)
    model = make()
    right, wrong = right_and_wrong(model)
    found = verify(model, right, (X,))
    assert found.error <= 1e-12 and found.control >= 1e-2, found
    assert set(found.invisible) >= {n for n, s in right.spaces.items() if s.group.size == 6}
    assert "invisible here" in str(found)
    assert verify(model, wrong, (X,)).error >= 1e-2
    with pytest.raises(AssertionError, match="the function changes by"):
        assert_invariant(model, wrong, (X,))


def test_what_shows_at_the_given_weights_is_not_called_invisible() -> None:
    model = network()
    right, wrong = right_and_wrong(model)
    assert verify(model, right, (X,)).invisible == ()
    assert verify(model, wrong, (X,)).error >= 1e-2


class Beside(nn.Module):
    """A network with an output column (or channel, or sample) of size 1e13 beside it."""

    def __init__(self, how: str, size: float = 1e13) -> None:
        super().__init__()
        self.inner, self.how, self.size = network(), how, size
        self.large = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, large = self.inner(x), self.size * self.large
        if self.how == "column":
            return torch.cat([y, large.expand(len(y), 1)], -1)
        if self.how == "sample":
            return torch.cat([y, large.expand(1, 3)])
        if self.how == "channel":  # an image (batch, channel, height, width)
            image = y[:, None, None].expand(-1, 2, 4, -1)
            return torch.cat([image, large.expand(len(y), 1, 4, 3)], 1)
        return torch.cat([y.reshape(-1), large])


@pytest.mark.parametrize("how", ["column", "sample", "channel", "flat"])
def test_a_large_output_does_not_stand_for_its_neighbours(how: str) -> None:
    model = Beside(how)
    right, wrong = right_and_wrong(model)
    assert verify(model, right, (X,)).error <= 1e-12
    assert verify(model, wrong, (X,)).error >= 1e-2


class Vanishing(nn.Module):
    """An output column that vanishes for all weights: rounding is all that it shows."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        return torch.cat([y, torch.softmax(y, -1).sum(-1, keepdim=True) - 1], -1)


def test_rounding_of_an_output_that_vanishes_is_no_error() -> None:
    right, wrong = right_and_wrong(model := Vanishing())
    assert verify(model, right, (X,)).error <= 1e-10
    assert verify(model, wrong, (X,)).error >= 1e-2


class MaskedOutput(nn.Module):
    """A network whose outputs pass a mask of −∞, as causal attention keeps one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()
        self.register_buffer("mask", torch.tensor([[0.0, -math.inf, 0.0]]).double())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.inner(x) + self.mask, -1)


@pytest.mark.parametrize(
    "make",
    [*(lambda how=how: Beside(how) for how in ("column", "sample", "channel", "flat")),
     Vanishing, MaskedOutput],
    ids=["column", "sample", "channel", "flat", "vanishing", "mask"],
)  # fmt: skip
def test_refutation_measures_slice_by_slice_as_well(make) -> None:
    right, wrong = right_and_wrong(model := make())
    assert refute(model, right, (X,)).checked.refuted == ()
    (text,) = refute(model, wrong, (X,)).checked.refuted
    assert text == "mlp: Monomial(6) became Permutation(6)"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_measure_sees_an_entry_beside_a_large_one_and_a_lost_number(dtype) -> None:
    y = torch.tensor([[1.0, 6e4], [-1.0, 6e4]]).to(dtype)
    scale = scale_of(y)
    assert change(y, y, scale) == 0.0
    assert change(y, y * torch.tensor([[1.5, 1.0]]).to(dtype), scale) == 0.5
    assert change(y, -y, scale) == 2.0  # in half precision the difference itself is no number
    lost = y.clone()
    lost[0, 0] = math.inf
    assert change(y, lost, scale) == change(lost, y, scale) == change(y, y[:1], scale) == math.inf
    assert change(lost, lost, scale_of(lost)) == 0.0


def test_a_slice_that_vanishes_counts_against_what_the_parameters_do_to_it() -> None:
    y, step = torch.tensor([[1.0, 0.0]]), step_of(torch.float32)
    nudge = y + step * torch.tensor([[0.0, 2.0]])
    moved = y + torch.tensor([[0.0, 1.0]])
    assert change(y, moved, scale_of(y, [nudge], step)) == pytest.approx(0.5)
    assert change(y, moved, scale_of(y)) > 1e30


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_weights_that_are_no_numbers_are_refused(number: float) -> None:
    model = network()
    symmetry = find_symmetry(model, (X,))
    with torch.no_grad():
        next(model.parameters())[1, 2] = number
    with pytest.raises(ValueError, match=r"1 of 24 entries of '0\.weight' are NaN or infinite"):
        verify(model, symmetry, (X,))


class Masked(nn.Module):
    """Outputs of −∞ where a mask says so, as logits have them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.tensor([0.0, -math.inf, 0.0], dtype=torch.float64)
        return self.inner(x) + mask


def test_infinite_outputs_are_compared_as_such() -> None:
    right, wrong = right_and_wrong(model := Masked())
    assert verify(model, right, (X,)).error <= 1e-12
    assert 1e-2 <= verify(model, wrong, (X,)).error < math.inf


def test_nothing_that_moves_is_no_proof() -> None:
    model = network()
    nothing = find_symmetry(model, (X,)).restrict(spaces=[], translations=False)
    found = verify(model, nothing, (X,))
    assert not found.rows and found.control == 0.0
    assert "nothing was shown" in str(found)


def test_a_dead_parameter_is_invisible_everywhere() -> None:
    class Dead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.unused = network(), nn.Linear(4, 6).double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) + 0 * self.unused(x).sum() * 0

    model = Dead()
    symmetry = find_symmetry(model, (X,))
    found = verify(model, symmetry, (X,))
    seen = [row for row in found.rows if row.invisible != "everywhere"]
    assert found.control == min(row.control for row in seen) >= 1e-3


class Counting(nn.Module):
    """A buffer that every evaluation updates, in place or by a new tensor."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.first, self.last, self.in_place = nn.Linear(4, 6), nn.Linear(6, 3), in_place
        self.register_buffer("mean", torch.zeros(6, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.first(x))
        new = 0.9 * self.mean + 0.1 * h.mean(0)
        if self.in_place:
            self.mean.copy_(new)
        else:
            self.mean = new
        return self.last(h - new)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_buffer_that_an_evaluation_updates_starts_anew(in_place: bool) -> None:
    torch.manual_seed(0)
    model = Counting(in_place).double().eval()
    found = verify(model, find_symmetry(model, (X,)), (X,))
    assert found.error <= 1e-12 and found.control >= 1e-3
    assert not model.mean.any()


class Table(nn.Module):
    """Integers, or a mask, that are permuted with the units."""

    def __init__(self, mask: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6).double(), nn.Linear(6, 3).double()
        numbers = torch.tensor([1, 2, 1, 3, 1, 2])
        self.register_buffer("table", numbers > 1 if mask else numbers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.sin(self.first(x)) * self.table.to(x.dtype))


@pytest.mark.parametrize("mask", [True, False])
def test_integers_and_masks_may_move(mask: bool) -> None:
    torch.manual_seed(0)
    model = Table(mask)
    symmetry = find_symmetry(model, (X,))
    found = verify(model, symmetry, (X,))
    assert found.error <= 1e-12 and found.control >= 1e-3
    assert any("table" in symmetry.parameters_of(row.name) for row in found.rows[:-1])


def test_a_shift_of_weights_that_are_zero_is_measured_against_what_is_usual() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 6), nn.LayerNorm(6, bias=False), nn.Linear(6, 3, bias=False)
    ).double()
    nn.init.zeros_(model[2].weight)  # type: ignore[arg-type]
    symmetry = find_symmetry(model, (X,))
    assert "2.weight" in {name for shift in symmetry.shifts for name in shift.parameters}
    assert_invariant(model, symmetry, (X,))


@pytest.mark.parametrize("size", [1e3, 1e14])
def test_an_audit_sees_past_a_large_output(size: float) -> None:
    right, wrong = right_and_wrong(model := Beside("column", size))
    expected = sum(shift.dimension for shift in right.shifts)
    found = audit(model, (X,), symmetry=right)
    assert (found.complete, found.nullity, found.dead) == (True, expected, 0), found
    assert audit(model, (X,), symmetry=wrong).refuted


def test_an_audit_tries_what_moves_buffers() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.SiLU(), nn.Linear(6, 3)).double()
    model(X + torch.randn_like(X))
    model.eval()
    right = find_symmetry(model, (X,))
    (name,) = (n for n, s in right.spaces.items() if s.group == Permutation(6))
    monomial = replace(right.spaces[name], group=Monomial(6))
    wrong = replace(right, spaces={**right.spaces, name: monomial})
    found = audit(model, (X,), symmetry=right)
    assert found.complete and not found.refuted, found
    assert name in audit(model, (X,), symmetry=wrong).refuted

"""Units that are only summed: what they have beside their sum is free, and softmax over leaves.

Derived without a check, so that nothing but the derivation is asked; then audited.
"""

import pytest
import torch
from torch import Tensor, nn

from paramsym import audit, verify
from paramsym.recording.record import record
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.tracing.infer import infer
from tests.tracing.zoo import randomise

GROUPS, EACH = 2, 4
INPUTS = 5
BESIDE = GROUPS * (EACH - 1)  # directions of the units that their sums do not see


class Summed(nn.Module):
    """Groups of units that are summed before a sigmoid, in the way of its name."""

    def __init__(self, way: str):
        super().__init__()
        self.way = way
        self.units = nn.Linear(INPUTS, GROUPS * EACH, bias=way != "no bias")
        self.gains = nn.Parameter(torch.randn(EACH))
        self.windows = nn.Conv1d(INPUTS, GROUPS * EACH, 3)
        self.leave = nn.Linear(GROUPS, 3)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        if self.way == "windows":
            made = self.windows(x).mT
        else:
            made = self.units(x)
        made = made.unflatten(-1, (GROUPS, EACH))
        if self.way == "read":
            return self.leave(torch.sigmoid(made.sum(-1))), made[:, 0, 1]
        if self.way == "rectified":
            made = torch.relu(made)
        if self.way == "weighed":
            made = made * self.gains
        total = made.mean(-1) if self.way == "mean" else made.sum(-1)
        return self.leave(torch.sigmoid(total))


class Shares(nn.Module):
    """A softmax over two leaves of one axis, which sums to one over both of them."""

    def __init__(self, way: str):
        super().__init__()
        self.way = way
        self.units, self.leave = nn.Linear(INPUTS, 2 * 3 * 2), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        shares = self.units(x).view(-1, 2, 2, 3).sum(2).flatten(1).softmax(-1)
        made = self.leave(shares)
        return (made, shares[:, :1] * self.leave.weight[0, 0]) if self.way == "read" else made


def inputs_of(way: str) -> Tensor:
    """Example inputs of a `Summed`."""
    return torch.randn(11, INPUTS, *[6] * (way == "windows"))


def derived(model: nn.Module, x: Tensor) -> ParameterSymmetry:
    """What the derivation finds by itself; no claim of it is wrong."""
    randomise(model)
    symmetry = infer(record(model, (x,)))
    assert verify(model, symmetry, (x,), limit=100).error < 1e-9
    return symmetry


@pytest.mark.parametrize(
    ("way", "wanted"),
    [
        ("bias", BESIDE * (INPUTS + 1)),
        ("no bias", BESIDE * INPUTS),
        ("mean", BESIDE * (INPUTS + 1)),
        ("windows", BESIDE * (3 * INPUTS + 1)),
        ("rectified", 0),
    ],
)
def test_what_units_have_beside_their_sum_is_free(way: str, wanted: int) -> None:
    torch.manual_seed(0)
    model, x = Summed(way), inputs_of(way)
    found = audit(model, (x,), symmetry=derived(model, x))
    assert (found.nullity - found.dead, found.unexplained, found.refuted) == (wanted, 0, {})


def test_a_unit_that_is_read_by_itself_stays() -> None:
    torch.manual_seed(0)
    model, x = Summed("read"), torch.randn(11, INPUTS)
    found = audit(model, (x,), symmetry=derived(model, x))
    assert (found.nullity - found.dead, found.refuted) == ((BESIDE - 1) * (INPUTS + 1), {})


@pytest.mark.parametrize(("way", "wanted"), [("all", 3), ("read", 0)])
def test_a_softmax_over_several_leaves_sums_to_one(way: str, wanted: int) -> None:
    torch.manual_seed(0)
    model, x = Shares(way), torch.randn(11, INPUTS)
    symmetry = derived(model, x)
    told = sum(s.dimension for s in symmetry.shifts if s.name == "shift:leave.weight.unreceived")
    assert told == wanted
    assert not audit(model, (x,), symmetry=symmetry).refuted

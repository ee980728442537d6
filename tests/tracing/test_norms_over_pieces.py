"""A norm that centers does not see what is added to all of an axis, also where that was joined, or
is cut behind: rows of a weight may all move by one vector, and so may the rows of several.

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

WIDTH, UNITS = 5, 6


class Normed(nn.Module):
    """A layer whose units are normed together and then treated apart, in the way of its name."""

    def __init__(self, way: str):
        super().__init__()
        self.way = way
        self.enter, self.first = nn.Linear(3, WIDTH), nn.Linear(WIDTH, UNITS)
        self.second, self.leave = nn.Linear(WIDTH, UNITS), nn.Linear(UNITS, 4)
        self.rms = way == "rms"
        self.gain, self.bias = nn.Parameter(torch.ones(UNITS)), nn.Parameter(torch.zeros(UNITS))

    def norm(self, x: Tensor) -> Tensor:
        if self.rms:
            return nn.functional.rms_norm(x, (UNITS,), self.gain, 1e-3) + self.bias
        if self.way == "softmax":
            return (x * 1.0).softmax(-1) * self.gain + self.bias
        if self.way == "by hand":
            x = x - x.mean(-1, keepdim=True)
            return x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt() * self.gain + self.bias
        return nn.functional.layer_norm(x, (UNITS,), self.gain, self.bias, 1e-3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.enter(x))
        one = self.first(x)
        if self.way in ("joined", "one of them", "seen"):
            two = torch.tanh(self.second(x)) if self.way == "one of them" else self.second(x)
            made = self.norm(torch.cat([one[..., :2], two[..., :4]], -1))
            seen = torch.cos(one[..., :1]) if self.way == "seen" else 0.0
            return self.leave(torch.tanh(made)) + seen
        made = self.norm(one)
        if self.way == "gates":
            i, f, g = made.chunk(3, -1)
            made = torch.cat([torch.sigmoid(i) * torch.tanh(g), torch.sigmoid(f), g], -1)
        return self.leave(torch.cat([torch.sigmoid(made[..., :2]), torch.tanh(made[..., 2:])], -1))


# how many dimensions of the weights and biases in front of the norm it does not see
WAYS = {
    "cut": WIDTH + 1, "gates": WIDTH + 1, "joined": WIDTH + 1, "by hand": WIDTH + 1,
    "softmax": WIDTH + 1, "rms": 0, "one of them": 0, "seen": 0,
}  # fmt: skip


def derived(way: str) -> tuple[Normed, ParameterSymmetry, Tensor]:
    """A network and what the derivation finds by itself; no claim of it is wrong."""
    torch.manual_seed(0)
    model, x = randomise(Normed(way)), torch.randn(60, 3)
    symmetry = infer(record(model, (x,)))
    assert verify(model, symmetry, (x,), limit=100).error < 1e-10
    return model, symmetry, x


@pytest.mark.parametrize("way", WAYS)
def test_a_common_shift_of_all_pieces_is_found(way: str) -> None:
    model, symmetry, x = derived(way)
    front = {"first.weight", "first.bias", "second.weight", "second.bias"}
    found = sum(
        s.dimension for s in symmetry.shifts if {*s.parameters} <= front and s.kind == "origin"
    )
    assert found == WAYS[way]
    assert audit(model, x, symmetry=symmetry).unexplained == 0

"""Values that several heads write together, and no norm behind them sees.

Derived without a check, so that nothing but the derivation is asked.
"""

from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paramsym import audit, same_orbit, verify
from paramsym.recording.record import record
from paramsym.structure.action import act
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.tracing.infer import infer
from tests.tracing.zoo import randomise

WIDTH = 4


class Block(nn.Module):
    """Attention without an output bias between two layer norms, in the way of its name."""

    def __init__(self, way: str, heads: int, size: int):
        super().__init__()
        self.way, self.heads, self.size = way, heads, size
        inside = heads * size
        self.enter, self.leave = nn.Linear(7, WIDTH), nn.Linear(WIDTH, 2, bias=False)
        self.query, self.key = (nn.Linear(WIDTH, inside, bias=False) for _ in "qk")
        self.value = nn.Linear(WIDTH, inside, bias=way == "value bias")
        self.out = nn.Linear(inside, WIDTH, bias=way == "output bias")
        self.up, self.down = nn.Linear(WIDTH, 6, bias=False), nn.Linear(6, WIDTH, bias=False)
        kind = nn.RMSNorm if way == "RMS norms" else nn.LayerNorm
        self.first, self.second, self.last = (kind(WIDTH, eps=0.01) for _ in range(3))

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, self.size)).transpose(-3, -2)

    def forward(self, x: Tensor) -> Tensor:
        stream = self.enter(x)
        h = self.first(stream)
        scores = self.split(self.query(h)) @ self.split(self.key(h)).mT
        weights = torch.sigmoid(scores) if self.way == "no shares" else torch.softmax(scores, -1)
        seen = (weights @ self.split(self.value(h))).transpose(-3, -2).flatten(-2)
        if self.way == "activated":
            seen = functional.gelu(seen)
        stream = stream + self.out(seen)
        if self.way == "seen":
            return self.leave(stream + functional.gelu(stream))
        stream = stream + self.down(torch.tanh(self.up(self.second(stream))))
        return self.leave(self.last(stream))


def found(way: str, heads: int, size: int) -> tuple[nn.Module, Tensor, ParameterSymmetry]:
    """A block at generic weights, its inputs, and what is derived."""
    torch.manual_seed(0)
    model, x = randomise(Block(way, heads, size)).double(), torch.randn(30, 5, 7).double()
    return model, x, infer(record(model, (x,)))


def joined(symmetry: ParameterSymmetry) -> dict[str, int]:
    """The dimensions of the shifts that heads have together."""
    return {s.name: s.dimension for s in symmetry.shifts if "heads" in s.family}


SHAPES = [*product(["plain", "value bias"], [2, 3], [2, 3])]


@pytest.mark.parametrize(("way", "heads", "size"), SHAPES)
def test_heads_write_together_what_a_norm_does_not_see(way: str, heads: int, size: int) -> None:
    model, x, symmetry = found(way, heads, size)
    name = "shift:value.bias" if way == "value bias" else "shift:value.weight.unreceived"
    assert joined(symmetry) == {name: heads * size - (WIDTH - 1)}
    checked = verify(model, symmetry, (x,), limit=100)
    assert checked.error < 1e-11
    assert checked.control > 1e-3
    assert audit(model, (x,), symmetry=symmetry).unexplained == 0


@pytest.mark.parametrize("way", ["RMS norms", "no shares", "activated", "seen", "output bias"])
def test_nothing_is_written_where_it_is_seen_or_taken_up(way: str) -> None:
    model, x, symmetry = found(way, 2, 2)
    assert not joined(symmetry)
    assert verify(model, symmetry, (x,), limit=100).error < 1e-11


def test_narrow_heads_have_no_kernel() -> None:
    assert not joined(found("plain", 3, 1)[2])


def test_a_moved_copy_is_the_same_network() -> None:
    model, _, symmetry = found("plain", 2, 2)
    (name,) = joined(symmetry)
    state = model.state_dict()
    slide = symmetry.element({name: torch.tensor([1.0, -2.0, 0.5, 3.0]).double()})
    moved = act(symmetry, slide, state)
    assert not torch.allclose(moved["value.weight"], state["value.weight"])
    assert str(same_orbit(symmetry, state, moved).kind) == "EQUAL"

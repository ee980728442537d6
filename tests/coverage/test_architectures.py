"""Architectures as people write them: small networks, moved and audited."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.coverage.architectures_sequences import SEQUENCES
from tests.coverage.measure import measured

# Directions that are not found yet; each entry may only shrink.
MISSING = {
    "rwkv": 10,  # gains of a norm whose output is padded along time
    "diagonal": 5,  # phases: multiplication by the complex numbers beside a complex diagonal
    "complex_diagonal": 5,  # the same with complex parameters
    "attention_equal": 8,  # complex matrices over pairs of equal frequency, not only diagonal ones
    "attention_learned": 4,  # pairs of coordinates whose angles are parameters
    "gmlp": 1,  # a constant along the units that a convolution over time carries through
    "wav2vec": 4,  # the cause of these is not known
    "disentangled": 4,
    "transformer_xl": 20,
    "performer": 2,
    "conformer": 5,
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_sequence_model_is_explained(name: str) -> None:
    torch.manual_seed(0)
    found = measured(SEQUENCES[name]().double(), (torch.randn(8, 7, 11, dtype=torch.float64),))
    assert found.error < 1e-11
    assert not found.refuted
    assert found.unexplained <= MISSING.get(name, 0)


class Gated(nn.Module):
    """A stream behind a gate that is made of one vector."""

    def __init__(self, gate: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.gate, self.weight = gate, nn.Parameter(torch.rand(5))
        self.enter, self.leave = nn.Linear(11, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(torch.tanh(self.enter(x)) * self.gate(self.weight))


COMPLEMENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "one minus": lambda w: 1 - w,
    "rsub": lambda w: torch.rsub(w, 1),
    "another constant": lambda w: 0.5 - w,
    "minus one": lambda w: w - 1,
}


@pytest.mark.parametrize("name", COMPLEMENTS)
def test_a_complement_is_a_gain(name: str) -> None:
    torch.manual_seed(0)
    model = Gated(COMPLEMENTS[name]).double()
    found = measured(model, (torch.randn(8, 7, 11, dtype=torch.float64),))
    assert found.error < 1e-11
    assert not found.refuted
    assert found.unexplained == 0
    assert found.explained == 5


NO_GAINS: dict[str, Callable[[Tensor], Tensor]] = {
    "read twice": lambda w: w + torch.tanh(1 - w),
    "squashed": lambda w: torch.sigmoid(1 - w),
    "two origins": lambda w: (1 - w) * torch.tanh(2 - w),
}


@pytest.mark.parametrize("name", NO_GAINS)
def test_no_scale_where_a_complement_is_not_all_that_is_read(name: str) -> None:
    torch.manual_seed(0)
    model = Gated(NO_GAINS[name]).double()
    found = measured(model, (torch.randn(8, 7, 11, dtype=torch.float64),))
    assert found.error < 1e-11
    assert not found.refuted
    assert found.explained == 0


class Mixed(nn.Module):
    """γ·x + (1 - γ)·y: both gates read one vector, which cannot scale."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(5))
        self.left, self.right = nn.Linear(11, 5), nn.Linear(11, 5)
        self.leave = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        left, right = torch.tanh(self.left(x)), functional.silu(self.right(x))
        return self.leave(left * self.weight + right * (1 - self.weight))


def test_a_mixture_pins_its_gate() -> None:
    torch.manual_seed(0)
    found = measured(Mixed().double(), (torch.randn(8, 7, 11, dtype=torch.float64),))
    assert found.error < 1e-11
    assert not found.refuted
    assert found.unexplained == 0

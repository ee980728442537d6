"""Frequencies of a rotary embedding that are not trained stay, so that pairs turn."""

import pytest
import torch
from torch import Tensor, nn

from paramsym import audit, verify
from paramsym.algebra import ComplexScaling
from paramsym.recording.record import record
from paramsym.tracing.infer import infer
from tests.tracing.zoo import randomise

HEADS, HEAD, WIDTH = 2, 4, 7


class Turned(nn.Module):
    """Scores of queries and keys that positions turn, by frequencies kept as its name says."""

    def __init__(self, way: str):
        super().__init__()
        self.way = way
        self.query, self.key = (nn.Linear(WIDTH, HEADS * HEAD, bias=False) for _ in range(2))
        frequencies = torch.tensor([1.0, 0.3])
        if way in ("a parameter", "not trained"):
            self.frequencies = nn.Parameter(frequencies, requires_grad=way == "a parameter")
        else:
            self.register_buffer("frequencies", frequencies, persistent=way != "no state")
        if way == "a norm, too":
            self.norm = nn.BatchNorm1d(WIDTH)

    def turned(self, x: Tensor) -> Tensor:
        x = x.unflatten(-1, (HEADS, HEAD)).transpose(1, 2)
        angles = torch.arange(x.shape[-2]).to(x)[:, None] * self.frequencies
        a, b = x.chunk(2, -1)
        if self.way == "scaled":  # and is no rotation: each half has a gain of its own
            return torch.cat([a * angles, b * angles.sin()], -1)
        angles = torch.cat([angles, angles], -1)
        return x * angles.cos() + torch.cat([-b, a], -1) * angles.sin()

    def forward(self, x: Tensor) -> Tensor:
        values = x[:, None]
        if self.way == "a norm, too":
            x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        scores = self.turned(self.query(x)) @ self.turned(self.key(x)).mT
        return scores.softmax(-1) @ values


@pytest.mark.parametrize("way", ["a state", "no state", "a norm, too", "not trained"])
def test_pairs_turn_beside_frequencies_that_stay(way: str) -> None:
    model = randomise(Turned(way))
    x = (torch.randn(20, 5, WIDTH),)
    symmetry = infer(record(model, x))
    assert verify(model, symmetry, x).error < 1e-9
    found = audit(model, x, symmetry=symmetry)
    assert found.unexplained == 0 and not found.refuted
    assert any(isinstance(space.group, ComplexScaling) for space in symmetry.spaces.values())
    assert way == "no state" or "turns pairs" in symmetry.reasons["frequencies"][0]


@pytest.mark.parametrize("way", ["scaled", "a parameter"])
def test_what_turns_nothing_moves_as_it_did(way: str) -> None:
    """Scales of a buffer that is no angle, and a parameter, which is not held."""
    model = randomise(Turned(way))
    x = (torch.randn(20, 5, WIDTH),)
    symmetry = infer(record(model, x))
    assert verify(model, symmetry, x).error < 1e-9
    assert not any("turns pairs" in text for why in symmetry.reasons.values() for text in why)

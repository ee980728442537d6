"""Windows of one storage that are counted in different digits: whether they share an entry."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch import nn

from paramsym.primitives.blocks import Window, are_apart
from tests.coverage.measure import measured


def entries(window: Window) -> set[int]:
    start, slots = window
    steps = [[n * stride for n in range(length)] for stride, length in slots]
    return {start + sum(found) for found in itertools.product(*steps)}


@pytest.mark.parametrize("seed", range(40))
def test_apart_is_never_said_of_windows_that_meet(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(200):
        pair = []
        for _ in range(2):
            strides = draw.sample([0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 48], draw.randint(1, 3))
            slots = tuple((s, draw.randint(1, 6)) for s in strides)
            pair.append((draw.randint(0, 60), slots))
        if are_apart(*pair):
            assert not entries(pair[0]) & entries(pair[1])


def test_one_entry_that_stands_at_many_places_is_one_entry() -> None:
    assert are_apart((0, ((0, 5),)), (1, ((1, 4),)))
    assert not are_apart((3, ((0, 5),)), (0, ((1, 4),)))


def test_a_slot_is_counted_in_the_digits_of_another_window() -> None:
    values = (64, ((96, 2), (8, 4), (1, 8)))  # of two heads, four coordinates each
    turned = (0, ((96, 2), (16, 2), (8, 2), (1, 8)))  # queries in pairs
    assert are_apart(values, turned)
    assert not are_apart((8, values[1]), turned)


class Turned(nn.Module):
    """Fused attention under rotary embedding, without a bias but for the last (GPT-NeoX Japanese).

    The norm's bias moves with what queries and keys never receive, and with the last bias by way of
    the values: windows of one weight.
    """

    def __init__(self, biased: bool) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(10, 8), nn.LayerNorm(8)
        self.qkv, self.out = nn.Linear(8, 24, bias=False), nn.Linear(8, 8, bias=biased)
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        batch, time, _ = x.shape
        fused = self.qkv(self.norm(x)).view(batch, time, 2, 12).transpose(1, 2)
        query, key, value = fused.split(4, -1)
        angle = torch.arange(time)[:, None] * torch.tensor([1.0, 0.3, 1.0, 0.3])
        query, key = (
            z * angle.cos() + torch.cat([-z[..., 2:], z[..., :2]], -1) * angle.sin()
            for z in (query, key)
        )
        found = (query @ key.mT).softmax(-1) @ value
        return self.last((x + self.out(found.transpose(1, 2).reshape(batch, time, 8))).tanh())


@pytest.mark.parametrize(("biased", "missing"), [(True, 0), (False, 1)])
def test_a_bias_slides_against_windows_of_one_weight(biased: bool, missing: int) -> None:
    """Without the last bias one direction is left: values that write what the norm does not see."""
    found = measured(Turned(biased), (torch.randn(3, 6, 10),))
    assert found.error < 1e-9 and not found.refuted
    assert found.unexplained == missing

"""Copies that are counted on one axis, by what a parameter carries on a second axis as well."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.coverage.measure import Measured, measured

HEADS, WIDTH = 3, 2


class Decided(nn.Module):
    """Attention in which the values of all heads decide a mask for each head (Doge)."""

    def __init__(self, mask: str = "heads") -> None:
        super().__init__()
        wide = HEADS * WIDTH
        self.query, self.key, self.value = (nn.Linear(8, wide, bias=False) for _ in range(3))
        self.decide = nn.Linear(WIDTH if mask == "one" else wide, HEADS, bias=False)
        self.out, self.mask = nn.Linear(wide, 4), mask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (HEADS, WIDTH)).transpose(-2, -3)
            for layer in (self.query, self.key, self.value)
        )
        tokens = value.transpose(-2, -3)
        if self.mask == "one":  # one matrix reads the values of every head
            mask = self.decide(tokens).sum(-2)
        elif self.mask == "turned":  # what decides about a head reads the one before, too
            mask = self.decide((tokens + tokens.roll(1, -2)).flatten(-2))
        else:
            mask = self.decide(tokens.flatten(-2))
        scores = (query @ key.mT).tanh() + F.softplus(mask).mT[..., None, :]
        return self.out((scores.softmax(-1) @ value).transpose(-2, -3).flatten(-2)).tanh()


def test_weights_of_heads_over_heads_keep_a_basis_for_each_head() -> None:
    found = measured(Decided(), (torch.randn(3, 6, 8),))
    assert found.error < 1e-9 and not found.refuted
    assert (found.explained, found.unexplained) == (2 * HEADS * WIDTH**2, 0)


@pytest.mark.parametrize("mask", ["one", "turned"])
def test_one_reader_of_all_heads_joins_their_bases(mask: str) -> None:
    found = measured(Decided(mask), (torch.randn(3, 6, 8),))
    assert found.error < 1e-9 and not found.refuted
    for space in found.symmetry.spaces.values():
        if "vo" in space.name and space.group.dimension == WIDTH**2:
            assert not space.over


class Mixed(nn.Module):
    """Groups of coordinates that linear maps between all groups read and write, drawn at random."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.first = nn.Linear(5, HEADS * WIDTH, bias=draw.random() < 0.5)
        self.gate = nn.Linear(HEADS * WIDTH, HEADS, bias=draw.random() < 0.5)
        self.whole = nn.Parameter(torch.randn(HEADS, HEADS, WIDTH, WIDTH))
        self.last = nn.Linear(HEADS * WIDTH, 3)
        self.order = draw.choice(["ghij", "hgij"])
        self.steps = [draw.choice(["gate", "whole", "norm", "each"]) for _ in range(3)]
        self.each = nn.Parameter(torch.randn(HEADS, WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x).unflatten(-1, (HEADS, WIDTH))
        for step in self.steps:
            if step == "gate":
                h = h * self.gate(h.flatten(-2)).sigmoid()[..., None]
            elif step == "whole":
                h = torch.einsum(f"...hj,{self.order}->...gi", h, self.whole)
            elif step == "each":
                h = torch.einsum("...hj,hij->...hi", h, self.each)
            else:
                h = h / (h.square().sum(-1, keepdim=True) + 1.0).sqrt()
        return self.last(h.flatten(-2)).tanh()


@pytest.mark.parametrize("seed", range(12))
def test_groups_of_coordinates_at_random(seed: int) -> None:
    found: Measured = measured(Mixed(seed), (torch.randn(7, 5),), seed)
    assert found.error < 1e-9 and not found.refuted

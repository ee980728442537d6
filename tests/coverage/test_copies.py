"""Copies that are counted on one axis, by what a parameter carries on a second axis as well."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paramsym import verify
from paramsym.recording.record import record
from paramsym.structure.axes import spaces_of
from paramsym.tracing.infer import infer
from tests.coverage.measure import Measured, measured
from tests.tracing.zoo import randomise

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


class Counted(nn.Module):
    """Heads, and places of a memory, that one vector counts: it stands twice beside the basis."""

    def __init__(self, flat: bool, inner: bool):
        super().__init__()
        self.inner = inner
        self.enter = nn.Linear(5, 4)
        self.parts = nn.ParameterList(torch.randn(2, 3, 4) for _ in range(4))
        shape = (12,) if flat else (2, 2, 3)
        self.keys = nn.Parameter(torch.randn(shape))
        self.values = nn.Parameter(torch.randn(2, 2, 3))
        self.counts = nn.Parameter(torch.randn(2))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.enter(x))
        q, k, v = (torch.einsum("bnd,hed->bhne", x, w) for w in self.parts[:3])
        keys, values = self.keys.view(2, 2, 3), self.values * self.counts[None, :, None]
        keys = keys.transpose(0, 1) if self.inner else keys
        k = torch.cat([keys.expand(len(x), -1, -1, -1), k], 2)
        v = torch.cat([values.expand(len(x), -1, -1, -1), v], 2)
        y = (q @ k.mT).softmax(-1) @ v * torch.exp(self.counts)[:, None, None]
        return x + torch.einsum("bhne,hed->bnd", y, self.parts[3])


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("flat", [False, True])
def test_copies_are_told_by_the_place_that_is_meant(flat: bool, inner: bool) -> None:
    """The derivation alone: a type says the closest place, and where that is not meant, there is
    one basis for all copies."""
    torch.manual_seed(0)
    model, x = randomise(Counted(flat, inner)), torch.randn(3, 4, 5)
    symmetry = infer(record(model, (x,)))
    assert verify(model, symmetry, (x,), limit=100).error < 1e-11
    keys = [s for axis in symmetry.signature["keys"] for s in spaces_of(axis)]
    assert any(symmetry.group(s).dimension in (9, 18) for s in keys)

"""Translations that some readers absorb and others do not see."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paramsym import ParameterSymmetry
from tests.coverage.measure import measured

INPUTS = (torch.randn(8, 5, 6, generator=torch.Generator().manual_seed(1)),)


class Attention(nn.Module):
    """Attention on a stream without a norm, by scores of another kind; some readers lack a bias."""

    def __init__(self, width: int, kind: str, biased: str) -> None:
        super().__init__()
        self.kind = kind
        self.first = nn.Linear(6, 5)
        self.query = nn.Linear(5, width, bias="q" in biased)
        self.key = nn.Linear(5, width, bias="k" in biased)
        self.value = nn.Linear(5, 3, bias="v" in biased)
        self.out = nn.Linear(3, 5)
        self.last = nn.Linear(5, 7)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        q, k, v = self.query(h), self.key(h), self.value(h)
        if self.kind == "cosine":
            q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
            scores = (q @ k.mT).softmax(-1)
        elif self.kind == "gelu":
            scores = functional.gelu(q @ k.mT)
        else:
            scores = q.softmax(-1) @ k.softmax(1).mT
        return self.last(h + self.out(scores @ v))


def led_by(symmetry: ParameterSymmetry, name: str) -> int:
    """The dimension of the translations that start from a parameter."""
    return sum(s.dimension for s in symmetry.shifts if s.terms[0].target.parameter == name)


def moved_by_the_first_bias(symmetry: ParameterSymmetry) -> int:
    return sum(s.dimension for s in symmetry.shifts if "first.bias" in s.parameters)


@pytest.mark.parametrize("kind", ["cosine", "gelu"])
@pytest.mark.parametrize("biased", ["qv", "kv", "qkv", "v"])
def test_a_bias_moves_in_the_kernel_of_readers_that_cannot_absorb(kind: str, biased: str) -> None:
    found = measured(Attention(2, kind, biased), INPUTS)
    assert (found.refuted, found.unexplained) == ((), 0)
    assert found.error < 1e-12
    assert moved_by_the_first_bias(found.symmetry) > 0


@pytest.mark.parametrize("biased", ["qv", "kv", "v"])
def test_a_reader_without_a_kernel_holds_it(biased: str) -> None:
    found = measured(Attention(5, "cosine", biased), INPUTS)
    assert (found.refuted, found.unexplained) == ((), 0)
    assert moved_by_the_first_bias(found.symmetry) == 0


def test_what_nobody_absorbs_stays_even_in_a_kernel() -> None:
    """Without a bias the values show every direction that is in no kernel of theirs."""
    found = measured(Attention(2, "gelu", "qk"), INPUTS)
    assert (found.refuted, found.unexplained) == ((), 0)


def test_two_averages_one_after_the_other_are_an_average() -> None:
    found = measured(Attention(5, "softmax", "qkv"), INPUTS)
    assert found.error < 1e-12
    assert led_by(found.symmetry, "value.bias") == 3


def test_averages_along_another_axis_are_none() -> None:
    class Other(Attention):
        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            scores = self.query(h).softmax(1) @ self.key(h).softmax(1).mT
            return self.last(h + self.out(scores @ self.value(h)))

    found = measured(Other(4, "", "qkv"), INPUTS)
    assert found.error < 1e-12
    assert led_by(found.symmetry, "value.bias") == 0


def test_what_a_gate_multiplies_has_left_the_kernel() -> None:
    """P·δ is in the kernel of the last layer, and P·δ times a gate is not."""

    class Highway(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.gate = nn.Linear(6, 5), nn.Linear(5, 5)
            self.inner, self.last = nn.Linear(5, 5), nn.Linear(5, 3, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            gate = torch.sigmoid(self.gate(h))
            return self.last(torch.relu(self.inner(h)) * gate + h * (1 - gate))

    found = measured(Highway(), INPUTS, check=False)
    assert found.error < 1e-12
    assert (found.refuted, found.unexplained) == ((), 0)
    assert led_by(found.symmetry, "first.bias") == 0


class Tokens(nn.Module):
    """A table of tokens that is the last layer as well, behind a norm; positions or none."""

    def __init__(self, positions: bool, bias: bool, normed: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 5)
        self.positions = nn.Embedding(7, 5) if positions else None
        self.first = nn.LayerNorm(5)
        self.inner = nn.Linear(5, 5)
        self.norm = nn.LayerNorm(5) if normed else nn.Identity()
        self.bias = nn.Parameter(torch.zeros(11)) if bias else None

    def forward(self, ids: Tensor) -> Tensor:
        h = self.words(ids)
        if self.positions is not None:
            h = h + self.positions(torch.arange(ids.shape[1]))
        h = self.norm(functional.gelu(self.inner(self.first(h))))
        return functional.linear(h, self.words.weight, self.bias)


IDS = (torch.randint(0, 11, (8, 5), generator=torch.Generator().manual_seed(1)),)


@pytest.mark.parametrize("positions", [True, False], ids=["positions", "none"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "bare"])
@pytest.mark.parametrize("normed", [True, False], ids=["norm", "plain"])
def test_a_tied_table_slides_along_what_its_head_never_receives(
    positions: bool, bias: bool, normed: bool
) -> None:
    found = measured(Tokens(positions, bias, normed), IDS)
    assert found.refuted == ()
    assert found.error < 1e-12
    assert not positions or found.unexplained == 0  # else eleven vectors are all that it reads
    assert (led_by(found.symmetry, "words.weight") == 1) == (positions and bias and normed)


class Bare(nn.Module):
    """A table of tokens that is the last layer as well, behind a norm without a bias: nanoGPT."""

    def __init__(self, norm: nn.Module, positions: bool = True) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(70, 5), norm
        self.positions = nn.Embedding(6, 5) if positions else None

    def forward(self, ids: Tensor) -> Tensor:
        h = self.words(ids)
        if self.positions is not None:
            h = h + self.positions(torch.arange(ids.shape[1]))
        return functional.linear(self.norm(h), self.words.weight)


@pytest.mark.parametrize("name", ["centred", "biased", "root mean square", "no positions"])
def test_a_tied_table_slides_along_what_its_head_never_sees(name: str) -> None:
    """Along 1/γ the head sees nothing of what the positions take back; a bias it would see."""
    norms = {"biased": nn.LayerNorm(5), "root mean square": nn.RMSNorm(5, eps=0.01)}
    model = Bare(norms.get(name, nn.LayerNorm(5, bias=False)), name != "no positions")
    ids = torch.randint(0, 70, (12, 6), generator=torch.Generator().manual_seed(0))
    found = measured(model, (ids,))
    assert (found.refuted, found.unexplained) == ((), 0) and found.error < 1e-12
    assert (led_by(found.symmetry, "words.weight") == 1) == (name == "centred")

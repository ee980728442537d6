"""Outputs that are the rounding of what cancels deny nothing; outputs that are small do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import paramsym

NOISE: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda y: y.softmax(-1).sum(-1) - 1,
    "length": lambda y: nn.functional.normalize(y, dim=-1).square().sum(-1) - 1,
    "centred": lambda y: (y - y.mean(-1, keepdim=True)).sum(-1, keepdim=True),
    "one number": lambda y: y.softmax(-1).sum() - len(y),
}


class Two(nn.Module):
    """A perceptron, and a function of what it gives."""

    def __init__(self, beside: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.beside = nn.Linear(6, 5), nn.Linear(5, 4), beside

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.b(torch.relu(self.a(x)))
        return y, self.beside(y)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", NOISE)
def test_an_output_that_is_rounding_denies_nothing(name: str, seed: int) -> None:
    torch.manual_seed(seed)
    model, inputs = Two(NOISE[name]), (torch.randn(16, 6),)
    symmetry = paramsym.find_symmetry(model, inputs)
    assert str(symmetry.spaces["mlp"].group) == "Monomial(5)"
    assert paramsym.verify(model, symmetry, inputs).error < 1e-6
    found = paramsym.audit(model, inputs)
    assert (found.explained, found.unexplained, found.refuted) == (5, 0, {})


@pytest.mark.parametrize("seed", range(4))
def test_a_sample_whose_outputs_vanish_denies_nothing(seed: int) -> None:
    """Where all pixels are alike, an instance norm leaves nothing but rounding."""
    torch.manual_seed(seed)
    norm = nn.Sequential(nn.Conv1d(3, 4, 1), nn.InstanceNorm1d(4), nn.Conv1d(4, 5, 1, bias=False))
    found = paramsym.audit(norm, (torch.randn(8, 3, 7),))
    assert (found.unexplained, found.refuted) == (0, {})


@pytest.mark.parametrize("size", [1.0, 1e-9, 1e-12, 1e-15])
def test_what_is_small_is_seen_beside_what_is_large(size: float) -> None:
    """The control: another head, however small its outputs are."""
    head = nn.Linear(4, 3)
    model, inputs = Two(lambda y: size * head(y.tanh())), (torch.randn(16, 6),)
    model.head = head
    found = paramsym.audit(model, inputs)
    assert (found.explained, found.unexplained, found.dead) == (5, 0, 0)


class Wrong(nn.Module):
    """Claims the scales of ReLU for a unit that a small output sees by itself."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.a, self.b, self.size = nn.Linear(6, 5), nn.Linear(5, 4), size

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.relu(self.a(x))
        return self.b(hidden), self.size * hidden.square().sum(-1)


@pytest.mark.parametrize("size", [1.0, 1e-9, 1e-12, 1e-15])
def test_a_small_output_denies_what_is_wrong(size: float) -> None:
    """The control: what holds for the large output alone is refuted by the small one."""
    model, inputs = Wrong(size), (torch.randn(16, 6),)
    claimed = paramsym.find_symmetry(model, inputs, outputs=lambda found: found[0])
    assert paramsym.verify(model, claimed, inputs).error > 1e-3
    assert paramsym.audit(model, inputs, symmetry=claimed).refuted


class FarOut(nn.Module):
    """Attention whose queries are exponentials: at large inputs a derivative is what terms of 1e100
    that cancel leave. A constant of the keys moves nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(5, 8), nn.Linear(5, 8), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        z = self.q(x).unflatten(-1, (2, 4))
        scores = (z - z[..., :1]).exp().flatten(-2) @ self.k(x).transpose(-1, -2)
        return (scores - scores.logsumexp(-1, keepdim=True)).exp() @ self.v(x)


@pytest.mark.parametrize("seed", range(4))
def test_a_derivative_that_is_rounding_denies_nothing(seed: int) -> None:
    torch.manual_seed(100)
    model, inputs = FarOut(), (torch.randn(6, 5, 5),)
    symmetry = paramsym.find_symmetry(model, inputs)
    assert sum(s.dimension for s in symmetry.shifts if "k.bias" in s.parameters) == 8
    found = paramsym.audit(model, inputs, generator=torch.Generator().manual_seed(seed))
    assert found.refuted == {}


class Opened(nn.Module):
    """A network with a gate that only inputs far out open; what it leads to is unread without."""

    def __init__(self, closed: bool) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 6), nn.Linear(6, 3), nn.Linear(5, 3)
        self.closed = closed

    def forward(self, x: Tensor) -> Tensor:
        y = self.c(x.tanh())
        return y if self.closed else y + torch.relu(x[..., :1] - 40) * self.b(self.a(x).tanh())


def test_what_only_inputs_far_out_see_is_still_denied() -> None:
    """The control: a claim that the function itself denies, where usual inputs see nothing."""
    inputs = (torch.randn(6, 5, 5, generator=torch.Generator().manual_seed(0)),)
    claimed = paramsym.find_symmetry(Opened(True), inputs)
    assert set(claimed.dead) == {"a.weight", "a.bias", "b.weight", "b.bias"}
    part = replace(claimed, dead=("a.weight", "b.weight"))  # what nobody claims is hunted
    assert paramsym.audit(Opened(True), inputs, symmetry=part).refuted == {}
    assert paramsym.audit(Opened(False), inputs, symmetry=part).refuted


class Masked(nn.Module):
    """Masked weights with a unit that usual inputs do not open, and one that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 6), nn.Linear(6, 4)
        self.register_buffer("first", (torch.rand(6, 5) > 0.4).double())
        self.register_buffer("second", (torch.rand(4, 6) > 0.4).double())
        self.second[:, 2] = 0
        nn.init.constant_(self.a.bias[1], -30.0)

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.linear(x, self.first * self.a.weight, self.a.bias)
        return nn.functional.linear(hidden.relu(), self.second * self.b.weight, self.b.bias)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_left_of_a_claim_by_rounding_denies_nothing(seed: int) -> None:
    """A velocity of masked entries alone has 1e-10 in others, which far inputs bring to life."""
    torch.manual_seed(seed)
    found = paramsym.audit(Masked().double(), (torch.randn(20, 5, dtype=torch.float64),))
    assert (found.refuted, found.unexplained) == ({}, 0)

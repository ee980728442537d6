"""Layer norms, centrings and variances that are written out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.coverage.measure import Measured, measured

INPUTS = (torch.randn(8, 3, 6, generator=torch.Generator().manual_seed(2)),)
EPSILON = 1e-5


def with_the_function(h: Tensor) -> Tensor:
    return functional.layer_norm(h, h.shape[-1:], eps=EPSILON)


def centred_twice(h: Tensor) -> Tensor:
    mean = h.mean(-1, keepdim=True)
    variance = (h - mean).pow(2).mean(-1, keepdim=True)
    return (h - mean) * torch.rsqrt(variance + EPSILON)


def in_another_precision(h: Tensor) -> Tensor:
    return centred_twice(h.to(torch.float64)).to(h.dtype)


def without_keepdim(h: Tensor) -> Tensor:
    centred = h - h.mean(-1)[..., None]
    return centred / (centred.square().mean(-1).unsqueeze(-1) + EPSILON).sqrt()


def by_variance(h: Tensor) -> Tensor:
    variance = h.var(-1, unbiased=False, keepdim=True)
    return (h - h.mean(-1, keepdim=True)) / torch.sqrt(variance + EPSILON)


class Residual(nn.Module):
    """Two blocks on a stream that only norms read."""

    def __init__(self, norm: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.norm = norm
        self.enter = nn.Linear(6, 5)
        self.inner = nn.ModuleList([nn.Linear(5, 4, bias=False) for _ in range(2)])
        self.outer = nn.ModuleList([nn.Linear(4, 5) for _ in range(2)])
        self.gains = nn.ParameterList([torch.ones(5) for _ in range(3)])
        self.leave = nn.Linear(5, 7)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        for inner, outer, gain in zip(self.inner, self.outer, self.gains, strict=False):
            h = h + outer(torch.tanh(inner(self.norm(h) * gain)))
        return self.leave(self.norm(h) * self.gains[2])


def count(norm: Callable[[Tensor], Tensor]) -> Measured:
    torch.manual_seed(0)
    found = measured(Residual(norm), INPUTS)
    assert found.error < 1e-12
    assert found.refuted == ()
    return found


@pytest.mark.parametrize(
    "norm", [centred_twice, in_another_precision, without_keepdim, by_variance],
    ids=lambda norm: norm.__name__,
)  # fmt: skip
def test_a_norm_by_hand_has_the_freedom_of_the_function(norm: Callable[[Tensor], Tensor]) -> None:
    found, expected = count(norm), count(with_the_function)
    assert (found.explained, found.unexplained) == (expected.explained, 0)
    assert expected.unexplained == 0


def test_means_over_another_axis_hide_nothing_along_this_one() -> None:
    def other(h: Tensor) -> Tensor:
        return h - h.mean(1, keepdim=True)

    found = count(lambda h: torch.tanh(other(h)))
    shared = [s for s in found.symmetry.shifts if "enter.weight" in s.parameters]
    assert found.unexplained == 0
    assert not shared


def test_what_is_nearly_a_centring_keeps_the_ones() -> None:
    """Half of the mean, or the mean of something else, still shows a common shift."""
    for nearly in (
        lambda h: h - 0.5 * h.mean(-1, keepdim=True),
        lambda h: h - h.relu().mean(-1, keepdim=True),
        lambda h: h - h.flip(0).mean(-1, keepdim=True),
        lambda h: h.mean(-1, keepdim=True) - h[..., :1],
    ):
        found = count(lambda h, f=nearly: torch.tanh(f(h) + 0 * h))
        assert not [s for s in found.symmetry.shifts if s.parameters == ("enter.weight",)], (
            found.symmetry.shifts
        )


class Dueling(nn.Module):
    """A value and advantages, joined in one of several ways."""

    def __init__(self, join: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.join = join
        self.inner = nn.Linear(6, 5)
        self.value, self.advantage = nn.Linear(5, 1), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.inner(x))
        return self.join(self.value(h), self.advantage(h))


@pytest.mark.parametrize(
    ("join", "free"),
    {
        "by hand": (lambda v, a: v + a - a.mean(-1, keepdim=True), 6),
        "the other way": (lambda v, a: a + v - a.mean(dim=-1, keepdim=True), 6),
        "in brackets": (lambda v, a: v + (a - a.mean(-1, keepdim=True)), 6),
        "in place": (lambda v, a: (v + a).sub_(a.mean(-1, keepdim=True)), 6),
        "of the value": (lambda v, a: v + a - v.mean(-1, keepdim=True), 6),
        "over time": (lambda v, a: v + a - a.mean(1, keepdim=True), 4),
        "of a function": (lambda v, a: v + a - a.tanh().mean(-1, keepdim=True), 0),
    }.values(),
    ids=["by hand", "the other way", "in brackets", "in place", "of the value", "over time",
         "of a function"],
)  # fmt: skip
def test_a_dueling_head_loses_a_common_advantage(
    join: Callable[[Tensor, Tensor], Tensor], free: int
) -> None:
    torch.manual_seed(0)
    found = measured(Dueling(join), INPUTS)
    assert found.error < 1e-12
    assert (found.refuted, found.unexplained) == ((), 0)
    assert found.explained == free

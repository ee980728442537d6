"""Linear maps along another axis, and places given by data: what they must let pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.coverage.measure import Measured, measured

GENERATOR = torch.Generator().manual_seed(3)
NODES = torch.randn(5, 6, generator=GENERATOR).double()
SOURCES = torch.tensor([0, 1, 2, 3, 4, 4, 0, 2])
TARGETS = torch.tensor([1, 2, 3, 4, 0, 1, 2, 0])  # every node has an edge

Aggregate = Callable[[Tensor, Tensor, int], Tensor]


class Messages(nn.Module):
    """A message-passing network by hand: read nodes of edges, transform, put them to targets."""

    def __init__(self, aggregate: Aggregate) -> None:
        super().__init__()
        self.aggregate = aggregate
        self.embed = nn.Linear(6, 5)
        self.message = nn.Sequential(nn.Linear(10, 7), nn.ReLU(), nn.Linear(7, 4))
        self.update = nn.Sequential(nn.Linear(9, 6), nn.ReLU(), nn.Linear(6, 3))

    def forward(self, x: Tensor, sources: Tensor = SOURCES, targets: Tensor = TARGETS) -> Tensor:
        h = self.embed(x)
        messages = self.message(torch.cat([h[sources], h[targets]], -1))
        gathered = self.aggregate(messages, targets, len(x))
        return self.update(torch.cat([h, gathered], -1))


def wide(index: Tensor, like: Tensor) -> Tensor:
    return index[:, None].expand_as(like)


def counted(m: Tensor, at: Tensor, n: int) -> Tensor:
    """Sums divided by the number of edges."""
    total = m.new_zeros(n, m.shape[1]).index_add_(0, at, m)
    count = m.new_zeros(n).index_add_(0, at, torch.ones_like(at, dtype=m.dtype))
    return total / count.clamp(min=1)[:, None]


SUMS: dict[str, Aggregate] = {
    "index_add": lambda m, at, n: torch.zeros(n, m.shape[1], dtype=m.dtype).index_add(0, at, m),
    "index_add_": lambda m, at, n: m.new_zeros(n, m.shape[1]).index_add_(0, at, m),
    "scatter_add": lambda m, at, n: m.new_zeros(n, 4).scatter_add(0, wide(at, m), m),
    "scatter_add_ repeat": lambda m, at, n: m.new_zeros(n, 4).scatter_add_(
        0, at.unsqueeze(-1).repeat(1, 4), m),
    "scatter_reduce": lambda m, at, n: m.new_zeros(n, 4).scatter_reduce(0, wide(at, m), m, "sum"),
    "index_put": lambda m, at, n: m.new_zeros(n, 4).index_put((at,), m, accumulate=True),
    "index_put_": lambda m, at, n: m.new_zeros(n, 4).index_put_((at,), m, accumulate=True),
}  # fmt: skip
MEANS: dict[str, Aggregate] = {
    "scatter_reduce": lambda m, at, n: m.new_zeros(n, 4).scatter_reduce(
        0, wide(at, m), m, "mean", include_self=False),
    "index_reduce": lambda m, at, n: m.new_zeros(n, 4).index_reduce(
        0, at, m, "mean", include_self=False),
    "count": counted,
}  # fmt: skip


def sound(found: Measured) -> Measured:
    assert found.refuted == ()
    assert found.error < 1e-10
    return found


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("given", [False, True], ids=["constant", "input"])
def test_sums_over_edges_let_every_basis_pass(name: str, given: bool) -> None:
    inputs = (NODES, SOURCES, TARGETS) if given else (NODES,)
    found = sound(measured(Messages(SUMS[name]).double(), inputs))
    assert (found.explained, found.unexplained) == (59, 0)


@pytest.mark.parametrize("name", MEANS)
def test_means_over_known_edges_let_constants_pass(name: str) -> None:
    found = sound(measured(Messages(MEANS[name]).double(), (NODES,)))
    assert (found.explained, found.unexplained) == (63, 0)
    unknown = sound(measured(Messages(MEANS[name]).double(), (NODES, SOURCES, TARGETS)))
    assert (unknown.explained, unknown.unexplained) == (59, 0)  # a node may have no edge


def test_a_mean_that_counts_the_start_lets_no_constant_pass() -> None:
    def half(m: Tensor, at: Tensor, n: int) -> Tensor:
        return m.new_zeros(n, 4).scatter_reduce(0, wide(at, m), m, "mean")

    assert sound(measured(Messages(half).double(), (NODES,))).explained == 59


def test_places_that_differ_by_unit_hold_the_units() -> None:
    def turned(m: Tensor, at: Tensor, n: int) -> Tensor:
        places = (at[:, None] + torch.arange(4)) % n
        return m.new_zeros(n, 4).scatter_add(0, places, m)

    assert sound(measured(Messages(turned).double(), (NODES,))).explained < 59


def test_products_over_edges_are_held() -> None:
    def product(m: Tensor, at: Tensor, n: int) -> Tensor:
        return m.new_ones(n, 4).scatter_reduce(0, wide(at, m), m, "prod")

    assert sound(measured(Messages(product).double(), (NODES,))).explained < 59

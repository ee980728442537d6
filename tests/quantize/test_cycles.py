"""The worst cycle against all cycles, and thresholds against a general solver."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from paramsym.quantize.excess import Policies
from paramsym.quantize.thresholds import Cuts

NODES = 6


def all_cycles(tail: np.ndarray, head: np.ndarray) -> Iterator[list[int]]:
    """Every simple cycle, by its edges, once for each node that it may start at."""

    def grown(path: list[int]) -> Iterator[list[int]]:
        for edge in np.flatnonzero(tail == head[path[-1]]).tolist():
            if head[edge] == tail[path[0]]:
                yield [*path, edge]
            elif head[edge] not in tail[path] and head[edge] != tail[path[0]]:
                yield from grown([*path, edge])

    for edge in range(len(tail)):
        if head[edge] == tail[edge]:
            yield [edge]
        else:
            yield from grown([edge])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 14))
def test_the_worst_cycle_is_the_worst_of_all_and_potentials_prove_it(seed: int, edges: int) -> None:
    draw = np.random.default_rng(seed)
    tail, head = draw.integers(0, NODES, (2, edges))
    policies = Policies(NODES, tail, head, np.zeros(NODES))
    for _ in range(2):  # the second time from the potentials and the policy of the first
        weights = draw.normal(size=edges)
        mean, found, proved = policies.worst(weights)
        assert proved
        means = [weights[c].mean() for c in all_cycles(tail, head)]
        assert mean == pytest.approx(max(means, default=-np.inf), abs=1e-12)
        if means:
            assert weights[found[-1]].mean() == pytest.approx(mean, abs=1e-12)
            np.testing.assert_array_equal(head[found[-1]], np.roll(tail[found[-1]], -1))
            d = policies.potentials
            assert (weights - mean + d[head] - d[tail]).max() < 1e-11
            # a smaller mean has no such potentials: around the cycle they cancel
            assert (weights - (mean - 0.1) + d[head] - d[tail]).max() > 1e-3


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 14))
def test_rivals_are_closed_walks_and_those_through_the_root_miss_no_better_cycle(
    seed: int, edges: int
) -> None:
    draw = np.random.default_rng(seed)
    tail, head = draw.integers(0, NODES, (2, edges))
    policies = Policies(NODES, tail, head, np.zeros(NODES))
    weights = 0.02 * draw.normal(size=edges)  # all within the slack that is looked at
    mean, _, _ = policies.worst(weights)
    kinds = np.arange(edges)  # each edge is a kind of its own
    rivals = policies.rivals(kinds)
    assert bool(rivals) == (mean > -np.inf)
    for walk in rivals:
        assert sorted(tail[walk]) == sorted(head[walk])
        assert weights[walk].mean() <= mean + 1e-12
    if policies.choice is None or not rivals:
        return
    ends, _ = policies._paths(policies.choice, mean)
    root = int(policies.nodes[policies.root])
    for edge in np.flatnonzero(ends[policies.place[head]] == policies.root):
        through = [(weights[c] - mean).sum() for c in all_cycles(tail, head)
                   if edge in c and root in tail[c]]  # fmt: skip
        found = [(weights[walk] - mean).sum() for walk in rivals if edge in walk]
        assert max(found, default=-np.inf) >= max(through, default=-np.inf) - 1e-9


def drawn(seed: int, count: int = 8, tensors: int = 3) -> Cuts:
    """Cycles through tensors, of which the last has one threshold for both signs."""
    draw = np.random.default_rng(seed)
    cuts = Cuts(tensors, np.arange(tensors - 1))
    for _ in range(count):
        length = int(draw.integers(1, 6))
        slots, sizes = draw.integers(0, 2 * tensors, length), draw.normal(size=length)
        cuts.add([np.arange(length)], slots, sizes)
    return cuts


def heights(cuts: Cuts, x: np.ndarray) -> np.ndarray:
    """Σ log|w| − Σ log q per edge of each cycle, from the thresholds of its slots."""
    q = cuts.thresholds(x).reshape(-1, 2)[cuts.parted]
    return np.array(cuts.means) - np.stack(cuts.shares) @ q.T.ravel()


@pytest.mark.parametrize("seed", range(8))
def test_the_best_thresholds_are_those_of_a_general_solver(seed: int) -> None:
    cuts = drawn(seed)
    x, bound = cuts.best(np.zeros(2))
    assert heights(cuts, x).max() == pytest.approx(bound, abs=1e-10)
    found = minimize(
        lambda z: z[-1], np.r_[np.zeros(2), 10.0], method="SLSQP",
        constraints={"type": "ineq", "fun": lambda z: z[-1] - heights(cuts, z[:-1])},
        options={"ftol": 1e-14, "maxiter": 500},
    )  # fmt: skip
    assert bound <= found.fun + 1e-7
    assert bound == pytest.approx(found.fun, abs=1e-5)  # where SLSQP goes to infinity, it is late
    for step in np.random.default_rng(seed).normal(size=(20, 2)):
        assert heights(cuts, x + step).max() >= bound  # no thresholds are below the bound


def test_a_cycle_counts_once() -> None:
    cuts = drawn(0, count=0)
    slots, sizes = np.array([0, 1, 2]), np.array([0.3, -1.0, 2.0])
    around = [np.array([0, 1, 2]), np.array([1, 2, 0])]
    assert cuts.add(around, slots, sizes)
    assert len(cuts) == 1
    assert not cuts.add(around[1:], slots, sizes)
    assert cuts.add(around[1:], slots, sizes + 1e-6)
    assert len(cuts) == 2

"""What an audit takes, stated before it starts, and how far it has come."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from paramsym.checking.jacobian import Network, Plan, planned
from paramsym.checking.orthogonal import PANEL

_ACHIEVED = 0.8  # of the rate of products of matrices, by elimination as a whole
_THIN = 1000  # operations per entry of the factors that inverse iteration costs, or might have
_PASSES = 500  # the same per entry of the Jacobian for lengths, combinations and compaction
_COPIES = 5  # of the claimed directions
_MOVED = 1 << 25  # entries of rows that are moved at once, and of what is measured on the way
_TICKS = 100  # steps of a progress bar
_TIMED = 100_000  # parameters up to which a whole batch of rows is timed


@dataclass(frozen=True)
class Cost:
    """What an audit takes, stated before it starts.

    Hunting suspects comes on top: at most as many forward passes as `hunt` says. `bytes` is what is
    allocated at the peak beyond the model: rows of the Jacobian, the claimed directions, and what
    calls in one pass keep.
    """

    parameters: int
    outputs: int  # entries per call
    calls: int
    rows: int  # of the Jacobian, per call
    bytes: int
    seconds: float  # estimated, one thread
    rate: float = 1e10  # measured, multiplications and additions in a second

    def __str__(self) -> str:
        return (
            f"{self.parameters} parameters, {self.calls} calls with {self.outputs} outputs each, "
            f"{self.bytes / 1e9:.2g} GB, about {self.seconds:.2g} s"
        )


def cost_of(network: Network, claimed: int, samples: int | None = None) -> Cost:
    """The cost, from a timed pass of calls, a timed product of matrices, and counted operations.

    Args:
        network: the model as a function of its parameters.
        claimed: how many independent directions are claimed, or about so many.
        samples: the number of calls, if it is given.
    """
    p, d = network.count, min(claimed, network.count)
    outputs = network.outputs_of_fresh_inputs()[0].numel()
    plan = planned(p - d, outputs, samples, network.covering)
    each = plan.each if p <= _TIMED else 1
    at_once = next(network.passes(plan.calls, each), 1)
    network.rows(1)  # the first call of an operator is slow
    start = time.perf_counter()
    network.rows(each, [1.0] * at_once)
    called = (time.perf_counter() - start) / at_once * (1 + (plan.each - each) / 16)
    m, n = plan.rows, p - d
    eliminated = m * n**2 - n**3 / 3
    thin = _THIN * n**2 + _PASSES * m * p  # memory is what these wait for
    rate = _ACHIEVED * _rate(torch.get_num_threads())
    seconds = plan.calls * called + (3 * p * d**2 + eliminated + thin) / rate
    held = m * p + 2 * plan.each * p + _COPIES * p * d + _MOVED
    held += network.room.entries(at_once, plan.each)
    return Cost(p, outputs, plan.calls, plan.each, 8 * held, seconds, rate)


def plan_of(cost: Cost) -> Plan:
    """The calls that a cost was stated for."""
    return Plan(cost.calls, cost.rows)


@cache
def _rate(threads: int) -> float:
    """Multiplications and additions in a second, in products of the shape that takes the time.

    Measured once for so many threads: it takes as long as the audit of a small model.
    """
    panel, columns = torch.ones(2000, PANEL).double(), torch.ones(2000, 256).double()
    best = float("inf")
    for _ in range(4):
        start = time.perf_counter()
        columns.addmm_(panel, panel.T @ columns, alpha=-1e-9)
        best = min(best, time.perf_counter() - start)
    return 4 * panel.numel() * columns.shape[1] / best


class Meter:
    """Work in seconds, told to a progress bar of a hundred steps."""

    def __init__(self, cost: Cost, step: Callable[[], None]) -> None:
        self.cost, self.step = cost, step
        self.spent, self.ticks = 0.0, 0

    @property
    def total(self) -> int:
        return _TICKS

    def seconds(self, spent: float) -> None:
        """So many seconds of the estimate are done."""
        self.spent += spent
        due = int(_TICKS * self.spent / max(self.cost.seconds, 1e-9))
        while self.ticks < min(due, _TICKS):
            self.ticks += 1
            self.step()

    def operations(self, count: float) -> None:
        """So many multiplications and additions are done."""
        self.seconds(count / self.cost.rate)

"""Mixed-integer search on a box with HiGHS: numerical evidence, never a certificate.

Both networks are written with one binary variable per hidden unit (y >= z, y >= 0,
y <= z - l(1-s), y <= u·s, interval bounds l <= z <= u) and ±(f_o - g_o) is maximised. HiGHS works
to about 1e-6, so "no difference found" is reported as evidence only; an input that it finds
counts once both networks have been evaluated there exactly.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from paramsym.relu.domains import Box
from paramsym.relu.network import Network
from paramsym.relu.rationals import nearest_float


@dataclass(frozen=True)
class BoxEvidence:
    """What HiGHS found on a box.

    Attributes:
        bound: its upper bound on |f - g| over outputs; inf if the time ended first.
        points: the maximisers, (k, d), to be evaluated exactly.
        seconds: the time spent.
    """

    bound: float
    points: np.ndarray
    seconds: float


Form = tuple[dict[int, float], float]  # coefficients by variable, and the offset


class _Program:
    """max cost·v where low <= v <= high, some v are integers and each row is at least a value."""

    def __init__(self) -> None:
        self.low: list[float] = []
        self.high: list[float] = []
        self.integer: list[int] = []
        self.rows: list[dict[int, float]] = []
        self.least: list[float] = []

    def variable(self, low: float, high: float, integer: bool = False) -> int:
        self.low.append(low)
        self.high.append(high)
        self.integer.append(int(integer))
        return len(self.low) - 1

    def at_least(self, row: dict[int, float], value: float) -> None:
        self.rows.append(row)
        self.least.append(value)

    def constraints(self) -> list[Any]:
        """The rows in the form of SciPy."""
        from scipy.optimize import LinearConstraint
        from scipy.sparse import coo_array

        entries = [(i, j, v) for i, row in enumerate(self.rows) for j, v in row.items()]
        if not entries:
            return []
        i, j, v = (np.array(c) for c in zip(*entries, strict=True))
        table = coo_array((v, (i, j)), shape=(len(self.rows), len(self.low))).tocsr()
        least: Any = np.array(self.least)  # SciPy's stubs know scalar bounds only
        return [LinearConstraint(table, least, np.inf)]

    def difference(self, left: Form, right: Form) -> tuple[np.ndarray, float]:
        """The difference of two forms, as its coefficients at all variables and its offset."""
        cost = np.zeros(len(self.low))
        for side, (row, _) in ((1.0, left), (-1.0, right)):
            for index, value in row.items():
                cost[index] += side * value
        return cost, left[1] - right[1]

    def maximise(self, cost: np.ndarray, constraints: list[Any], seconds: float) -> Any:
        """HiGHS's result for max cost·(all variables), or None if it does not come in time."""
        from scipy.optimize import Bounds, milp

        low: Any = np.array(self.low)
        high: Any = np.array(self.high)
        return _aside(
            partial(
                milp,
                -cost,
                integrality=np.array(self.integer),
                bounds=Bounds(low, high),
                constraints=constraints,
                options={"time_limit": seconds},
            ),
            seconds + 0.5,
        )


def maximise_on_box(a: Network, b: Network, box: Box, seconds: float) -> BoxEvidence:
    """Maximise |f - g| on a box within a time limit."""
    began = time.perf_counter()
    lower = np.array([nearest_float(v) for v in box.lower])
    upper = np.array([nearest_float(v) for v in box.upper])
    program = _Program()
    inputs = [program.variable(lo, hi) for lo, hi in zip(lower, upper, strict=True)]
    outputs = [_encode(program, net, inputs, lower, upper) for net in (a, b)]
    constraints = program.constraints()
    goals = [
        (sign * cost, sign * shift)
        for cost, shift in (program.difference(f, g) for f, g in zip(*outputs, strict=True))
        for sign in (1.0, -1.0)
    ]
    points, bound = [], 0.0
    for number, (cost, shift) in enumerate(goals):
        left = seconds - (time.perf_counter() - began)
        if left <= 0:
            bound = np.inf
            break
        result = program.maximise(cost, constraints, left / (len(goals) - number))
        if result is not None and result.x is not None:
            points.append(np.clip(result.x[: len(inputs)], lower, upper))
        bound = max(bound, _bound(result, shift))
    return BoxEvidence(
        float(bound), np.array(points).reshape(-1, len(lower)), time.perf_counter() - began
    )


def _bound(result: Any, shift: float) -> float:
    """The upper bound on the maximum that HiGHS reached; inf if it has none."""
    dual = getattr(result, "mip_dual_bound", None)
    if result is not None and result.status == 0 and result.fun is not None:
        return -result.fun + shift
    return -dual + shift if dual is not None and np.isfinite(dual) else np.inf


def _aside(call: Callable[[], Any], seconds: float) -> Any:
    """The result of a call in a thread of its own, or None if it is not back in time.

    HiGHS looks at its time limit now and then only, and never at an interrupt; waiting for it in
    Python does both. A call that is left behind ends at its own limit.
    """
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    until = time.perf_counter() + seconds
    while thread.is_alive() and time.perf_counter() < until:
        thread.join(0.05)
    return results[0] if results else None


def _encode(
    program: _Program, net: Network, inputs: list[int], low: np.ndarray, high: np.ndarray
) -> list[Form]:
    """Add the variables of one network; its outputs as forms in them."""
    below, lo, hi = inputs, low, high
    for index, (weight, bias) in enumerate(net.floats):
        plus, minus = np.maximum(weight, 0), np.minimum(weight, 0)
        z_low, z_high = plus @ lo + minus @ hi + bias, plus @ hi + minus @ lo + bias
        if index == net.depth:
            return [
                ({below[k]: float(w) for k, w in enumerate(row) if w}, float(t))
                for row, t in zip(weight, bias, strict=True)
            ]
        made = []
        for unit, row in enumerate(weight):
            l_, u_, t = float(z_low[unit]), float(z_high[unit]), float(bias[unit])
            y = program.variable(0.0, max(u_, 0.0))
            made.append(y)
            z = {below[k]: -float(w) for k, w in enumerate(row) if w}
            if u_ <= 0:
                continue
            program.at_least({y: 1.0, **z}, t)  # y >= z
            if l_ >= 0:
                program.at_least({y: -1.0, **{k: -v for k, v in z.items()}}, -t)
                continue
            s = program.variable(0.0, 1.0, integer=True)
            # y <= z - l (1 - s)  and  y <= u s
            program.at_least({y: -1.0, s: l_, **{k: -v for k, v in z.items()}}, -t + l_)
            program.at_least({y: -1.0, s: u_}, 0.0)
        below, lo, hi = made, np.maximum(z_low, 0), np.maximum(z_high, 0)
    raise AssertionError("a network without layers")

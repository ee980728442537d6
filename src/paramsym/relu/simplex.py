"""Linear programs over the rationals, solved exactly: minimise cost·v with A v = b and v >= 0.

Proofs of a sign have no room for a tolerance: the largest value of a unit that is never active is
often exactly 0. The tableau is kept in integers over one common denominator (each division is
exact), so that entries stay determinants of the input and no fraction is ever reduced.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import NamedTuple

from paramsym.relu.arithmetic import fmpq, fmpq_mat
from paramsym.relu.clock import tick
from paramsym.relu.rationals import ONE, column, dot

Integers = Sequence[int]
_GREEDY = 60  # pivots by the steepest cost before Bland's rule, which cannot cycle


class Answer(enum.Enum):
    """What a program has: an optimum, no feasible point, or feasible points of any small cost."""

    OPTIMAL = enum.auto()
    INFEASIBLE = enum.auto()
    UNBOUNDED = enum.auto()


class Solution(NamedTuple):
    """The outcome of a program.

    Attributes:
        point: OPTIMAL: the optimal v. UNBOUNDED: a direction r >= 0 with A r = 0, cost·r = -1.
        prices: OPTIMAL: π with π·A <= cost and π·b the optimum. INFEASIBLE: π with π·A <= 0 < π·b.
    """

    answer: Answer
    point: list[fmpq]
    prices: list[fmpq]
    value: fmpq


def minimise(columns: Sequence[Integers], target: Integers, cost: Integers) -> Solution:
    """Minimise cost·v over v >= 0 with Σ v_j columns_j = target, by the two-phase simplex method.

    Args:
        columns: n columns of m integers.
        target: m integers.
        cost: n integers.

    Raises `OutOfTime` where the clock is set.
    """
    tableau = _Tableau(columns, target, cost)
    if tableau.improve(phase=1) is None and tableau.table[-2][-1] == 0:
        entering = tableau.improve(phase=2)
        if entering is None:
            value = fmpq(-tableau.table[-1][-1], tableau.scale)
            return Solution(Answer.OPTIMAL, tableau.point(), tableau.prices(2), value)
        return Solution(Answer.UNBOUNDED, tableau.direction(entering), [], fmpq(0))
    return Solution(Answer.INFEASIBLE, [], tableau.prices(1), fmpq(0))


def open_half_space(vectors: Sequence[Sequence[fmpq]], dimension: int) -> list[fmpq] | None:
    """u with u·c > 0 for each vector c, or None if some λ >= 0, λ != 0 has Σ λ c = 0.

    By Gordan's theorem exactly one of the two exists. The second is the feasibility of
    {λ >= 0, Σ λ_j (c_j, 1) = (0, 1)}; where that fails, prices π have π·(c_j, 1) <= 0 < π_last, so
    that u = -π without its last entry is the first.
    """
    if not vectors:
        return [ONE] * dimension
    columns = [integers([*c, ONE]) for c in vectors]  # positive multiples, for other λ
    found = minimise(columns, [0] * dimension + [1], [0] * len(columns))
    if found.answer is not Answer.INFEASIBLE:
        return None
    direction = [-price for price in found.prices[:-1]]
    if any(dot(direction, c) <= 0 for c in vectors):
        raise AssertionError("the simplex method failed: a bug of paramsym")
    return direction


class _Tableau:
    """Rows scale·B⁻¹[A | b], then the reduced costs of both phases; the last column is b.

    Unknown n + i is the slack of equation i, which phase 1 drives out; its column is not kept.
    """

    def __init__(self, columns: Sequence[Integers], target: Integers, cost: Integers) -> None:
        m, n = len(target), len(columns)
        self.m, self.n, self.scale, self.pivots = m, n, 1, 0
        self.columns, self.cost = columns, cost
        self.signs = [-1 if v < 0 else 1 for v in target]
        self.table: list[list[int]] = []
        for i, sign in enumerate(self.signs):
            self.table.append([*(sign * entries[i] for entries in columns), sign * target[i]])
        self.table.append([-sum(row[j] for row in self.table) for j in range(n + 1)])
        self.table.append([*cost, 0])
        self.basis = list(range(n, n + m))

    def improve(self, phase: int) -> int | None:
        """Pivot until no cost is negative (None), or a column without limit is found."""
        while True:
            tick()
            costs = self.table[self.m + phase - 1]
            entering = self._entering(costs)
            if entering is None:
                return None
            leaving = self._leaving(entering)
            if leaving is None:
                return entering
            self._pivot(leaving, entering)

    def _entering(self, costs: list[int]) -> int | None:
        if self.pivots < _GREEDY:
            least = min(range(self.n), key=costs.__getitem__, default=None)
            return least if least is not None and costs[least] < 0 else None
        return next((j for j in range(self.n) if costs[j] < 0), None)

    def _leaving(self, entering: int) -> int | None:
        """The row that limits the column most; of several the one of the smallest unknown."""
        best: int | None = None
        for i in range(self.m):
            row = self.table[i]
            entry, size = row[entering], row[-1]
            if entry and not size and self.basis[i] >= self.n:
                return i  # a slack of phase 1 that must stay 0
            if entry <= 0:
                continue
            if best is None:
                best = i
                continue
            held = self.table[best]
            gap = size * held[entering] - held[-1] * entry
            if gap < 0 or (gap == 0 and self.basis[i] < self.basis[best]):
                best = i
        return best

    def _pivot(self, leaving: int, entering: int) -> None:
        chosen = self.table[leaving]
        if chosen[entering] < 0:
            chosen = [-v for v in chosen]
            self.table[leaving] = chosen
        lead, scale = chosen[entering], self.scale
        for i, row in enumerate(self.table):
            factor = row[entering]
            if i == leaving:
                continue
            tick()
            if factor:
                self.table[i] = [
                    (lead * v - factor * c) // scale for v, c in zip(row, chosen, strict=True)
                ]
            elif lead != scale:
                self.table[i] = [lead * v // scale if v else 0 for v in row]
        self.scale = lead
        self.basis[leaving] = entering
        self.pivots += 1

    def point(self) -> list[fmpq]:
        """The basic solution."""
        found = [fmpq(0)] * self.n
        for i, j in enumerate(self.basis):
            if j < self.n:
                found[j] = fmpq(self.table[i][-1], self.scale)
        return found

    def direction(self, entering: int) -> list[fmpq]:
        """v + t·direction stays feasible for all t >= 0, at a cost that falls by t."""
        fall = -self.table[self.m + 1][entering]
        found = [fmpq(0)] * self.n
        found[entering] = fmpq(self.scale, fall)
        for i, j in enumerate(self.basis):
            if j < self.n:
                found[j] = fmpq(-self.table[i][entering], fall)
        return found

    def prices(self, phase: int) -> list[fmpq]:
        """π with π·B = the costs of the basis in that phase, B in the equations of the caller."""
        rows: list[fmpq] = []
        wanted = []
        for j in self.basis:
            slack = j >= self.n
            if slack:
                rows += [fmpq(s * (i == j - self.n)) for i, s in enumerate(self.signs)]
            else:
                rows += [fmpq(v) for v in self.columns[j]]
            wanted.append(fmpq(int(slack) if phase == 1 else 0 if slack else self.cost[j]))
        if not wanted:
            return []
        return (fmpq_mat(self.m, self.m, rows).inv() * column(wanted)).entries()


def integers(row: Sequence[fmpq]) -> list[int]:
    """The positive multiple of a row with coprime integer entries (zeros stay zero)."""
    scale = 1
    for v in row:
        scale = math.lcm(scale, int(v.q))
    found = [int(v.p) * (scale // int(v.q)) for v in row]
    common = math.gcd(*found)
    return [v // common for v in found] if common > 1 else found

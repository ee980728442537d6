"""Gordan's alternative for rational vectors, decided by phase one of an exact simplex method.

For vectors c_1 … c_n, none zero, exactly one of the two has a solution: u with u·c_j > 0 for all j
(they lie in an open half-space), or λ >= 0, λ != 0 with Σ λ_j c_j = 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from paramsym.relu.arithmetic import fmpq
from paramsym.relu.rationals import ONE, ZERO, along, dot


def open_half_space(vectors: Sequence[Sequence[fmpq]], dimension: int) -> list[fmpq] | None:
    """u with u·c > 0 for each vector c, or None if some λ >= 0, λ != 0 has Σ λ c = 0.

    The second is the feasibility of {λ >= 0, Σ λ_j c_j = 0, Σ λ_j = 1}; where that fails, a dual
    solution y has y·(c_j, 1) <= 0 for all j and y_last > 0, and u = -y without its last entry.
    """
    if not vectors:
        return [ONE] * dimension
    program = _PhaseOne([[*c, ONE] for c in vectors], [ZERO] * dimension + [ONE])
    program.solve()
    if program.infeasibility == 0:
        return None
    direction = [-y for y in program.dual[:-1]]
    if any(dot(direction, c) <= 0 for c in vectors):
        raise AssertionError("the simplex method failed: a bug of paramsym")
    return direction


class _PhaseOne:
    """The tableau of: minimise Σ_i s_i where s_i + Σ_j λ_j column_j[i] = right_i, λ, s >= 0.

    Each row holds the coefficients of λ, those of the artificial variables s, and the right side
    (>= 0); `cost` holds the reduced costs in the same order and then minus the objective, and
    `basis` the variable that each row is solved for.
    """

    def __init__(self, columns: list[list[fmpq]], right: list[fmpq]) -> None:
        size, self.count = len(right), len(columns)
        self.rows = [
            [*(c[i] for c in columns), *(ONE if k == i else ZERO for k in range(size)), right[i]]
            for i in range(size)
        ]
        self.basis = [self.count + i for i in range(size)]
        self.cost = [-sum(entries, ZERO) for entries in zip(*self.rows, strict=True)]
        self.cost[self.count : -1] = [ZERO] * size

    def solve(self) -> None:
        """Pivot by Bland's rule, which never cycles, until no λ has a negative reduced cost."""
        while True:
            enter = next((j for j in range(self.count) if self.cost[j] < 0), None)
            if enter is None:
                return
            self._pivot(self._leaving(enter), enter)

    def _leaving(self, enter: int) -> int:
        """The row of the least ratio, of several the one with the least basic variable."""
        ratios = [
            (row[-1] / row[enter], self.basis[i], i)
            for i, row in enumerate(self.rows)
            if row[enter] > 0
        ]
        assert ratios  # the objective is bounded below by zero
        return min(ratios)[-1]

    def _pivot(self, leave: int, enter: int) -> None:
        solved = [v / self.rows[leave][enter] for v in self.rows[leave]]
        self.rows = [along(row, -row[enter], solved) if row[enter] else row for row in self.rows]
        self.rows[leave] = solved
        self.cost = along(self.cost, -self.cost[enter], solved)
        self.basis[leave] = enter

    @property
    def infeasibility(self) -> fmpq:
        """The least Σ s: zero iff Σ_j λ_j column_j = right has a solution λ >= 0."""
        return -self.cost[-1]

    @property
    def dual(self) -> list[fmpq]:
        """y: the reduced cost of the artificial variable i is 1 - y_i."""
        return [ONE - c for c in self.cost[self.count : -1]]

"""Exact solution of the sparse linear systems of scales (over ℚ) and signs (over GF(2)).

Nearly all equations relate two unknowns or set one to zero; a weighted union–find takes them in
constant time. The few others (products of two moving tensors) go through Gaussian elimination on
the representatives that are left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

Number = int | Fraction  # integers stay integers: they are ten times faster
Row = dict[Any, Number]


def exact(x: Number) -> Number:
    """An integer where possible."""
    return x.numerator if x.denominator == 1 else x


def _divide(a: Number, b: Number) -> Number:
    if b == 1:
        return a
    return -a if b == -1 else exact(Fraction(a) / b)


class System:
    """A homogeneous linear system; `modulo` 2 for signs."""

    def __init__(self, modulo: int = 0):
        self.modulo = modulo
        self.parent: dict[Any, tuple[Any, Number]] = {}
        self.zero: set[Any] = set()
        self.rows: list[list[tuple[Number, Any]]] = []
        self.why: dict[Any, str] = {}  # what pinned a representative
        self.older: set[Any] = set()  # these stay representatives before all others

    def find(self, unknown: Any) -> tuple[Any, Number]:
        """(representative, ratio) with unknown = ratio · representative."""
        ratio = 1
        path = []
        while unknown in self.parent:
            path.append((unknown, ratio))
            unknown, step = self.parent[unknown]
            ratio *= step
        for node, before in path:
            self.parent[node] = (unknown, _divide(ratio, before))
        return unknown, ratio

    def add(self, equation: Sequence[tuple[Number, Any]], reason: str = "") -> None:
        """Demand Σ coefficient·unknown = 0; the reason is kept where it pins an unknown."""
        total: Row = defaultdict(int)
        for coefficient, unknown in equation:
            representative, ratio = self.find(unknown)
            total[representative] += coefficient * ratio
        terms = [(self._reduce(c), u) for u, c in total.items()]
        terms = [(c, u) for c, u in terms if c and u not in self.zero]
        if not terms:
            return
        if len(terms) == 1:
            self.zero.add(terms[0][1])
            self.why.setdefault(terms[0][1], reason)
        elif len(terms) == 2 and (self.modulo or all(terms)):
            (a, x), (b, y) = terms
            if x in self.older and y not in self.older:
                (a, x), (b, y) = terms[::-1]
            self.parent[x] = (y, self._reduce(_divide(-b, a)))
        else:
            self.rows.append(terms)

    def _reduce(self, c: Number) -> Number:
        if not self.modulo:
            return c
        if c.denominator % 2 == 0:
            return 1  # roots of positive numbers carry no sign; keep them pinned
        return (c.numerator * c.denominator) % 2

    def solve(self, weight: dict[Any, int]) -> list[Row]:
        """A basis of the solutions as {representative: value}.

        Representatives with the largest weight stay free, so that the solutions are as simple as
        possible on the unknowns that matter.
        """
        self.simplify()
        total: dict[Any, int] = defaultdict(int)
        for unknown, w in weight.items():
            representative, _ = self.find(unknown)
            if representative not in self.zero:
                total[representative] += w
        rows = [self._merged(row) for row in sorted(self.rows, key=len)]
        solved: dict[Any, Row] = {}  # pivot -> the others
        for row in rows:
            row = self._substitute(row, solved)
            if not row:
                continue
            pivot = min(row, key=lambda u: (total.get(u, 0), u))
            scale = row.pop(pivot)
            expression = {u: self._reduce(_divide(-c, scale)) for u, c in row.items()}
            for other, known in solved.items():
                if pivot in known:
                    solved[other] = self._substitute(known, {pivot: expression})
            solved[pivot] = expression
        free = {u for u in total if u not in solved}
        for expression in solved.values():
            free.update(expression)
        basis = []
        for unknown in sorted(free, key=lambda u: (-total.get(u, 0), u)):
            solution: Row = {unknown: 1}
            for pivot, expression in solved.items():
                if expression.get(unknown):
                    solution[pivot] = expression[unknown]
            basis.append(solution)
        return basis

    def simplify(self) -> None:
        """Let what is known by now shorten the rows, until nothing changes."""
        before = None
        while before != (len(self.parent), len(self.zero)):
            before = (len(self.parent), len(self.zero))
            rows, self.rows = self.rows, []
            for row in rows:
                self.add(row)

    @staticmethod
    def _merged(terms: list[tuple[Number, Any]]) -> Row:
        merged: Row = defaultdict(int)
        for c, u in terms:
            merged[u] += c
        return {u: c for u, c in merged.items() if c}

    def _substitute(self, row: Row, solved: dict[Any, Row]) -> Row:
        result: Row = defaultdict(int)
        for unknown, c in row.items():
            for other, d in solved.get(unknown, {unknown: 1}).items():
                result[other] += c * d
        return {u: r for u, c in result.items() if (r := self._reduce(c))}

    def spread(self, members: Iterable[Any]) -> dict[Any, list[tuple[Any, Number]]]:
        """The members of each representative with their ratios, without those that are zero."""
        table: dict[Any, list[tuple[Any, Number]]] = defaultdict(list)
        for unknown in members:
            representative, ratio = self.find(unknown)
            if representative not in self.zero:
                table[representative].append((unknown, ratio))
        return table

    def value(self, unknown: Any, solution: Row) -> Number:
        """The value of any unknown in a solution."""
        representative, ratio = self.find(unknown)
        if representative in self.zero:
            return 0
        return self._reduce(ratio * solution.get(representative, 0))

"""Which scales may be negative: their powers, read modulo 2, as signs that meet all equations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from paramsym.primitives.sites import Unknown
from paramsym.primitives.solve import Number, System

_Equation = frozenset[object]  # the unknowns whose sum is even; None among them stands for one


class Signs:
    """The equations for signs of one component, asked for scales of parameters."""

    def __init__(self, signs: System, members: Iterable[Unknown]):
        self.zero = signs.zero
        self.found = {unknown: signs.find(unknown) for unknown in members}
        roots = (root for root, ratio in self.found.values() if ratio)
        self.size = Counter(root for root in roots if root not in self.zero)
        self.rows = [[(int(c), signs.find(u)[0]) for c, u in row] for row in signs.rows]

    def allow(self, exponents: Mapping[Unknown, Number]) -> bool:
        """Whether signs of parameters meet all equations, with whole powers of scales as theirs."""
        odd: Counter[object] = Counter()
        for unknown, power in exponents.items():
            if int(power) % 2 and unknown in self.found:
                root, ratio = self.found[unknown]
                if root in self.zero:
                    return False
                odd[root] += bool(ratio)
        whole = all(count in (0, self.size[root]) for root, count in odd.items())
        return whole and _can_be_met(self._between(row, odd) for row in self.rows)

    def _between(self, row: list[tuple[int, object]], odd: Mapping[object, int]) -> _Equation:
        """What an equation says of unknowns that no parameter decides: those of activations."""
        left: set[object] = set()
        for c, root in row:
            if c % 2 and root not in self.zero:
                left ^= {root} if root not in self.size else {None} if odd[root] else set()
        return frozenset(left)


def _can_be_met(equations: Iterable[_Equation]) -> bool:
    """Whether some unknowns meet all equations: none of them, summed, says that one is even."""
    pivots: dict[object, _Equation] = {}
    for equation in equations:
        while lead := next((u for u in equation if u is not None), None):
            if lead not in pivots:
                pivots[lead] = equation
                break
            equation = equation ^ pivots[lead]
        else:
            if equation:
                return False
    return True

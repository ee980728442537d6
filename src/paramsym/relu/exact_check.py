"""The independent checker of canonical forms, and exact evaluation at random inputs.

Nothing here calls the code that finds certificates: the hidden units are grouped as the certificate
says, and what the groups claim is added up anew.
"""

from __future__ import annotations

import random
from typing import Any

from paramsym.relu.arithmetic import fmpq
from paramsym.relu.clock import tick
from paramsym.relu.domains import Domain
from paramsym.relu.network import Network
from paramsym.relu.rationals import ONE, ZERO, rational

Row = list[fmpq]


def agree_at_random(a: Network, b: Network, domain: Domain, points: int = 4) -> bool:
    """Exact evaluation at a few random points of the domain: a check that can fail."""
    rng = random.Random(20260518)
    for _ in range(points):
        x = [rational(v) for v in domain.draw(rng)]
        if domain.contains(x) and a.evaluate(x) != b.evaluate(x):
            return False
    return True


def check_canonical(a: Network, b: Network, domain: Domain, groups: Any) -> bool:
    """Re-add a partition of the hidden neurons of both networks by hyperplane.

    `groups` is a list of lists of (network 0/1, neuron); neurons in no group must be constant,
    linear or dead on the domain. In each group all rows must be proportional and the signed sums
    Σ ±|scale|·(outgoing column) must vanish; then f - g is affine and is compared entry by entry.
    """
    if a.depth > 1 or b.depth > 1:
        return False
    gap = _Difference(a, b)
    return gap.fold(groups) and gap.straight(domain) and gap.vanishes()


class _Difference:
    """f - g: the hidden neurons that are left, and the affine part that is settled."""

    def __init__(self, a: Network, b: Network) -> None:
        self.d = a.input_dim
        self.affine = [[ZERO] * (self.d + 1) for _ in range(a.output_dim)]
        self.left: dict[tuple[int, int], tuple[Row, Row]] = {}  # neuron ↦ (row, ±outgoing)
        for which, net in enumerate((a, b)):
            self._read(which, net)

    def _read(self, which: int, net: Network) -> None:
        share = ONE if which == 0 else -ONE
        final = net.exact[-1]
        table = [[share * v for v in row] for row in final.weight.tolist()]
        self._add([ZERO] * self.d + [ONE], [share * v for v in final.bias])
        if net.depth == 0:
            for k in range(self.d):
                unit = [ONE if i == k else ZERO for i in range(self.d + 1)]
                self._add(unit, [row[k] for row in table])
            return
        weight, bias = net.exact[0]
        for unit, row in enumerate(weight.tolist()):
            self.left[which, unit] = ([*row, bias[unit]], [out[unit] for out in table])

    def _add(self, row: Row, out: Row) -> None:
        """Add out·rowᵀ to the affine part."""
        for total, c in zip(self.affine, out, strict=True):
            if c:
                for i, v in enumerate(row):
                    total[i] += c * v

    def fold(self, groups: Any) -> bool:
        """Take out neurons of one hyperplane each: half of their rows is affine, the kinks cancel.

        relu(u) = u/2 + |u|/2.
        """
        for group in groups:
            members = [self.left.pop(tuple(member), None) for member in group]
            held = [member for member in members if member is not None]
            if not held or len(held) < len(members) or not self._kinks_cancel(held):
                return False
            for row, out in held:
                self._add(row, [v / 2 for v in out])
        return True

    def _kinks_cancel(self, members: list[tuple[Row, Row]]) -> bool:
        """Whether the rows are multiples of one that is not constant, and Σ |factor|·out is 0."""
        first = members[0][0]
        lead = next((i for i in reversed(range(self.d)) if first[i]), None)
        if lead is None:
            return False
        total = [ZERO] * len(self.affine)
        for row, out in members:
            tick()
            factor = row[lead] / first[lead]
            if not factor or any(v != factor * u for v, u in zip(row, first, strict=True)):
                return False
            total = [s + abs(factor) * c for s, c in zip(total, out, strict=True)]
        return not any(total)

    def straight(self, domain: Domain) -> bool:
        """Take out the rest, where the domain shows the sign of each neuron that is read."""
        for row, out in self.left.values():
            if not any(out):
                continue
            tick()
            side = domain.side(row[: self.d], row[self.d])
            if side == 0:
                return False
            if side > 0:
                self._add(row, out)
        return True

    def vanishes(self) -> bool:
        """Whether the affine part is zero."""
        return not any(v for row in self.affine for v in row)

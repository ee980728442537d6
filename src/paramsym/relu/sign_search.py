"""Proofs that a unit keeps one sign on the image of the layers below, without enumerating cells.

To prove p <= 0 for a later unit, relax each y = relu(z) below it to y >= 0, y >= z and maximise p,
a linear program in the inputs and these y. Where the optimum cheats (some y is larger than
relu(z)), that unit is split: y = z >= 0, or y = 0 >= z. A node of this tree is closed by the
multipliers of its program, which are rational.

Over one layer only units of positive weight are split: four of them give 16 leaves at most, where
the joint cells count hundreds. Where p is positive somewhere after all, the program ends at such an
input, however small the part of the image is on which the unit fires: a candidate for a witness.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paramsym.relu.arithmetic import fmpq
from paramsym.relu.clock import tick
from paramsym.relu.domains import Ball, Box, Domain, Orthant
from paramsym.relu.logs import Leaf, Split
from paramsym.relu.network import Network
from paramsym.relu.rationals import ONE, ZERO, dot, sign
from paramsym.relu.simplex import Answer, integers, minimise

Row = list[fmpq]
Place = tuple[int, int]  # (hidden layer from 0, unit)
Signs = Mapping[Place, int]

_NODES = 2048  # of one tree


@dataclass
class _Node:
    """The program of one node: rows (form, offset) that are >= 0, and what each bounds.

    Attributes:
        rows: forms in (inputs, open units, 1).
        places: (layer, unit) where the row is a multiplier of that unit's pre-activation.
        target: the form to be shown <= 0.
        under: the pre-activation of every unit, as a form.
        open: the column of each open unit.
    """

    rows: list[Row]
    places: list[Place | None]
    target: Row
    under: dict[Place, Row]
    open: dict[Place, int]


class Prover:
    """The tree that proves -sign·p <= 0 for one unit, p its pre-activation, or a part of that.

    The part is what p reads of all units of the layer before except those of `without`.

    Attributes:
        refuted: an input of the domain with -sign·p > 0, if one was met.
    """

    def __init__(
        self,
        net: Network,
        domain: Domain,
        known: Signs,
        layer: int,
        unit: int,
        side: int,
        without: tuple[int, ...] = (),
    ) -> None:
        self.net, self.domain, self.layer, self.side = net, domain, layer, side
        self.refuted: Row | None = None
        self.tables = [part.weight.tolist() for part in net.exact[:layer]]
        self.row = [-side * v for v in net.exact[layer].weight.tolist()[unit]]
        for k in without:
            self.row[k] = ZERO
        self.bias = -side * net.exact[layer].bias[unit]
        self.known = {place: s for place, s in known.items() if place[0] < layer}
        self.needed = self._needed()
        self.nodes = 0

    def _needed(self) -> list[list[int]]:
        """Per layer the units that the target depends on."""
        found: list[list[int]] = []
        rows = [self.row]
        for layer in reversed(range(self.layer)):
            units = [k for k in range(len(rows[0])) if any(row[k] for row in rows)]
            units = [k for k in units if self.known.get((layer, k)) != -1]
            found.insert(0, units)
            rows = [self.tables[layer][k] for k in units] or [[ZERO] * self.net.widths[layer]]
        return found

    def tree(self) -> list[Split | Leaf] | None:
        """Splits and leaves in preorder, or None: refuted, or too large."""
        return self._grow(self.known, 0)

    def _grow(self, signs: Signs, depth: int) -> list[Split | Leaf] | None:
        tick()
        self.nodes += 1
        if self.nodes > _NODES:
            return None
        node = self._node(signs)
        chosen = self._settle(node, signs, depth)
        if chosen is None or isinstance(chosen, Leaf):
            return None if chosen is None else [chosen]
        grown: list[Split | Leaf] = [Split(*chosen)]
        for side in (1, -1):
            part = self._grow({**signs, chosen: side}, depth + 1)
            if part is None:
                return None
            grown += part
        return grown

    def _node(self, signs: Signs) -> _Node:
        d = self.net.input_dim
        places = [(j, k) for j, units in enumerate(self.needed) for k in units]
        free = [place for place in places if place not in signs]
        column = {place: d + i for i, place in enumerate(free)}
        size = d + len(free) + 1
        values: list[Row | None] = [_basis(size, i) for i in range(d)]
        rows, at = _ends(self.domain, size), [None] * len(_ends(self.domain, size))
        node = _Node(rows, list(at), [], {}, column)
        for j, units in enumerate(self.needed):
            bias = self.net.exact[j].bias
            after: list[Row | None] = [None] * len(bias)
            for k in units:
                z = _form(self.tables[j][k], bias[k], values, size)
                node.under[j, k] = z
                side = signs.get((j, k))
                if side is None:
                    y = _basis(size, column[j, k])
                    rows += [y, [p - q for p, q in zip(y, z, strict=True)]]
                    node.places += [None, (j, k)]
                    after[k] = y
                else:
                    rows.append(z if side > 0 else [-v for v in z])
                    node.places.append((j, k))
                    after[k] = z if side > 0 else None
            values = after
        node.target = _form(self.row, self.bias, values, size)
        return node

    def _settle(self, node: _Node, signs: Signs, depth: int) -> Leaf | Place | None:
        """The leaf that closes a node, the unit to split, or None where p is positive."""
        table = [integers(row) for row in node.rows]
        goal = integers(node.target)
        found = minimise([r[:-1] for r in table], [-v for v in goal[:-1]], [r[-1] for r in table])
        if found.answer is Answer.OPTIMAL and found.value + goal[-1] <= 0:
            share = _factor(node.target, goal)
            return self._leaf(node, signs, table, [v / share for v in found.point], 1)
        if found.answer is Answer.UNBOUNDED:
            return self._leaf(node, signs, table, found.point, 0)
        ray = found.answer is Answer.INFEASIBLE
        if ray and depth > 1:
            closed = minimise(table, [0] * (len(goal) - 1) + [-1], [0] * len(table))
            if closed.answer is Answer.OPTIMAL:
                return self._leaf(node, signs, table, closed.point, 0)
        at = [-v for v in found.prices] + [ZERO if ray else ONE]
        self.refuted = self._positive(at[: self.net.input_dim], ray)
        return self._cheating(node, at) if self.refuted is None else None

    def _cheating(self, node: _Node, at: Row) -> Place | None:
        """The open unit whose y exceeds relu(z) most at a point, or in a direction."""
        worst, most = None, ZERO
        for place, k in node.open.items():
            gap = at[k] - max(dot(node.under[place], at), ZERO)
            if gap > most:
                worst, most = place, gap
        return worst

    def _leaf(
        self, node: _Node, signs: Signs, table: list[list[int]], factors: Row, goal: int
    ) -> Leaf:
        """Multipliers as the slopes at which each unit's value is bounded by its pre-activation."""
        held: dict[Place, fmpq] = {}
        for place, row, whole, v in zip(node.places, node.rows, table, factors, strict=True):
            if place is not None and v:
                held[place] = v * _factor(row, whole)
        slopes: list[tuple[tuple[int, fmpq], ...]] = []
        weights = [goal * v for v in self.row]
        for j in reversed(range(self.layer)):
            chosen = []
            for k in self.needed[j]:
                extra = held.get((j, k), ZERO)
                slope = weights[k] + extra if signs.get((j, k)) == 1 else -extra
                if slope:
                    chosen.append((k, slope))
            slopes.insert(0, tuple(chosen))
            weights = [
                sum((s * self.tables[j][k][i] for k, s in chosen), ZERO)
                for i in range(self.net.widths[j])
            ]
        return Leaf(goal, tuple(slopes))

    def _positive(self, x: Row, ray: bool) -> Row | None:
        """The input, or one far out in its direction, if the target is positive there."""
        if not ray:
            good = self.domain.contains(x) and self.value(x, ONE) > 0
            return x if good else None
        if self.value(x, ZERO) <= 0:
            return None
        start = self.domain.centre()
        for power in range(0, 400, 8):
            tick()
            point = [s + v * (1 << power) for s, v in zip(start, x, strict=True)]
            if self.value(point, ONE) > 0:
                return point if self.domain.contains(point) else None
        return None

    def value(self, x: Row, one: fmpq) -> fmpq:
        """-sign·p at x, every bias multiplied by `one`."""
        values = x
        for table, part in zip(self.tables, self.net.exact, strict=False):
            rows = zip(table, part.bias, strict=True)
            values = [max(dot(row, values) + one * t, ZERO) for row, t in rows]
        return dot(self.row, values) + one * self.bias


def _basis(size: int, place: int) -> Row:
    return [ONE if i == place else ZERO for i in range(size)]


def _form(row: Row, bias: fmpq, values: list[Row | None], size: int) -> Row:
    total = [ZERO] * size
    total[-1] = bias
    for w, form in zip(row, values, strict=True):
        tick()
        if w and form is not None:
            for i, v in enumerate(form):
                if v:
                    total[i] += w * v
    return total


def _ends(domain: Domain, size: int) -> list[Row]:
    """Inequalities of the domain, of a ball those of the box around it."""
    d = domain.dimension
    if isinstance(domain, Orthant):
        return [_basis(size, i) for i in range(d)]
    if isinstance(domain, Ball):
        far = (domain.radius,) * d
        domain = Box(tuple(-v for v in far), far)
    if not isinstance(domain, Box):
        return []
    rows: list[Row] = []
    for i, (low, high) in enumerate(zip(domain.lower, domain.upper, strict=True)):
        for side, end in ((1, low), (-1, high)):
            row = [side * v for v in _basis(size, i)]
            row[-1] = -side * end
            rows.append(row)
    return rows


def _factor(row: Row, whole: list[int]) -> fmpq:
    """The factor by which a row was multiplied to make it integer."""
    return next((fmpq(w) / v for v, w in zip(row, whole, strict=True) if sign(v)), ONE)

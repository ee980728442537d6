"""The independent checker of cell certificates.

It rebuilds the tree of decisions from the log in rationals, without rays: a neuron that the log
does not cut needs a proof of its sign, sign·form = Σ λ_i·(inequality i) + λ·1 with λ >= 0
(Farkas), which is solved for exactly on the inequalities that the log names and, where those do
not XX
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import Any

import numpy as np

from paramsym.relu.arithmetic import fmpq, fmpq_mat
from paramsym.relu.clock import tick
from paramsym.relu.domains import Box, Domain, Everywhere, Orthant
from paramsym.relu.network import Network
from paramsym.relu.rationals import ZERO, dot, nearest_float, rational

Row = list[fmpq]


def check_cells(a: Network, b: Network, domain: Domain, data: Any) -> bool:
    """Replay {"lift", "base", "steps"}: True iff the leaves cover the domain and f = g on each."""
    return checked_cells(a, b, domain, {**data, "bounds": []}) == (0.0, 0.0)


def checked_cells(a: Network, b: Network, domain: Domain, data: Any) -> tuple[float, float] | None:
    """Replay a tree with bounds: (offset, slope) with |f - g| <= offset + slope·|x|.

    `bounds` has one entry per leaf on which the affine maps differ, in order; each is proved by
    Farkas multipliers on its cell. None if anything fails.
    """
    lift, base, steps = data["lift"], list(data["base"]), data["steps"]
    if lift.nrows() != a.input_dim or len(base) != a.input_dim:
        return None
    start = _start(a, b, domain, lift, base)
    if start is None:
        return None
    walk = _Walk((a, b), lift, base, steps, list(data["bounds"]))
    done = all(walk.cell(cell) for cell in start) and walk.at == len(steps)
    return (walk.offset, walk.slope) if done and walk.leaf == len(walk.bounds) else None


def _start(
    a: Network, b: Network, domain: Domain, lift: fmpq_mat, base: Row
) -> Iterable[list[Row]] | None:
    """The start cells, which cover the domain; None if the coordinates do not show all of it."""
    d, r = lift.nrows(), lift.ncols()
    one = [ZERO] * r + [fmpq(1)]
    if isinstance(domain, Everywhere):
        # The inputs reached from y-space must show both networks all that R^d shows them.
        stacked = fmpq_mat([*a.exact[0].weight.tolist(), *b.exact[0].weight.tolist()])
        if stacked.rank() != ((stacked * lift).rank() if r else 0) or r > d:
            return None
        return (
            [*[_unit(r, k, -1 if n >> k & 1 else 1) for k in range(r)], one] for n in range(1 << r)
        )
    return _one_cell(domain, lift, base) if isinstance(domain, (Box, Orthant)) else None


def _one_cell(domain: Box | Orthant, lift: fmpq_mat, base: Row) -> list[list[Row]] | None:
    """The box or the orthant itself, in its own coordinates."""
    d = lift.nrows()
    identity = fmpq_mat(d, d, [fmpq(int(i == j)) for i in range(d) for j in range(d)])
    corner = list(domain.lower) if isinstance(domain, Box) else [ZERO] * d
    if lift.ncols() != d or lift != identity or base != corner:
        return None
    cell = [*[_unit(d, k, 1) for k in range(d)], [ZERO] * d + [fmpq(1)]]
    if isinstance(domain, Box):
        for k in range(d):
            side = _unit(d, k, -1)
            side[d] = domain.upper[k] - domain.lower[k]
            cell.append(side)
    return [cell]


def _unit(r: int, k: int, sign: int) -> Row:
    return [fmpq(sign * int(i == k)) for i in range(r + 1)]


class _Walk:
    def __init__(
        self, nets: tuple[Network, Network], lift: fmpq_mat, base: Row, steps: Any, bounds: list
    ) -> None:
        self.nets, self.steps, self.at = nets, steps, 0
        self.bounds, self.leaf = bounds, 0
        self.offset = self.slope = 0.0
        r = lift.ncols()
        entries: Row = []
        for i, row in enumerate(lift.tolist() if r else [[] for _ in base]):
            entries += [*row, base[i]]
        self.inputs = fmpq_mat(len(base), r + 1, entries)  # x as forms in (y, 1)
        self.r = r
        self.order = [
            (which, layer)
            for layer in range(max(n.depth for n in nets))
            for which in (0, 1)
            if layer < nets[which].depth
        ]

    def cell(self, known: list[Row]) -> bool:
        return self._stage(known, 0, (self.inputs, self.inputs))

    def _forms(self, which: int, layer: int, below: fmpq_mat) -> list[Row]:
        weight, bias = self.nets[which].exact[layer]
        forms = [list(row) for row in (weight * below).tolist()]
        for form, b in zip(forms, bias, strict=True):
            form[-1] += b
        return forms

    def _stage(self, known: list[Row], stage: int, below: tuple[fmpq_mat, fmpq_mat]) -> bool:
        if stage == len(self.order):
            left = self._forms(0, self.nets[0].depth, below[0])
            right = self._forms(1, self.nets[1].depth, below[1])
            return left == right or self._bounded(known, left, right)
        which, layer = self.order[stage]
        return self._neuron(known, stage, below, self._forms(which, layer, below[which]), [])

    def _bounded(self, known: list[Row], left: list[Row], right: list[Row]) -> bool:
        """Prove |left - right| <= offset + slope·(direction·x) on the cell, |direction| <= 1."""
        if self.leaf >= len(self.bounds):
            return False
        bound = self.bounds[self.leaf]
        self.leaf += 1
        offset, slope = rational(bound.offset), rational(bound.slope)
        direction = [rational(v) for v in bound.direction]
        if slope < 0 or len(direction) != self.inputs.nrows() or dot(direction, direction) > 1:
            return False
        above = (fmpq_mat(1, len(direction), direction) * self.inputs).entries()
        above = [slope * v for v in above]
        above[-1] += offset
        hints = list(bound.tight)
        for k, (p, q) in enumerate(zip(left, right, strict=True)):
            for j, sign in enumerate((1, -1)):
                wanted = [h - sign * (u - v) for h, u, v in zip(above, p, q, strict=True)]
                tight = hints[2 * k + j] if 2 * k + j < len(hints) else 0
                if not _follows(known, tight, wanted):
                    return False
        self.offset, self.slope = max(self.offset, bound.offset), max(self.slope, bound.slope)
        return True

    def _neuron(self, known, stage, below, forms, signs) -> bool:
        """The rest of a layer, whose first neurons have the given signs."""
        known, signs = list(known), list(signs)
        while len(signs) < len(forms):
            if self.at >= len(self.steps):
                return False
            step = self.steps[self.at]
            self.at += 1
            form = forms[len(signs)]
            if step == 0:  # a cut: first the active side, to its end, then the other
                if not self._neuron([*known, form], stage, below, forms, [*signs, 1]):
                    return False
                known.append(_times(-1, form))
                signs.append(-1)
                continue
            sign, tight = step
            if sign not in (1, -1) or not _follows(known, tight, _times(sign, form)):
                return False
            signs.append(sign)
        nothing = [ZERO] * (self.r + 1)
        active = [form if sign > 0 else nothing for form, sign in zip(forms, signs, strict=True)]
        entries = [entry for row in active for entry in row]
        table = fmpq_mat(len(forms), self.r + 1, entries)
        after = (table, below[1]) if self.order[stage][0] == 0 else (below[0], table)
        return self._stage(known, stage + 1, after)


def _times(sign: int, form: Row) -> Row:
    return form if sign > 0 else [-v for v in form]


def _follows(known: list[Row], tight: int, wanted: Row) -> bool:
    """Whether an inequality follows from known ones; the bits of `tight` say from which, likely."""
    hinted = [row for i, row in enumerate(known) if tight >> i & 1]
    return proves(hinted, wanted) or proves_by_program(known, wanted)


def proves(inequalities: list[Row], wanted: Row) -> bool:
    """Whether wanted = Σ λ_i inequality_i + λ·1 with λ >= 0, for some r of the inequalities."""
    tick()
    r = len(wanted) - 1
    if not any(wanted[:r]):
        return wanted[r] >= 0
    size = min(r, len(inequalities))
    for tried, chosen in enumerate(combinations(inequalities, size)):
        if tried >= 64:
            return False
        factors = _multipliers(chosen, wanted)
        if factors is None or any(v < 0 for v in factors):
            continue
        rest = wanted[r]
        for v, row in zip(factors, chosen, strict=True):
            rest -= v * row[r]
        if rest >= 0:
            return True
    return False


def _multipliers(chosen: tuple[Row, ...], wanted: Row) -> Row | None:
    """λ with Σ λ_i normal_i = the normal of `wanted`, free ones zero; None if there is none."""
    r, n = len(wanted) - 1, len(chosen)
    entries: Row = []
    for k in range(r):
        entries += [row[k] for row in chosen] + [wanted[k]]
    table, rank = fmpq_mat(r, n + 1, entries).rref()
    found = [ZERO] * n
    for row in table.tolist()[:rank]:
        pivot = next(i for i, v in enumerate(row) if v)
        if pivot == n:
            return None
        found[pivot] = row[n]
    return found


def proves_by_program(inequalities: list[Row], wanted: Row) -> bool:
    """The same with the multipliers looked for by a linear program, then solved exactly."""
    from scipy.optimize import linprog

    r = len(wanted) - 1
    if not r:
        return False

    def scaled(row: Row) -> np.ndarray:
        size = max((abs(v) for v in row), default=ZERO) or fmpq(1)
        return np.array([nearest_float(v / size) for v in row])

    table = np.array([scaled(row) for row in inequalities])
    result = linprog(
        scaled(wanted)[:r], A_ub=-table[:, :r], b_ub=table[:, r], bounds=[(None, None)] * r
    )
    if result.status != 0:
        return False
    weight = np.abs(result.ineqlin.marginals)
    order = np.lexsort((np.abs(table[:, :r] @ result.x + table[:, r]), -weight))
    support = [i for i in order if weight[i] > 1e-12]
    nearby = [inequalities[i] for i in order[: r + 3]]
    return proves([inequalities[i] for i in support], wanted) or proves(nearby, wanted)

"""Exact enumeration of the joint linear regions of two networks: a certificate on all of R^d.

A cell is a polyhedron on which every neuron decided so far has one sign. It is held as a cone in
R^{d+1} (coordinates (x, 1)·scale) by its extreme rays, in integers, next to the inequalities that
define it: the double description. A further neuron is affine on the cell; its sign there is read
off the rays, without any linear program. Where it changes sign the cell is cut in two. On a
leaf every neuron is decided, f - g is affine, and it is compared with zero.

The certificate lists, for each neuron decided without a cut, a vertex at which its form is least:
the inequalities tight there prove the sign (Farkas), which is what the checker re-verifies.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from paramsym.relu.arithmetic import fmpq, fmpq_mat, fmpz_mat
from paramsym.relu.clock import tick
from paramsym.relu.domains import Box, Domain, Everywhere, Orthant
from paramsym.relu.network import Network
from paramsym.relu.rationals import ZERO, rows

Form = tuple[int, ...]  # normal and offset in integers: value at the ray r is Σ form·r
Below = tuple[list[Form] | None, list[Form] | None]  # active forms of both networks, so far


@dataclass
class Cell:
    """{(x, s) : forms·(x, s) >= 0}: a pointed cone; rays with s > 0 are vertices x/s.

    `tight[k]` is the set of inequalities that vanish on ray k, as the bits of an integer.
    """

    forms: list[Form]
    rays: list[Form]
    tight: list[int]

    def values(self, form: Form) -> list[int]:
        """The form at each ray."""
        return [sum(map(int.__mul__, form, ray)) for ray in self.rays]

    def cut(self, form: Form, values: list[int], side: int) -> Cell:
        """The part where side·form >= 0; `values` are the form at the rays."""
        bit = 1 << len(self.forms)
        keep, other = [], []
        rays, tight = [], []
        for k, v in enumerate(values):
            w = v * side
            if w >= 0:
                rays.append(self.rays[k])
                tight.append(self.tight[k] | bit if w == 0 else self.tight[k])
                if w > 0:
                    keep.append((k, w))
            else:
                other.append((k, -w))
        need = len(form) - 2
        for k, w in keep:
            for j, u in other:
                common = self.tight[k] & self.tight[j]
                if common.bit_count() < need or not self._adjacent(common, k, j):
                    continue
                ray = [u * p + w * q for p, q in zip(self.rays[k], self.rays[j], strict=True)]
                g = math.gcd(*ray)
                rays.append(tuple(v // g for v in ray))
                tight.append(common | bit)
        signed = form if side > 0 else tuple(-v for v in form)
        return Cell([*self.forms, signed], rays, tight)

    def _adjacent(self, common: int, k: int, j: int) -> bool:
        """Two rays span an edge iff no third ray is tight wherever both are."""
        tick()
        return not any(
            common & other == common for i, other in enumerate(self.tight) if i != k and i != j
        )


@dataclass(frozen=True)
class Frame:
    """x = lift·y + base: coordinates y that carry everything the networks see of x.

    Attributes:
        lift: d×r.
        base: d.
        first: the start cell, or None where the 2^r orthants of y-space are the start cells.
    """

    lift: fmpq_mat
    base: list[fmpq]
    first: Cell | None

    @property
    def count(self) -> int:
        """The number of start cells, which together cover the domain."""
        return 1 if self.first is not None else 1 << self.lift.ncols()

    def cell(self, number: int) -> Cell:
        """Start cell `number`: bit k of it set means y_k <= 0."""
        if self.first is not None:
            return self.first
        r = self.lift.ncols()
        return _orthant(r, [-1 if number >> k & 1 else 1 for k in range(r)])


class CellBudget(Exception):
    """More cells than allowed."""


@dataclass
class CellTree:
    """The decisions of the enumeration, depth first.

    Attributes:
        leaves: the number of joint cells.
        steps: one entry per decided neuron in the order met: 0 for a cut (the positive side
            follows, then the negative one), otherwise (sign, tight inequalities at a minimiser).
        bounds: in float mode, one bound per leaf where the affine maps are not equal.
        witness: an input at which the networks differ, if one was found.
    """

    leaves: int = 0
    steps: list = field(default_factory=list)
    bounds: list = field(default_factory=list)
    witness: list[fmpq] | None = None


def frame(a: Network, b: Network, domain: Domain) -> Frame | None:
    """Coordinates and start cells, or None if the domain is no polyhedron."""
    d = a.input_dim
    identity = fmpq_mat(d, d, [fmpq(int(i == j)) for i in range(d) for j in range(d)])
    if isinstance(domain, Everywhere):
        normals = rows(a.exact[0].weight) + rows(b.exact[0].weight)
        offsets = [*a.exact[0].bias, *b.exact[0].bias]
        chosen = independent(normals, d)
        r = len(chosen)
        if r == 0:
            return Frame(fmpq_mat(d, 0), [ZERO] * d, _orthant(0))
        # y = N x + t for r independent rows: every first-layer form of both networks is a
        # function of y, and the r hyperplanes cut y-space into its orthants.
        n = fmpq_mat(r, d, [v for i in chosen for v in normals[i]])
        lift = n.transpose() * (n * n.transpose()).inv()
        base = [-v for v in (lift * _col([offsets[i] for i in chosen])).entries()]
        return Frame(lift, base, None)
    if isinstance(domain, Orthant):
        return Frame(identity, [ZERO] * d, _orthant(d))
    if isinstance(domain, Box):
        cell = _orthant(d)
        for k, (lo, hi) in enumerate(zip(domain.lower, domain.upper, strict=True)):
            size = hi - lo
            form = _integer([ZERO] * k + [fmpq(-1)] + [ZERO] * (d - k - 1) + [size])
            cell = cell.cut(form, cell.values(form), 1)
        return Frame(identity, list(domain.lower), cell)
    return None


def independent(normals: list[list[fmpq]], dimension: int) -> list[int]:
    """Indices of a maximal independent set of rows, the earliest ones."""
    if not normals:
        return []
    reduced, rank = fmpq_mat(normals).transpose().rref()
    table = reduced.tolist()
    found = []
    for k in range(rank):
        found.append(next(i for i, v in enumerate(table[k]) if v))
    return found


def _col(values: list[fmpq]) -> fmpq_mat:
    return fmpq_mat(len(values), 1, values)


def _orthant(r: int, signs: list[int] | None = None) -> Cell:
    signs = signs or [1] * r
    forms = [tuple(signs[k] * int(i == k) for i in range(r + 1)) for k in range(r)]
    forms.append(tuple([0] * r + [1]))
    full = (1 << (r + 1)) - 1
    rays = list(forms)
    tight = [full & ~(1 << k) for k in range(r + 1)]
    return Cell(forms, rays, tight)


def _integer(form: list[fmpq]) -> Form:
    """A positive multiple with coprime integer entries."""
    scale = 1
    for v in form:
        scale = math.lcm(scale, int(v.q))
    out = [int(v.p) * (scale // int(v.q)) for v in form]
    g = math.gcd(*out)
    return tuple(v // g for v in out) if g > 1 else tuple(out)


@dataclass
class _Integers:
    """A network in y-coordinates with one common denominator per layer: exact, in integers.

    Layer l computes scale·(W y + b) with `weight`, `bias` integers; biases carry the product of
    all scales so far, so that forms of every layer are positive multiples of the true ones.
    """

    weights: list[fmpz_mat]
    biases: list[list[int]]
    scale: int  # the factor of the output

    @staticmethod
    def of(net: Network, lift: fmpq_mat, base: list[fmpq]) -> _Integers:
        weights, biases, total = [], [], 1
        for index, (weight, bias) in enumerate(net.exact):
            b = list(bias)
            if index == 0:
                if base:
                    shift = (weight * _col(base)).entries()
                    b = [p + q for p, q in zip(shift, b, strict=True)]
                weight = weight * lift
            scale = 1
            for v in [*weight.entries(), *b]:
                tick()
                scale = math.lcm(scale, int(v.q))
            total *= scale
            n, k = weight.nrows(), weight.ncols()
            weights.append(fmpz_mat(n, k, [int((v * scale).p) for v in weight.entries()]))
            biases.append([int((v * total).p) for v in b])
        return _Integers(weights, biases, total)

    def forms(self, layer: int, below: list[Form] | None, r: int) -> list[Form]:
        """Pre-activation forms of a layer from the active forms below (None: the inputs y)."""
        weight, bias = self.weights[layer], self.biases[layer]
        if below is None:
            table = weight.tolist() if r else [[] for _ in bias]
            return [(*(int(v) for v in row), b) for row, b in zip(table, bias, strict=True)]
        if not below:
            return [(*[0] * r, b) for b in bias]
        image = (weight * fmpz_mat(len(below), r + 1, [v for f in below for v in f])).tolist()
        return [
            (*(int(v) for v in row[:-1]), int(row[-1]) + b)
            for row, b in zip(image, bias, strict=True)
        ]


class Enumeration:
    """The joint cells of two networks on a polyhedral domain."""

    def __init__(self, a: Network, b: Network, domain: Domain, start: Frame) -> None:
        self.frame, self.domain = start, domain
        self.r = start.lift.ncols()
        self.nets = (
            _Integers.of(a, start.lift, start.base),
            _Integers.of(b, start.lift, start.base),
        )
        depths = (a.depth, b.depth)
        # Interleave the layers of the two networks: shared hyperplanes are decided once.
        self.order = [
            (which, layer)
            for layer in range(max(depths))
            for which in (0, 1)
            if layer < depths[which]
        ]

    def run(
        self,
        cells: int = 100_000,
        progress: Callable[[int], None] | None = None,
        tolerate: Callable[[Cell, list[Form], int], Any] | None = None,
    ) -> CellTree:
        """Enumerate every joint cell; raises `CellBudget` beyond `cells`.

        `tolerate` bounds the difference on a cell where the affine maps are not equal (float
        mode); without it such a cell gives a witness.
        """
        tree = CellTree()
        for number in range(self.frame.count):
            start = self.frame.cell(number)
            for leaf in self._walk(start, 0, (None, None), tree.steps):
                tick()
                tree.leaves += 1
                if tree.leaves % 256 == 0 and progress:
                    progress(tree.leaves)
                if tree.leaves > cells:
                    raise CellBudget(tree.leaves)
                cell, gaps = leaf[0], self._gaps(leaf[1])
                wrong = next((gap for gap in gaps if any(gap)), None)
                if wrong is None:
                    continue
                if tolerate is None:
                    tree.witness = self._point(cell, wrong)
                    return tree
                tree.bounds.append(tolerate(cell, gaps, self.nets[0].scale * self.nets[1].scale))
        return tree

    def _walk(self, cell: Cell, stage: int, below: Below, steps) -> Iterator[tuple[Cell, Below]]:
        if stage == len(self.order):
            yield cell, below
            return
        which, layer = self.order[stage]
        forms = self.nets[which].forms(layer, below[which], self.r)
        yield from self._neurons(cell, stage, below, forms, [], steps)

    def _neurons(self, cell, stage, below, forms, active, steps):
        """Decide the neurons of one layer from number len(active) on."""
        active = list(active)
        for index in range(len(active), len(forms)):
            tick()
            form = forms[index]
            values = cell.values(form)
            low, high = min(values), max(values)
            if low >= 0 or high <= 0:
                # With all values zero the form vanishes on the cell: either sign is right.
                sign = 1 if low >= 0 else -1
                steps.append((sign, _least(cell, values, sign)))
                active.append(form if sign > 0 else None)
                continue
            steps.append(0)
            yield from self._neurons(
                cell.cut(form, values, 1), stage, below, forms, [*active, form], steps
            )
            cell = cell.cut(form, values, -1)
            active.append(None)
        zero = (0,) * (self.r + 1)
        which = self.order[stage][0]
        done: list[Form] = [f if f is not None else zero for f in active]
        after: Below = (done, below[1]) if which == 0 else (below[0], done)
        yield from self._walk(cell, stage + 1, after, steps)

    def _gaps(self, below: Below) -> list[Form]:
        """f - g on a cell, one form per output, times the scales of both networks."""
        p, q = self.nets
        f = p.forms(len(p.weights) - 1, below[0], self.r)
        g = q.forms(len(q.weights) - 1, below[1], self.r)
        return [
            tuple(x * q.scale - y * p.scale for x, y in zip(u, v, strict=True))
            for u, v in zip(f, g, strict=True)
        ]

    def _point(self, cell: Cell, gap: Form) -> list[fmpq]:
        """An input of the cell at which the form `gap` does not vanish."""
        middle = tuple(map(sum, zip(*cell.rays, strict=True)))
        candidates = [middle]
        candidates += [tuple(m + v for m, v in zip(middle, ray, strict=True)) for ray in cell.rays]
        for ray in candidates:
            if ray[-1] > 0 and sum(g * v for g, v in zip(gap, ray, strict=True)):
                y = [fmpq(v, ray[-1]) for v in ray[:-1]]
                lifted = (self.frame.lift * _col(y)).entries() if y else []
                shift = lifted or [ZERO] * len(self.frame.base)
                return [s + b for s, b in zip(shift, self.frame.base, strict=True)]
        raise AssertionError("a form that vanishes on a full-dimensional cell: a bug of paramsym")

    def estimate(self, probes: int = 24, rng: random.Random | None = None) -> float:
        """The expected number of cells (Knuth): random descents, the branchings multiplied."""
        rng = rng or random.Random(7)
        total = 0.0
        for _ in range(probes):
            weight = float(self.frame.count)
            cell = self.frame.cell(rng.randrange(self.frame.count))
            below: Below = (None, None)
            for which, layer in self.order:
                done: list[Form] = []
                for form in self.nets[which].forms(layer, below[which], self.r):
                    tick()
                    values = cell.values(form)
                    low, high = min(values), max(values)
                    sign = 1 if low >= 0 else -1
                    if low < 0 < high:
                        weight *= 2
                        sign = rng.choice((1, -1))
                        cell = cell.cut(form, values, sign)
                    done.append(form if sign > 0 else (0,) * (self.r + 1))
                below = (done, below[1]) if which == 0 else (below[0], done)
            total += weight
        return total / probes


def _least(cell: Cell, values: list[int], sign: int) -> int:
    """The inequalities tight at a vertex where sign·form is least, simple vertices first."""
    best: tuple[fmpq, int] | None = None
    chosen = 0
    for ray, value, tight in zip(cell.rays, values, cell.tight, strict=True):
        if ray[-1] > 0:
            rank = (fmpq(sign * value, ray[-1]), tight.bit_count())
            if best is None or rank < best:
                best, chosen = rank, tight
    return chosen

"""The independent checker of absolute-value normal forms.

Nothing here calls the code that finds certificates. Every claim is recomputed with a different data
structure (sparse dictionaries, another normalisation of atoms) and every rewrite is accepted only
after its own condition has been re-derived. A log that lies is rejected: the checker is sound for
arbitrary logs, so a verdict that passed it rests on this module and on `rationals` alone.
"""

from __future__ import annotations

from typing import Any

from paramsym.relu.arithmetic import fmpq
from paramsym.relu.clock import tick
from paramsym.relu.domains import Domain
from paramsym.relu.logs import Log, Step
from paramsym.relu.network import Network
from paramsym.relu.rationals import ONE, ZERO
from paramsym.relu.sign_check import Claims, checked_signs

Sparse = dict[int, fmpq]  # -1: constant; 0 … d-1: inputs; d+k: atom k
CONST = -1


def check_absolute(
    a: Network, b: Network, domain: Domain, passes: Any, signs: tuple[Claims, Claims] = ({}, {})
) -> bool:
    """Replay the logs of both networks, deriving every condition anew, and compare the results."""
    replay = _Replay(domain)
    left: list[Sparse] = []
    right: list[Sparse] = []
    for log_a, log_b in passes:
        rows_a = _replayed(a, log_a, replay, signs[0])
        rows_b = _replayed(b, log_b, replay, signs[1])
        if rows_a is None or rows_b is None:
            return False
        left, right = rows_a, rows_b
    if not left or len(left) != len(right):
        return False
    return all(
        not replay.simplify(_sum([(ONE, p), (-ONE, q)])) for p, q in zip(left, right, strict=True)
    )


def check_absolute_with_signs(a: Network, b: Network, domain: Domain, data: Any) -> bool:
    """The same for {"signs", "passes"}: units that are proved to keep one sign are dead or linear.

    The proofs are checked first; a log may then rely on those signs and no others.
    """
    signs = checked_signs((a, b), domain, data["signs"])
    return signs is not None and check_absolute(a, b, domain, data["passes"], signs)


# ------------------------------------------------------------------ expressions


class _Replay:
    """Atoms and proven identities, kept sparsely; atoms scaled by their last coefficient."""

    def __init__(self, domain: Domain) -> None:
        self.domain, self.d = domain, domain.dimension
        self.atoms: dict[tuple[tuple[int, fmpq], ...], int] = {}
        self.level: list[int] = []
        self.zero: dict[int, Sparse] = {}  # pivot ↦ expression with coefficient 1 there

    def simplify(self, e: Sparse) -> Sparse:
        pivots = [k for k in e if k in self.zero]
        while pivots:
            for k in pivots:
                if k in e:
                    e = _sum([(ONE, e), (-e[k], self.zero[k])])
            pivots = [k for k in e if k in self.zero]
        return e

    def relu(self, e: Sparse) -> Sparse:
        e = self.simplify(e)
        keys = sorted(k for k in e if k != CONST)
        if not keys:
            return e if e.get(CONST, ZERO) > 0 else {}
        lead = e[keys[-1]]
        name = tuple(sorted((k, v / lead) for k, v in e.items()))
        atom = self.atoms.get(name)
        if atom is None:
            atom = self.d + len(self.atoms)
            self.atoms[name] = atom
            depth = max((self.level[k - self.d] for k in keys if k >= self.d), default=0)
            self.level.append(depth + 1)
        return _sum([(fmpq(1, 2), e), (abs(lead) / 2, {atom: ONE})])

    def learn(self, e: Sparse) -> None:
        e = self.simplify(e)
        keys = [k for k in e if k >= self.d]
        if not keys:
            return
        pivot = max(keys, key=lambda k: (self.level[k - self.d], k))
        self.zero[pivot] = {k: v / e[pivot] for k, v in e.items()}

    def range(self, e: Sparse) -> tuple[fmpq | None, fmpq | None]:
        """Bounds of an expression on the domain, where it has no atom."""
        if any(k >= self.d for k in e):
            return None, None
        normal, offset = [e.get(k, ZERO) for k in range(self.d)], e.get(CONST, ZERO)
        side = self.domain.side(normal, offset)
        low, high = self.domain.range(normal, offset)
        return _tightest(low, ZERO if side > 0 else None, max), _tightest(
            high, ZERO if side < 0 else None, min
        )


def _sum(parts: list[tuple[fmpq, Sparse]]) -> Sparse:
    total: Sparse = {}
    for factor, e in parts:
        tick()
        if not factor:
            continue
        for k, v in e.items():
            total[k] = total.get(k, ZERO) + factor * v
    return {k: v for k, v in total.items() if v}


def _tightest(left: fmpq | None, right: fmpq | None, better: Any) -> fmpq | None:
    if left is None or right is None:
        return right if left is None else left
    return better(left, right)


# ------------------------------------------------------------------ layers


class _Unit:
    """relu(z) = y <= top (None: unbounded)."""

    __slots__ = ("top", "y", "z")

    def __init__(self, z: Sparse, y: Sparse, top: fmpq | None) -> None:
        self.z, self.y, self.top = z, y, top

    @property
    def constant(self) -> bool:
        return not any(k != CONST for k in self.z)


class _Layer:
    """The distinct units of a finished layer; the neurons are multiples of them, or constants."""

    def __init__(self) -> None:
        self.units: dict[int, _Unit] = {}
        self.alias: dict[int, tuple[int, fmpq]] = {}  # neuron ↦ (unit, factor)
        self.fixed: dict[int, fmpq] = {}
        self.named: dict[tuple[tuple[int, fmpq], ...], tuple[int, fmpq]] = {}
        self.inputs = False

    @staticmethod
    def of_inputs(d: int) -> _Layer:
        """The inputs themselves, which are no values of a ReLU."""
        made = _Layer()
        made.units = {k: _Unit({k: ONE}, {k: ONE}, None) for k in range(d)}
        made.alias = {k: (k, ONE) for k in range(d)}
        made.inputs = True
        return made

    def add(self, neuron: int, unit: _Unit) -> None:
        """A further neuron; a positive multiple of an earlier one is the same unit."""
        if unit.constant:
            self.fixed[neuron] = max(unit.z.get(CONST, ZERO), ZERO)
            return
        size = abs(unit.z[max(k for k in unit.z if k != CONST)])
        name = tuple(sorted((k, v / size) for k, v in unit.z.items()))
        if name not in self.named:
            self.named[name] = (neuron, size)
            self.units[neuron] = unit
            self.alias[neuron] = (neuron, ONE)
            return
        to, first = self.named[name]
        scale = size / first
        self.alias[neuron] = (to, scale)
        top = None if unit.top is None else unit.top / scale
        self.units[to].top = _tightest(self.units[to].top, top, min)

    def gathered(self, row: list[fmpq], bias: fmpq) -> tuple[Sparse, fmpq]:
        """row·values + bias as weights on the distinct units and a constant."""
        weights: Sparse = {}
        for k, w in enumerate(row):
            if not w:
                continue
            if k in self.fixed:
                bias += w * self.fixed[k]
            else:
                to, scale = self.alias[k]
                weights[to] = weights.get(to, ZERO) + w * scale
        return {k: w for k, w in weights.items() if w}, bias


def _replayed(net: Network, log: Log, replay: _Replay, signs: Claims) -> list[Sparse] | None:
    """The outputs of a network as its log rewrites it, or None if a step does not hold."""
    if len(log) != net.depth:
        return None
    below = _Layer.of_inputs(replay.d)
    for layer, (steps, (weight, bias)) in enumerate(zip(log, net.exact, strict=False)):
        if len(steps) != len(bias):
            return None
        made = _Layer()
        for number, (step, row) in enumerate(zip(steps, weight.tolist(), strict=True)):
            shown = {w: s for (at, k, w), s in signs.items() if (at, k) == (layer, number)}
            found = _Neuron(replay, below, row, bias[number], shown).read(step)
            if found is None:
                return None
            made.add(number, found)
        below = made
    weight, bias = net.exact[net.depth]
    return [_Neuron(replay, below, r, t, {}).p for r, t in zip(weight.tolist(), bias, strict=True)]


class _Neuron:
    """One neuron over the layer below: its pre-activation p = Σ weights·y + constant.

    `shown` has the signs that were proved of p, under (), and of p without some neurons below.
    """

    def __init__(
        self,
        replay: _Replay,
        below: _Layer,
        row: list[fmpq],
        bias: fmpq,
        shown: dict[tuple[int, ...], int],
    ) -> None:
        self.replay, self.below, self.row, self.shown = replay, below, row, shown
        self.weights, self.constant = below.gathered(row, bias)
        parts = [(w, below.units[k].y) for k, w in self.weights.items()]
        self.p = replay.simplify(_sum([*parts, (self.constant, {CONST: ONE})]))

    def read(self, step: Step) -> _Unit | None:
        """The rewritten neuron, or None if the condition of the step does not hold."""
        low, high = self._range()
        low = ZERO if self.shown.get(()) == 1 else low
        high = ZERO if self.shown.get(()) == -1 else high
        if step.rule in ("constant", "dead", "linear"):
            return self._settled(step.rule, low, high)
        if self.below.inputs and (step.identities or step.rule != "plain"):
            return None  # the units of the first layer are inputs, not values of a ReLU
        if not all(self._learn(*identity) for identity in step.identities):
            return None
        if step.rule == "plain":
            return _Unit(self.p, self.replay.relu(self.p), high)
        return self._unbent(step, high)

    def _settled(self, rule: str, low: fmpq | None, high: fmpq | None) -> _Unit | None:
        """A neuron without a kink."""
        if rule == "constant":
            made = _Unit(self.p, self.p, None)
            return made if made.constant else None
        if rule == "dead":
            return _Unit({}, {}, None) if high is not None and high <= 0 else None
        return _Unit(self.p, self.p, high) if low is not None and low >= 0 else None

    def _unbent(self, step: Step, high: fmpq | None) -> _Unit | None:
        side = {"unbend": 1, "unbend negative": -1}.get(step.rule)
        q = None if side is None else self._unbend(step.units, side)
        if q is None:
            return None
        if side == 1:
            q = self.replay.simplify(q)
            return _Unit(q, self.replay.relu(q), high)
        return _Unit(self.p, _sum([(ONE, self.p), (ONE, self.replay.relu(q))]), high)

    def _range(self) -> tuple[fmpq | None, fmpq | None]:
        """Bounds of p: from its parts, and where it is affine from the domain."""
        low, high = self.replay.range(self.p)
        if self.below.inputs:
            return low, high
        return _tightest(low, self._extreme(-1), max), _tightest(high, self._extreme(1), min)

    def _extreme(self, side: int, without: int | None = None) -> fmpq | None:
        """The largest value of p (side 1) or the least (-1), one unit left out; None if infinite.

        Values lie between 0 and their tops.
        """
        total = self.constant
        for k, w in self.weights.items():
            if k == without or side * w <= 0:
                continue
            top = self.below.units[k].top
            if top is None:
                return None
            total += w * top
        return total

    def _unbend(self, chosen: tuple[int, ...], side: int) -> Sparse | None:
        """side·p with relu(z) read as z for the chosen units, after checking that each may be.

        relu(w·relu(z) + r) = relu(w·z + r) needs w > 0 and r <= 0, where r is the largest value of
        everything else.
        """
        parts = [(fmpq(side), self.p)]
        for j in chosen:
            w = side * self.weights.get(j, ZERO)
            if w <= 0 or not self._rest_is_negative(j, side):
                return None
            parts += [(w, self.below.units[j].z), (-w, self.below.units[j].y)]
        return _sum(parts) if chosen else None

    def _rest_is_negative(self, j: int, side: int) -> bool:
        """Whether side·p without unit j is at most 0: by its parts, or as it was proved."""
        rest = self._extreme(side, j)
        if rest is not None and side * rest <= 0:
            return True
        read = [k for k, (to, _) in self.below.alias.items() if to == j and self.row[k]]
        return self.shown.get(tuple(sorted(read))) == -side

    def _learn(self, kind: str, left: tuple[int, ...], right: tuple[int, ...]) -> bool:
        """Derive an identity between atoms, if its condition holds."""
        if kind == "tie":
            return self._tie(left, right)
        return kind == "minimum" and self._minimum(left[0], right[0])

    def _tie(self, left: tuple[int, ...], right: tuple[int, ...]) -> bool:
        """relu(p) - relu(-p) = p with both sides unbent."""
        relu = self.replay.relu
        q, q_ = self._unbend(left, 1), self._unbend(right, -1)
        if q is None or q_ is None:
            return False
        self.replay.learn(_sum([(ONE, relu(q)), (-ONE, relu(q_)), (-ONE, self.p)]))
        return True

    def _minimum(self, j: int, k: int) -> bool:
        """relu(u - relu(v)) + relu(u - relu(u - v)) = relu(u), for p = relu(u) - relu(v)."""
        weights, units, relu = self.weights, self.below.units, self.replay.relu
        if set(weights) != {j, k} or self.constant or not weights[j] > 0 > weights[k]:
            return False
        w, o = weights[j], -weights[k]
        one = relu(_sum([(w, units[j].z), (-o, units[k].y)]))
        gap = relu(_sum([(w, units[j].z), (-o, units[k].z)]))
        two = relu(_sum([(w, units[j].z), (-ONE, gap)]))
        self.replay.learn(_sum([(ONE, one), (ONE, two), (-w, units[j].y)]))
        return True

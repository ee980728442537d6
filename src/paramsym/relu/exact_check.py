"""The independent checker of exact certificates.

Nothing here calls the code that finds certificates. Every claim is recomputed with a different data
structure (sparse dictionaries, another normalisation of atoms) and every rewrite is accepted only
after its own condition has been re-derived. A log that lies is rejected: the checker is sound for
arbitrary logs, so a verdict that passed it rests on this module and on `rationals` alone.
"""

from __future__ import annotations

import random
from typing import Any

from paramsym.relu.arithmetic import fmpq
from paramsym.relu.clock import tick
from paramsym.relu.domains import Domain
from paramsym.relu.logs import Log, Step
from paramsym.relu.network import Network
from paramsym.relu.rationals import ONE, ZERO, dot, rational

Sparse = dict[int, fmpq]  # -1: constant; 0 … d-1: inputs; d+k: atom k
CONST = -1


def agree_at_random(a: Network, b: Network, domain: Domain, points: int = 4) -> bool:
    """Exact evaluation at a few random points of the domain: a check that can fail."""
    rng = random.Random(20260518)
    for _ in range(points):
        x = [rational(v) for v in domain.draw(rng)]
        if domain.contains(x) and a.evaluate(x) != b.evaluate(x):
            return False
    return True


# ------------------------------------------------------------------ one hidden layer


def _known(groups: Any, neurons: Any) -> bool:
    """Whether every group has members, and all of them are neurons of the two networks."""
    return all(group and all(tuple(m) in neurons for m in group) for group in groups)


def check_canonical(a: Network, b: Network, domain: Domain, groups: Any) -> bool:
    """Re-add a partition of the hidden neurons of both networks by hyperplane.

    `groups` is a list of lists of (network 0/1, neuron); neurons in no group must be constant,
    linear or dead on the domain. In each group all rows must be proportional and the signed sums
    Σ ±|scale|·(outgoing column) must vanish; then f - g is affine and is compared entry by entry.
    """
    nets = (a, b)
    d, m = a.input_dim, a.output_dim
    seen: set[tuple[int, int]] = set()
    linear = [[ZERO] * (d + 1) for _ in range(m)]

    def add(which: int, share: fmpq, row: list[fmpq], out: list[fmpq]) -> None:
        factor = share if which == 0 else -share
        for o, c in enumerate(out):
            if c:
                for i, v in enumerate(row):
                    if v:
                        linear[o][i] += factor * c * v

    neurons: dict[tuple[int, int], tuple[list[fmpq], list[fmpq]]] = {}
    for which, net in enumerate(nets):
        final = net.exact[-1]
        if net.depth == 1:
            w, t = net.exact[0]
            outs = final.weight.transpose().tolist() if t else []
            for unit, row in enumerate(w.tolist()):
                neurons[which, unit] = ([*row, t[unit]], outs[unit])
            for o, c in enumerate(final.bias):
                linear[o][d] += c if which == 0 else -c
        elif net.depth == 0:
            for o, row in enumerate(final.weight.tolist()):
                for i, v in enumerate([*row, final.bias[o]]):
                    linear[o][i] += v if which == 0 else -v
        else:
            return False
    if not _known(groups, neurons):
        return False
    for group in groups:
        members = [tuple(member) for member in group]
        first = neurons[members[0]][0]
        lead = next((i for i in reversed(range(d)) if first[i]), None)
        if lead is None:
            return False
        total = [ZERO] * m
        for member in members:
            tick()
            if member in seen:
                return False
            seen.add(member)
            row, out = neurons[member]
            scale = row[lead] / first[lead]
            if not scale or any(v != scale * u for v, u in zip(row, first, strict=True)):
                return False
            size = abs(scale) if member[0] == 0 else -abs(scale)
            total = [s + size * c for s, c in zip(total, out, strict=True)]
            add(member[0], fmpq(1, 2), row, out)
        if any(total):
            return False
    for member, (row, out) in neurons.items():
        if member in seen or not any(out):
            continue
        side = domain.side(row[:d], row[d])
        if side == 0:
            return False
        tick()
        if side > 0:
            add(member[0], ONE, row, out)
    return not any(v for r in linear for v in r)


# ------------------------------------------------------------------ absolute-value normal form


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


def _sum(parts: list[tuple[fmpq, Sparse]]) -> Sparse:
    total: Sparse = {}
    for factor, e in parts:
        tick()
        if not factor:
            continue
        for k, v in e.items():
            total[k] = total.get(k, ZERO) + factor * v
    return {k: v for k, v in total.items() if v}


class _Unit:
    """relu(z) = y <= top (None: unbounded)."""

    __slots__ = ("top", "y", "z")

    def __init__(self, z: Sparse, y: Sparse, top: fmpq | None) -> None:
        self.z, self.y, self.top = z, y, top


def check_absolute(a: Network, b: Network, domain: Domain, passes: Any) -> bool:
    """Replay the logs of both networks, deriving every condition anew, and compare the results."""
    replay = _Replay(domain)
    left: list[Sparse] = []
    right: list[Sparse] = []
    for log_a, log_b in passes:
        rows_a, rows_b = _replay(a, log_a, replay), _replay(b, log_b, replay)
        if rows_a is None or rows_b is None:
            return False
        left, right = rows_a, rows_b
    if not left or len(left) != len(right):
        return False
    return all(
        not replay.simplify(_sum([(ONE, p), (-ONE, q)])) for p, q in zip(left, right, strict=True)
    )


def _replay(net: Network, log: Log, replay: _Replay) -> list[Sparse] | None:
    units: dict[int, _Unit] = {k: _Unit({k: ONE}, {k: ONE}, None) for k in range(replay.d)}
    alias: dict[int, tuple[int, fmpq]] = {k: (k, ONE) for k in range(replay.d)}
    fixed: dict[int, fmpq] = {}
    if len(log) != net.depth:
        return None
    for index, (weight, bias) in enumerate(net.exact):
        made: dict[int, _Unit] = {}
        new_alias: dict[int, tuple[int, fmpq]] = {}
        new_fixed: dict[int, fmpq] = {}
        index_of: dict[tuple[tuple[int, fmpq], ...], tuple[int, fmpq]] = {}
        out: list[Sparse] = []
        if index < net.depth and len(log[index]) != len(bias):
            return None
        for unit, row in enumerate(weight.tolist()):
            weights: Sparse = {}
            constant = bias[unit]
            for k, w in enumerate(row):
                if not w:
                    continue
                if k in fixed:
                    constant += w * fixed[k]
                else:
                    to, scale = alias[k]
                    weights[to] = weights.get(to, ZERO) + w * scale
            weights = {k: w for k, w in weights.items() if w}
            p = _sum([(w, units[k].y) for k, w in weights.items()] + [(constant, {CONST: ONE})])
            p = replay.simplify(p)
            if index == net.depth:
                out.append(p)
                continue
            first = index == 0
            found = _unit(replay, log[index][unit], p, weights, constant, units, first)
            if found is None:
                return None
            if not any(k != CONST for k in found.z):
                value = found.z.get(CONST, ZERO)
                new_fixed[unit] = value if value > 0 else ZERO
                continue
            keys = sorted(k for k in found.z if k != CONST)
            size = abs(found.z[keys[-1]])
            name = tuple(sorted((k, v / size) for k, v in found.z.items()))
            if name in index_of:
                to, first_size = index_of[name]
                scale = size / first_size
                new_alias[unit] = (to, scale)
                held = made[to]
                if found.top is not None and (held.top is None or found.top / scale < held.top):
                    held.top = found.top / scale
            else:
                index_of[name] = (unit, size)
                made[unit] = found
                new_alias[unit] = (unit, ONE)
        if index == net.depth:
            return out
        units, alias, fixed = made, new_alias, new_fixed
    return None


def _unit(
    replay: _Replay,
    step: Step,
    p: Sparse,
    weights: Sparse,
    constant: fmpq,
    units: dict[int, _Unit],
    first: bool,
) -> _Unit | None:
    """The rewritten neuron, or None if the step's condition does not hold."""
    low, high = (None, None) if first else _interval(weights, constant, units)
    if all(k < replay.d for k in p):
        normal = [p.get(k, ZERO) for k in range(replay.d)]
        offset = p.get(CONST, ZERO)
        side = replay.domain.side(normal, offset)
        below, above = replay.domain.range(normal, offset)
        low = below if low is None else low if below is None else max(low, below)
        high = above if high is None else high if above is None else min(high, above)
        low = ZERO if side > 0 and (low is None or low < 0) else low
        high = ZERO if side < 0 and (high is None or high > 0) else high
    top = high
    if step.rule == "constant":
        return _Unit(p, p, None) if not any(k != CONST for k in p) else None
    if step.rule == "dead":
        return _Unit({}, {}, None) if high is not None and high <= 0 else None
    if step.rule == "linear":
        return _Unit(p, p, top) if low is not None and low >= 0 else None
    if first and (step.identities or step.rule != "plain"):
        return None  # the units of the first layer are inputs, not values of a ReLU
    for kind, left, right in step.identities:
        if kind == "tie":
            q = _unbend(p, weights, constant, units, left, 1)
            q_ = _unbend(p, weights, constant, units, right, -1)
            if q is None or q_ is None:
                return None
            parts = [(ONE, replay.relu(q)), (-ONE, replay.relu(q_)), (-ONE, p)]
            replay.learn(_sum(parts))
        elif kind == "minimum":
            j, k = left[0], right[0]
            if set(weights) != {j, k} or constant or not weights[j] > 0 > weights[k]:
                return None
            w, o = weights[j], -weights[k]
            u, v = units[j].z, units[k].z
            one = replay.relu(_sum([(w, u), (-o, units[k].y)]))
            gap = replay.relu(_sum([(w, u), (-o, v)]))
            two = replay.relu(_sum([(w, u), (-ONE, gap)]))
            replay.learn(_sum([(ONE, one), (ONE, two), (-w, units[j].y)]))
        else:
            return None
    if step.rule == "plain":
        return _Unit(p, replay.relu(p), top)
    if step.rule == "unbend":
        q = _unbend(p, weights, constant, units, step.units, 1)
        if q is None:
            return None
        q = replay.simplify(q)
        return _Unit(q, replay.relu(q), top)
    if step.rule == "unbend negative":
        q = _unbend(p, weights, constant, units, step.units, -1)
        if q is None:
            return None
        return _Unit(p, _sum([(ONE, p), (ONE, replay.relu(q))]), top)
    return None


def _interval(
    weights: Sparse, constant: fmpq, units: dict[int, _Unit]
) -> tuple[fmpq | None, fmpq | None]:
    below = [(w, units[k].top) for k, w in weights.items() if w < 0]
    above = [(w, units[k].top) for k, w in weights.items() if w > 0]

    def total(terms: list[tuple[fmpq, fmpq | None]]) -> fmpq | None:
        if any(t is None for _, t in terms):
            return None
        return constant + dot([w for w, _ in terms], [t for _, t in terms if t is not None])

    return total(below), total(above)


def _unbend(
    p: Sparse,
    weights: Sparse,
    constant: fmpq,
    units: dict[int, _Unit],
    chosen: tuple[int, ...],
    sign: int,
) -> Sparse | None:
    """sign·p with relu(z) read as z for the chosen units, after checking that each may be.

    relu(w·relu(z) + r) = relu(w·z + r) needs w > 0 and r <= 0, where r is the largest value of
    everything else.
    """
    e = [(fmpq(sign), p)]
    for j in chosen:
        if j not in weights or sign * weights[j] <= 0:
            return None
        rest = sign * constant
        for k, w in weights.items():
            if k != j and sign * w > 0:
                top = units[k].top
                if top is None:
                    return None
                rest += sign * w * top
        if rest > 0:
            return None
        w = sign * weights[j]
        e += [(w, units[j].z), (-w, units[j].y)]
    return _sum(e) if chosen else None

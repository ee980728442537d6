"""The absolute-value normal form: one recursive rewriting for every depth.

Every rewrite is an identity of functions on the domain, so equal normal forms mean equal networks,
whatever the parameters. An expression is a vector over the basis x_1 … x_d, 1, atoms; an atom is
|e| for an expression e scaled so that its first non-constant coefficient is 1. Atoms live in one
registry shared by the two networks.

    relu(u) = u/2 + |u|/2                        every neuron, by default
    relu(u) = 0 or u                             where the sign is known (dead, linear)
    relu(w·relu(u) + r) = relu(w·u + r)          if w > 0 and r <= 0: "unbending"

Unbending is what quotients out the translations and reflections of a hidden first-layer
hyperplane. Where both relu(p) and relu(-p) unbend, or where p is a difference of two features,
the two readings give an identity between atoms; identities are kept in echelon form (the deepest
atom is eliminated, never a hyperplane of the first layer) and both networks are read again.

Complete for one hidden layer, and generically for three-layer bottleneck networks; beyond that only
sound. Source: section 3.4 of the specification.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from paramsym.relu.absolute_atoms import Registry, Row, combine
from paramsym.relu.arithmetic import fmpq, fmpq_mat
from paramsym.relu.clock import tick
from paramsym.relu.domains import Domain
from paramsym.relu.logs import Log, Step
from paramsym.relu.network import Network
from paramsym.relu.rationals import ONE, ZERO, matrix, product

# (hidden layer from 0, unit, neurons left out) ↦ sign of the rest of the pre-activation
Claims = Mapping[tuple[int, int, tuple[int, ...]], int]


class Feature(NamedTuple):
    """relu(z) = y with y <= upper (None: unbounded); `unit` is the neuron that introduced it."""

    z: Row
    y: Row
    upper: fmpq | None
    unit: int


@dataclass(frozen=True)
class AbsoluteForms:
    """The normal forms of two networks over one registry.

    Attributes:
        a, b: m rows each.
        passes: the logs of both networks, pass by pass.
    """

    registry: Registry
    a: list[Row]
    b: list[Row]
    passes: list[tuple[Log, Log]]

    @property
    def equal(self) -> bool:
        """Whether the reduced rows coincide: then the functions do."""
        return all(
            self.registry.pad(p) == self.registry.pad(q)
            for p, q in zip(self.a, self.b, strict=True)
        )

    def different_atoms(self) -> list[int]:
        """Atoms whose coefficients differ, deepest first (indices into the registry)."""
        reg = self.registry
        seen: set[int] = set()
        for p, q in zip(self.a, self.b, strict=True):
            for i, (u, v) in enumerate(zip(reg.pad(p), reg.pad(q), strict=True)):
                if i > reg.dimension and u != v:
                    seen.add(i - reg.dimension - 1)
        return sorted(seen, key=lambda k: -reg.atoms[k].depth)


def absolute_forms(
    a: Network, b: Network, domain: Domain, signs: tuple[Claims, Claims] = ({}, {})
) -> AbsoluteForms:
    """The normal forms of two networks on a domain; raises `OutOfTime` where the clock is set.

    Args:
        signs: of both networks, what is known to keep one sign on the whole domain: the
            pre-activation of a unit, or what is left of it without some units of the layer before.
    """
    registry = Registry(domain)
    passes: list[tuple[Log, Log]] = []
    while True:
        known = len(registry.identities)
        rows_a, log_a = normal_form(a, registry, signs[0])
        rows_b, log_b = normal_form(b, registry, signs[1])
        passes.append((log_a, log_b))
        if len(registry.identities) == known or len(passes) == 3:
            break
    return AbsoluteForms(
        registry,
        [registry.reduce(registry.pad(r)) for r in rows_a],
        [registry.reduce(registry.pad(r)) for r in rows_b],
        passes,
    )


def normal_form(net: Network, registry: Registry, signs: Claims) -> tuple[list[Row], Log]:
    """The rows of a network over the registry, and the log of its rewriting."""
    log: Log = []
    before: _Layer | None = None
    for index, (weight, bias) in enumerate(net.exact):
        tick()
        made = _of_inputs(weight, bias) if before is None else before.into(weight, bias)
        if index == len(net) - 1:
            return [one.row for one in made], log
        known = _known(signs, index, weight, before.places if before else [])
        layer = _Layer(registry, before.features if before else [])
        for unit, one in enumerate(made):
            layer.add(unit, *one, known[unit])
        log.append(layer.steps)
        before = layer
    raise AssertionError("a network without layers")


class _Sum(NamedTuple):
    """A pre-activation: its row over the registry, which is weights·features + constant."""

    row: Row
    weights: Row
    constant: fmpq


def _of_inputs(weight: fmpq_mat, bias: Row) -> list[_Sum]:
    """The pre-activations of the first layer, which reads no features."""
    return [_Sum([*w, b], [], b) for w, b in zip(weight.tolist(), bias, strict=True)]


class _Known(NamedTuple):
    """Signs of a pre-activation (0: not known), and of what is left of it without one feature."""

    whole: int = 0
    rest: Mapping[int, int] = {}


def _known(
    signs: Claims, layer: int, weight: fmpq_mat, places: list[tuple[int, fmpq]]
) -> list[_Known]:
    """What is known of the units of a layer, neurons left out read as the feature they are."""
    found: list[dict[tuple[int, ...], int]] = [{} for _ in range(weight.nrows())]
    for (at, unit, without), side in signs.items():
        if at == layer:
            found[unit][without] = side
    made = []
    for unit, held in enumerate(found):
        rest: dict[int, int] = {}
        for feature in {place for place, _ in places} if any(held) else ():
            read = [k for k, (at, _) in enumerate(places) if at == feature and weight[unit, k]]
            side = held.get(tuple(read))
            if read and side and feature >= 0:
                rest[feature] = side
        made.append(_Known(held.get((), 0), rest))
    return made


class _Layer:
    """The neurons of one hidden layer, rewritten one after the other."""

    def __init__(self, registry: Registry, before: list[Feature]) -> None:
        self.registry, self.before = registry, before
        self.features: list[Feature] = []
        self.steps: list[Step] = []
        self.places: list[tuple[int, fmpq]] = []  # neuron ↦ (feature or -1, scale)
        self.constants: list[fmpq] = []
        self.index: dict[tuple[tuple[int, fmpq], ...], tuple[int, fmpq]] = {}

    def into(self, weight: fmpq_mat, bias: Row) -> list[_Sum]:
        """The pre-activations of the next layer, once all neurons of this one are rewritten."""
        reg, d = self.registry, self.registry.dimension
        constants = [
            b + sum((w * c for w, c in zip(row, self.constants, strict=True) if c), ZERO)
            for row, b in zip(weight.tolist(), bias, strict=True)
        ]
        if not self.features:
            return [_Sum([ZERO] * d + [c], [], c) for c in constants]
        count = len(self.features)
        spread = [[s if f == place else ZERO for f in range(count)] for place, s in self.places]
        weights = product(weight, matrix(spread, count))
        values = matrix([reg.pad(f.y) for f in self.features], reg.size)
        rows = product(weights, values).tolist()
        for row, c in zip(rows, constants, strict=True):
            row[d] += c
        return [_Sum(*parts) for parts in zip(rows, weights.tolist(), constants, strict=True)]

    def add(self, unit: int, row: Row, weights: Row, constant: fmpq, known: _Known) -> None:
        """Rewrite neuron `unit` with pre-activation `row` = weights·features + constant."""
        tick()
        reg = self.registry
        row = reg.reduce(row)
        if reg.is_constant(row):
            value = row[reg.dimension]
            self._close(Step("constant"), -1, ONE, value if value > 0 else ZERO)
            return
        lower, upper = self._interval(row, weights, constant)
        lower = ZERO if known.whole > 0 else lower
        upper = ZERO if known.whole < 0 else upper
        if upper is not None and upper <= 0:
            self._close(Step("dead"), -1, ONE, ZERO)
            return
        if lower is not None and lower >= 0:
            self._feature(Step("linear"), row, row, upper, unit)
            return
        positive = self._unbend(row, weights, constant, 1, known.rest)
        negative = self._unbend(row, weights, constant, -1, known.rest)
        identities: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []
        if positive and negative:
            (q, units), (q_, units_) = positive, negative
            y, y_ = reg.relu(q), reg.relu(q_)
            reg.learn(combine(reg, [(ONE, y), (-ONE, y_), (-ONE, row)]))
            identities.append(("tie", units, units_))
        pair = self._difference(weights, constant)
        if pair:
            reg.learn(self._minimum(weights, *pair))
            identities.append(("minimum", (pair[0],), (pair[1],)))
        found = tuple(identities)
        if positive:
            q, units = positive
            q = reg.reduce(q)
            self._feature(Step("unbend", units, found), q, reg.relu(q), upper, unit)
        elif negative:
            q, units = negative
            y = combine(reg, [(ONE, row), (ONE, reg.relu(q))])
            self._feature(Step("unbend negative", units, found), row, y, upper, unit)
        else:
            self._feature(Step("plain", (), found), row, reg.relu(row), upper, unit)

    def _interval(self, row: Row, weights: Row, constant: fmpq) -> tuple[fmpq | None, fmpq | None]:
        """Bounds of a pre-activation: from its parts and, where it is affine, from the domain."""
        reg, d = self.registry, self.registry.dimension
        lower, upper = _bounds(weights, constant, self.before)
        if not reg.is_affine(row):
            if not self.before:
                raise AssertionError("the first layer is affine")
            return lower, upper
        low, high = reg.domain.range(row[:d], row[d])
        lower, upper = _tighter(lower, low, max), _tighter(upper, high, min)
        side = reg.domain.side(row[:d], row[d])
        if side:
            lower, upper = (ZERO, upper) if side > 0 else (lower, ZERO)
        return lower, upper

    def _feature(self, step: Step, z: Row, y: Row, upper: fmpq | None, unit: int) -> None:
        """Store relu(z) = y, or recognise a positive multiple of an earlier feature."""
        d = self.registry.dimension
        terms = [(i, v) for i, v in enumerate(z) if v]
        if all(i == d for i, _ in terms):  # unbending may leave a constant
            value = z[d]
            self._close(step, -1, ONE, value if value > 0 else ZERO)
            return
        size = abs(next(v for i, v in terms if i != d))
        key = tuple((i, v / size) for i, v in terms)
        found = self.index.get(key)
        if found is None:
            self.index[key] = (len(self.features), size)
            self.features.append(Feature(z, y, upper, unit))
            self._close(step, len(self.features) - 1, ONE, ZERO)
            return
        place, first = found
        scale = size / first
        held = self.features[place]
        if upper is not None and (held.upper is None or upper / scale < held.upper):
            self.features[place] = held._replace(upper=upper / scale)
        self._close(step, place, scale, ZERO)

    def _close(self, step: Step, place: int, scale: fmpq, constant: fmpq) -> None:
        self.steps.append(step)
        self.places.append((place, scale))
        self.constants.append(constant)

    def _unbend(
        self, row: Row, weights: Row, constant: fmpq, sign: int, shown: Mapping[int, int]
    ) -> tuple[Row, tuple[int, ...]] | None:
        """q with relu(sign·row) = relu(q), features of positive weight read as their z."""
        chosen = self._bendable(weights, constant, sign, shown)
        if not chosen:
            return None
        parts = [(fmpq(sign), row)]
        for k in chosen:
            w = sign * weights[k]
            parts += [(w, self.before[k].z), (-w, self.before[k].y)]
        units = tuple(self.before[k].unit for k in chosen)
        return combine(self.registry, parts), units

    def _bendable(
        self, weights: Row, constant: fmpq, sign: int, shown: Mapping[int, int]
    ) -> list[int]:
        """Features of positive weight beside which the rest is at most 0, by bounds or by proof."""
        total, open_ends = sign * constant, []
        good = [k for k in range(len(self.before)) if sign * weights[k] > 0]
        for k in good:
            high = self.before[k].upper
            if high is None:
                open_ends.append(k)
            else:
                total += sign * weights[k] * high
        chosen = []
        for k in good:
            feature = self.before[k]
            if feature.z is feature.y:
                continue
            rest = total if feature.upper is None else total - sign * weights[k] * feature.upper
            bounded = rest <= 0 and all(o == k for o in open_ends)
            if bounded or shown.get(k) == -sign:
                chosen.append(k)
        return chosen

    def _difference(self, weights: Row, constant: fmpq) -> tuple[int, int] | None:
        """(j, k) as neurons if the pre-activation is w_j y_j - w_k y_k with nothing else."""
        if constant or not self.before:
            return None
        present = [k for k, w in enumerate(weights) if w]
        if len(present) != 2:
            return None
        j, k = present if weights[present[0]] > 0 else present[::-1]
        if weights[j] > 0 > weights[k]:
            return self.before[j].unit, self.before[k].unit
        return None

    def _minimum(self, weights: Row, unit_j: int, unit_k: int) -> Row:
        """relu(u - relu(v)) + relu(u - relu(u - v)) - relu(u), zero for all u and v."""
        reg = self.registry
        j = next(i for i, f in enumerate(self.before) if f.unit == unit_j)
        k = next(i for i, f in enumerate(self.before) if f.unit == unit_k)
        w, o = weights[j], -weights[k]
        u, v = [(w, self.before[j].z)], [(o, self.before[k].z)]
        relu_v = [(o, self.before[k].y)]
        minus = [(-s, r) for s, r in relu_v]
        first = reg.relu(combine(reg, u + minus))
        gap = reg.relu(combine(reg, u + [(-s, r) for s, r in v]))
        second = reg.relu(combine(reg, [*u, (-ONE, gap)]))
        return combine(reg, [(ONE, first), (ONE, second), (-w, self.before[j].y)])


def _bounds(
    weights: Row, constant: fmpq, features: list[Feature]
) -> tuple[fmpq | None, fmpq | None]:
    """Interval of Σ w y + c from 0 <= y <= upper."""
    lower: fmpq | None = constant
    upper: fmpq | None = constant
    if not features:
        return None, None
    for w, feature in zip(weights, features, strict=True):
        if w > 0:
            if upper is not None:
                upper = None if feature.upper is None else upper + w * feature.upper
        elif w < 0 and lower is not None:
            lower = None if feature.upper is None else lower + w * feature.upper
    return lower, upper


def _tighter(held: fmpq | None, new: fmpq | None, better) -> fmpq | None:
    if held is None or new is None:
        return new if held is None else held
    return better(held, new)

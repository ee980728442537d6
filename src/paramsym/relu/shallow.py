"""One hidden layer: canonical form, decision and witness for all parameters.

relu(u) = (u + |u|)/2, so a hidden layer adds to the affine functions only the *unoriented* atoms
|l_H|, one per hyperplane H. The atoms of distinct hyperplanes that cross an open set, together with
x_1 … x_d and 1, are linearly independent on it: near a point of H on no other hyperplane only
|l_H| is not smooth. Hence two networks agree iff their coefficients agree. Zero rows, parallel,
duplicate and opposite hyperplanes, dead units and different widths are all covered, and the cost
is O(n(d+m)) plus hashing.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from paramsym.relu.arithmetic import fmpq, fmpq_mat
from paramsym.relu.clock import tick
from paramsym.relu.domains import Domain, as_domain
from paramsym.relu.errors import ReLUError
from paramsym.relu.network import Layer, Network
from paramsym.relu.rationals import (
    HALF,
    ONE,
    ZERO,
    column,
    dot,
    fraction,
    fractions,
    product,
    rational,
)
from paramsym.relu.reading import as_network

Key = tuple[fmpq, ...]  # (normal, offset), first non-zero entry of the normal scaled to 1


@dataclass(frozen=True)
class CanonicalForm:
    """f(x) = Σ_H kinks[H]·|H·(x, 1)| + linear·x + constant, unique on the domain.

    Attributes:
        kinks: hyperplane (normal, offset; d+1 entries, first non-zero entry of the normal 1) ↦
            the coefficient of its absolute value, m entries, never all zero.
        linear: m×d.
        constant: m entries.
    """

    kinks: dict[Key, tuple[fmpq, ...]]
    linear: fmpq_mat
    constant: list[fmpq]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CanonicalForm):
            return NotImplemented
        return (
            self.constant == other.constant
            and self.linear == other.linear
            and self.kinks == other.kinks
        )

    @property
    def hyperplanes(self) -> list[tuple[Fraction, ...]]:
        """The visible hyperplanes (normal, offset), in a fixed order."""
        return [fractions(key) for key in sorted(self.kinks, key=_order)]

    def jump(self, hyperplane: tuple[Fraction, ...]) -> list[list[Fraction]]:
        """The jump of the gradient across a hyperplane, m×d: twice the coefficient times normal."""
        key = tuple(rational(v) for v in hyperplane)
        return [[fraction(2 * k * a) for a in key[:-1]] for k in self.kinks[key]]

    def __call__(self, point: list[Fraction]) -> list[Fraction]:
        """The value at a point."""
        x = [rational(v) for v in point]
        value = [
            v + c for v, c in zip((self.linear * column(x)).entries(), self.constant, strict=True)
        ]
        for key, kink in self.kinks.items():
            size = abs(dot(key[:-1], x) + key[-1])
            value = [v + k * size for v, k in zip(value, kink, strict=True)]
        return list(fractions(value))


def _order(key: Key) -> list[tuple[int, int]]:
    return [(int(v.p), int(v.q)) for v in key]


def shallow_canonical_form(network: object, domain: object = None) -> CanonicalForm:
    """The canonical form of a network with at most one hidden layer, on a domain.

    Two such networks are the same function on the domain iff their canonical forms are equal; no
    genericity is assumed.

    Args:
        network: anything `as_network` reads, with d inputs, n hidden units and m outputs.
        domain: anything `as_domain` reads; all of R^d by default.

    Raises `ReLUError` if there are two hidden layers or more.
    Source: F1, F2 and Theorem 1 of the specification (after Dereich and Kassing; Petzka et al.).
    """
    net = as_network(network, "relu.shallow_canonical_form(network)")
    if net.depth > 1:
        raise ReLUError(
            f"a network with {net.depth} hidden layers",
            "at most one",
            "relu.shallow_canonical_form",
            "Use relu.decide for deeper networks.",
        )
    return canonical_form(net, as_domain(domain, net.input_dim))


def canonical_form(net: Network, domain: Domain) -> CanonicalForm:
    """`shallow_canonical_form` behind the door."""
    if net.depth == 0:
        weight, bias = net.exact[0]
        return CanonicalForm({}, weight, list(bias))
    return block_form(net.exact[0], net.exact[1], domain)


def block_form(inner: Layer, outer: Layer, domain: Domain) -> CanonicalForm:
    """The canonical form of y ↦ outer(relu(inner(y))) on a domain."""
    (w1, b1), (w2, b2) = inner, outer
    m = len(b2)
    units = w1.tolist()
    columns = w2.transpose().tolist() if units else []
    kinks: dict[Key, list[fmpq]] = {}
    share = []  # the affine part of relu(u) on the domain: 1/2 crossing, 1 linear, 0 dead
    for normal, offset, out in zip(units, b1, columns, strict=True):
        tick()
        side = domain.side(normal, offset)
        if side:
            share.append(ONE if side > 0 else ZERO)
            continue
        share.append(HALF)
        pivot = next(v for v in normal if v)
        key = (*(v / pivot for v in normal), offset / pivot)
        size = abs(pivot) / 2
        held = kinks.setdefault(key, [ZERO] * m)
        for o, c in enumerate(out):
            held[o] += size * c
    weighted = [
        [s * c for s, c in zip(share, row, strict=True)] for row in (w2.tolist() if units else [])
    ]
    if units:
        halves = fmpq_mat(m, len(units), [v for r in weighted for v in r])
        linear = product(halves, w1)
        constant = [p + q for p, q in zip((halves * column(b1)).entries(), b2, strict=True)]
    else:
        linear, constant = fmpq_mat(m, w1.ncols()), list(b2)
    kept = {key: tuple(kink) for key, kink in kinks.items() if any(kink)}
    return CanonicalForm(kept, linear, constant)


def shallow_witness(
    a: Network, b: Network, form_a: CanonicalForm, form_b: CanonicalForm, domain: Domain
) -> list[fmpq]:
    """An input where two networks of different canonical form differ, found without search.

    If some kink differs, take a point x0 of its hyperplane on no other hyperplane of the
    difference (points p0 + Σ t^k u_k of the hyperplane: each other hyperplane contains at most
    d-1 of them) and a step s·normal that meets none either. The second difference of f-g there is
    2s|normal|² times the difference of the kinks, so one of x0, x0 ± s·normal is a witness.
    Otherwise f-g is affine and not zero, and one of d+1 affinely independent points is.
    """
    keys = [
        key
        for key in {**form_a.kinks, **form_b.kinks}
        if form_a.kinks.get(key) != form_b.kinks.get(key)
    ]
    if not keys:
        points = domain.corners()
    else:
        keys.sort(key=lambda key: sum(len(str(v)) for v in key))
        points = _second_difference(keys[0], keys[1:], domain)
    for point in points:
        if domain.contains(point) and a.evaluate(point) != b.evaluate(point):
            return point
    raise AssertionError("canonical forms differ but no witness was found: a bug of paramsym")


def _second_difference(key: Key, others: list[Key], domain: Domain) -> list[list[fmpq]]:
    normal, offset = list(key[:-1]), key[-1]
    d = len(normal)
    start = domain.zero(normal, offset)
    pivot = next(i for i, v in enumerate(normal) if v)
    free = [k for k in range(d) if k != pivot]
    room = domain.room(start)
    tries = len(others) * max(d - 1, 1) + 1
    reach = ONE
    if room is not None:
        size = sum((max(ONE, abs(normal[k] / normal[pivot])) for k in free), ZERO)
        reach = min(ONE, room / (2 * size)) if free else ONE
    for count in range(tries + 1):
        t = fmpq(count) if room is None else reach * count / (tries + 1)
        point, power = list(start), ONE
        for k in free:
            tick()
            power *= t
            point[k] += power
            point[pivot] -= power * normal[k] / normal[pivot]
        values = [dot(o[:-1], point) + o[-1] for o in others]
        if all(values):
            break
    else:
        raise AssertionError("no generic point on a hyperplane: a bug of paramsym")
    step = ONE
    for value, other in zip(values, others, strict=True):
        slope = abs(dot(other[:-1], normal))
        if slope:
            step = min(step, abs(value) / slope / 2)
    room = domain.room(point)
    if room is not None:
        step = min(step, room / max(abs(v) for v in normal) / 2)
    return [
        point,
        [p + step * n for p, n in zip(point, normal, strict=True)],
        [p - step * n for p, n in zip(point, normal, strict=True)],
    ]

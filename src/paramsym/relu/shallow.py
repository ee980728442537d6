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
from paramsym.relu.hyperplanes import SMOOTH_SHARE, Key, add_at, hyperplane
from paramsym.relu.network import Layer, Network
from paramsym.relu.rationals import (
    ONE,
    ZERO,
    along,
    column,
    dot,
    fraction,
    fractions,
    matrix,
    product,
    rational,
)
from paramsym.relu.reading import as_network


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
        value = along(self.constant, ONE, (self.linear * column(x)).entries())
        for key, kink in self.kinks.items():
            value = along(value, abs(_value(key, x)), kink)
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
    kinks: dict[Key, list[fmpq]] = {}
    shares = []
    for normal, offset, out in zip(w1.tolist(), b1, w2.transpose().tolist(), strict=True):
        tick()
        side = domain.side(normal, offset)
        shares.append(SMOOTH_SHARE[side])
        if side == 0:
            lead, key = hyperplane(normal, offset)
            add_at(kinks, key, abs(lead) / 2, out)
    weighted = [[s * c for s, c in zip(shares, row, strict=True)] for row in w2.tolist()]
    affine = matrix(weighted, len(shares))
    linear = product(affine, w1)
    constant = along((affine * column(b1)).entries(), ONE, b2)
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
    """x0 and x0 ± s·normal: x0 in the hyperplane, and no other one meets the segment."""
    normal = key[:-1]
    point = _point_on_no_other(key, others, domain)
    step = _clear_step(point, normal, others, domain)
    return [point, along(point, step, normal), along(point, -step, normal)]


def _point_on_no_other(key: Key, others: list[Key], domain: Domain) -> list[fmpq]:
    """The first p0 + Σ t^k u_k, of equally spaced t >= 0, that no other hyperplane contains.

    The u_k = e_k - a_k·e_p span the hyperplane's directions, a_p = 1 being its first entry.
    """
    normal, offset = key[:-1], key[-1]
    start = domain.zero(normal, offset)
    pivot = next(k for k, a in enumerate(normal) if a)
    free = [a for k, a in enumerate(normal) if k != pivot]
    tries = len(others) * max(len(free), 1) + 1
    spacing = _spacing(free, domain.room(start), tries + 1)
    for count in range(tries + 1):
        powers = _powers(spacing * count, len(free))
        powers.insert(pivot, -dot(free, powers))
        point = along(start, ONE, powers)
        if all(_value(other, point) for other in others):
            return point
    raise AssertionError("no generic point on a hyperplane: a bug of paramsym")


def _spacing(free: list[fmpq], room: fmpq | None, count: int) -> fmpq:
    """The difference of `count` values of t for which p0 + Σ t^k u_k is inside the domain.

    For t <= 1 no entry of Σ t^k u_k is beyond t·Σ max(1, |a_k|): half of the room is enough.
    """
    if room is None or not free:
        return ONE
    size = sum((max(ONE, abs(a)) for a in free), ZERO)
    return min(ONE, room / (2 * size)) / count


def _powers(t: fmpq, count: int) -> list[fmpq]:
    """t, t², …, t^count."""
    powers, power = [], ONE
    for _ in range(count):
        tick()
        power *= t
        powers.append(power)
    return powers


def _clear_step(
    point: list[fmpq], normal: tuple[fmpq, ...], others: list[Key], domain: Domain
) -> fmpq:
    """s <= 1 with point ± s·normal inside the domain, short of every other hyperplane."""
    steps = [ONE]
    for other in others:
        slope = abs(dot(other[:-1], normal))
        if slope:
            steps.append(abs(_value(other, point)) / slope / 2)
    room = domain.room(point)
    if room is not None:
        steps.append(room / max(abs(v) for v in normal) / 2)
    return min(steps)


def _value(key: Key, point: list[fmpq]) -> fmpq:
    return dot(key[:-1], point) + key[-1]

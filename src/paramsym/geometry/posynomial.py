"""A cost along the scales of an orbit: a convex sum of exponentials.

With y the logarithms of all scales, a sum of powers of absolute values is

    f(y) = Σ_t Σ_i m_t[i] · Π_k exp(q_tk · y_k[i_k]),

where the mass m_t is what the entries of a block add up to that the same scales multiply, and each
factor k of the term is one family of scales on one or more axes of it. f is convex, because each
summand is the exponential of a linear function. Sums over i are products of m_t with vectors, so
that neither the weighted masses nor the Hessian are ever stored.

Most terms have one factor or two. Those with one are vectors along y, added up for each power q;
those with two are matrices between two families. All others are contracted axis by axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from paramsym.geometry.masses import Diagonal, Mass
from paramsym.geometry.small import STEEPEST, Small, SmallPoint
from paramsym.geometry.terms import (
    Factor,
    Term,
    as_it_lies,
    is_apart,
    is_diagonal,
    is_plain,
    summed,
    without_cancelled,
)


class _Pair(NamedTuple):
    """A matrix between two families, by their places in the order of `Posynomial.shapes`."""

    mass: Mass
    rows: int
    columns: int
    powers: tuple[float, float]


class Posynomial:
    """f(y) for y one vector, the families one after the other.

    Args:
        shapes: the shape of each family of scales.
        terms: what f adds up. Terms with the same factors are joined.
        constant: what no scale moves.
        origin: what is added to every y, of shape (size,): then y counts from there.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        terms: Sequence[Term],
        constant: float = 0.0,
        origin: Tensor | None = None,
    ) -> None:
        self.shapes = dict(shapes)
        self.sizes = {name: math.prod(shape) for name, shape in self.shapes.items()}
        self.lengths = [*self.sizes.values()]
        self.size = sum(self.lengths)
        self.origin = origin
        joined: dict[tuple[Factor, ...], Tensor] = {}
        kept: list[Term] = []
        for term in terms:
            if term.power is not None and is_plain(term):
                kept.append(term)
                continue
            mass, fixed = without_cancelled(term)
            constant += fixed
            key = term.factors
            joined[key] = joined[key] + mass if key in joined else mass
        self.terms = (*(Term(mass, factors) for factors, mass in joined.items()), *kept)
        self.constant = constant
        self._sort()

    def _sort(self) -> None:
        """Vectors by power, matrices between families, and the terms that are neither."""
        self.lines: dict[float, Tensor] = {}
        self.pairs: list[_Pair] = []
        self.others: list[Term] = []
        place = {name: k for k, name in enumerate(self.shapes)}
        for term in self.terms:
            if is_diagonal(term):
                a, b = term.factors
                mass = Diagonal(term.mass.double().permute(a.axes).reshape(-1))
                self.pairs.append(_Pair(mass, place[a.family], place[b.family], (a.power, b.power)))
            elif not is_apart(term):
                self.others.append(Term(term.mass.double(), term.factors))
            elif len(term.factors) == 1:
                (factor,) = term.factors
                if factor.power not in self.lines:
                    self.lines[factor.power] = torch.zeros(self.size, dtype=torch.float64)
                own = self.split(self.lines[factor.power])[factor.family]
                own.add_(term.read().permute(factor.axes))
            else:
                a, b = as_it_lies(term)
                matrix = term.mass.permute(*a.axes, *b.axes)
                matrix = matrix.reshape(math.prod(matrix.shape[: len(a.axes)]), -1)
                pair = Mass(matrix, term.power), place[a.family], place[b.family]
                self.pairs.append(_Pair(*pair, (a.power, b.power)))
        self.powers = {*self.lines, *(q for pair in self.pairs for q in pair.powers)}

    def split(self, y: Tensor) -> dict[str, Tensor]:
        """The families of a vector of shape (size,), each in its shape."""
        parts = self.flat(y)
        return {n: p.reshape(s) for (n, s), p in zip(self.shapes.items(), parts, strict=True)}

    def flat(self, y: Tensor) -> Sequence[Tensor]:
        """The families of a vector of shape (size,), each a vector."""
        return y.split_with_sizes(self.lengths) if self.lengths else ()

    def joined(self, parts: Mapping[str, Tensor]) -> Tensor:
        """One vector from the families; those that are missing are zero."""
        made = torch.zeros(self.size, dtype=torch.float64)
        for name, view in self.split(made).items():
            if name in parts:
                view.copy_(parts[name])
        return made

    def at(self, y: Tensor) -> Point:
        """f with its derivatives at y."""
        return Point(self, y)

    @cached_property
    def here(self) -> Point:
        """f with its derivatives at zero."""
        small = None if self.small is None else self.small.here
        return Point(self, torch.zeros(self.size, dtype=torch.float64), small)

    @cached_property
    def small(self) -> Small | None:
        """The same in NumPy, where there are few numbers, and vectors and matrices alone."""
        if self.others or not all(pair.mass.whole for pair in self.pairs):
            return None
        return Small(
            self.sizes,
            {q: line.numpy() for q, line in self.lines.items()},
            [(m.source.numpy(), (a, b), powers) for m, a, b, powers in self.pairs],
            self.constant,
            None if self.origin is None else self.origin.numpy(),
        )

    @cached_property
    def _fastest(self) -> float:
        """Σ |q| over the factors of a term, at most."""
        return max((sum(abs(k.power) for k in t.factors) for t in self.terms), default=0.0)

    def exponents(self, y: Tensor) -> Tensor:
        """y from where the masses were taken."""
        return y if self.origin is None else y + self.origin

    def longest(self, direction: Tensor) -> float:
        """How far an exponent moves at most along a direction of shape (size,), or a bound on it
        that is no more than one."""
        largest = float(direction.abs().max()) if self.size else 0.0
        if largest * self._fastest <= 1:
            return largest * self._fastest
        parts = self.split(direction)
        peaks = {n: float(part.abs().max()) for n, part in parts.items() if part.numel()}
        moved = (sum(abs(k.power) * peaks[k.family] for k in t.factors) for t in self.terms)
        return max(moved, default=0.0)

    def pulls(self, family: str, z: Tensor) -> dict[float, Tensor]:
        """What multiplies exp(q·z) of one family in f, by power q, each of the family's size.

        Args:
            family: whose scales they are.
            z: the `exponents`, of shape (size,).
        """
        parts, own = self.flat(z), [*self.shapes].index(family)
        found = {q: self.flat(line)[own] for q, line in self.lines.items()}

        def add(power: float, pull: Tensor) -> None:
            found[power] = found[power] + pull if power in found else pull

        for mass, a, b, (p, q) in self.pairs:
            if own == a:
                add(p, mass.times(grown(q, parts[b])))
            if own == b:
                add(q, mass.transposed(grown(p, parts[a])))
        shaped = self.split(z) if self.others else {}
        for term in self.others:
            if any(factor.family == family for factor in term.factors):
                weights = [(k.power * shaped[k.family]).exp() for k in term.factors]
                for k, factor in enumerate(term.factors):
                    if factor.family == family:
                        add(factor.power, summed(term, weights, k).reshape(-1))
        return found

    def reached(self, free: Tensor, side: int) -> Tensor:
        """Which scales something fixed holds from one side, of shape (size,), as 0 and 1.

        Let a summand m·exp(y_i − y_j) be an arc from j to i, and one with y_i alone an arc from
        what is fixed. With `side` 1 these are the scales that arcs lead to from what is fixed, and
        with −1 those from which they lead there. Held from one side alone, they all could go to
        infinity together, and what holds them to zero.
        """
        seen = 1.0 - free
        for power, line in self.lines.items():
            if power * side > 0:
                _mark(seen, line)
        parts, before, now = self.flat(seen), -1.0, float(seen.sum())
        while before != now < self.size:
            before = now
            for mass, a, b, (p, q) in self.pairs[::side]:
                for into, power, other, along, product in (
                    (a, p, b, q, mass.times),
                    (b, q, a, p, mass.transposed),
                ):
                    if power * side > 0 and not bool(parts[into].all()):
                        weights = (
                            parts[other] if along * side < 0 else torch.ones_like(parts[other])
                        )
                        _mark(parts[into], product(weights))
            if self.others:
                self._reach_others(self.split(seen), side)
            now = float(seen.sum())
        return seen

    def _reach_others(self, seen: Mapping[str, Tensor], side: int) -> None:
        """One step along the arcs of terms that are no matrices."""
        for term in self.others:
            weights = [
                seen[j.family] if j.power * side < 0 else torch.ones_like(seen[j.family])
                for j in term.factors
            ]
            for k, factor in enumerate(term.factors):
                if factor.power * side > 0:
                    _mark(seen[factor.family], summed(term, weights, k))


class Point:
    """f, its gradient and its Hessian at one y; computed in double precision.

    Attributes:
        y: where it is, of shape (size,).
        value: f(y).
        up, down: Σ |q|·m·exp(…) over the factors with q > 0, and with q < 0, of shape (size,).
        gradient: ∇f(y), of shape (size,).
        curvature: Σ q² of what moves each coordinate, of shape (size,): the Hessian's diagonal,
            or, where two factors of a term are of one family, close to it.
    """

    def __init__(self, f: Posynomial, y: Tensor, small: SmallPoint | None = None) -> None:
        self.f, self.y = f, y
        if f.small is None:
            self._add_up()
        else:
            self._read(small or f.small.at(y.numpy()))
        self.gradient = self.up - self.down

    def _read(self, small: SmallPoint) -> None:
        """All that is known of the same point in NumPy."""
        self.value, self.weights = small.value, []
        self.up, self.down = torch.from_numpy(small.up), torch.from_numpy(small.down)
        self.curvature = torch.from_numpy(small.curvature)
        grown = torch.from_numpy(small.grown)
        self.factors = [(grown[pair.left], grown[pair.right]) for pair in small.f.pairs]

    def _add_up(self) -> None:
        """Vectors, matrices and all others, one after the other."""
        f = self.f
        z = f.exponents(self.y)
        grown_by = {power: grown(power, z) for power in f.powers}
        weights = {power: f.flat(whole) for power, whole in grown_by.items()}
        # what multiplies exp(q·z), by power q
        pulls = {
            q: f.lines[q].clone() if q in f.lines else torch.zeros_like(z) for q in f.powers
        }  # fmt: skip
        parts = {power: f.flat(whole) for power, whole in pulls.items()}
        value = f.constant + sum(float(line @ grown_by[q]) for q, line in f.lines.items())
        self.factors: list[tuple[Tensor, Tensor]] = []  # of the pairs
        for mass, a, b, (p, q) in f.pairs:
            left, right = weights[p][a], weights[q][b]
            self.factors.append((left, right))
            along, across = mass.both(left, right)
            value += float(left @ along)
            parts[p][a].add_(along)
            parts[q][b].add_(across)
        for power, whole in pulls.items():
            whole.mul_(grown_by[power])
        self.value = value + self._add_others(z, pulls)
        self.up, self.down = (_weighted(pulls, side, 1, z) for side in (1, -1))
        self.curvature = _weighted(pulls, 1, 2, z) + _weighted(pulls, -1, 2, z)

    def _add_others(self, z: Tensor, pulls: dict[float, Tensor]) -> float:
        """What the terms that are no vectors and no matrices add; their weights are kept."""
        f = self.f
        shaped = f.split(z) if f.others else {}
        self.weights = [[(k.power * shaped[k.family]).exp() for k in t.factors] for t in f.others]
        # for each term and factor, the sum over everything else: q · it is its gradient
        self.sums = [
            [w[k] * summed(term, w, k) for k in range(len(w))]
            for term, w in zip(f.others, self.weights, strict=True)
        ]
        for term, sums in zip(f.others, self.sums, strict=True):
            for factor, found in zip(term.factors, sums, strict=True):
                whole = pulls.setdefault(factor.power, torch.zeros_like(z))
                f.split(whole)[factor.family].add_(found)
        return sum(float(sums[0].sum()) for sums in self.sums)

    def inverse(self, free: Tensor) -> Callable[[Tensor], Tensor]:
        """The inverse of the curvature, coordinate by coordinate."""
        curvature = self.curvature
        scale = curvature.reciprocal().where(curvature > 0, 1.0)
        return lambda v: v * scale

    def hessian(self, v: Tensor) -> Tensor:
        """∇²f(y) v, of shape (size,)."""
        made = self.curvature * v
        out, parts = self.f.flat(made), self.f.flat(v)
        for (mass, a, b, (p, q)), (left, right) in zip(self.f.pairs, self.factors, strict=True):
            along, across = mass.both(left * parts[a], right * parts[b])
            out[a].addcmul_(left, along, value=p * q)
            out[b].addcmul_(right, across, value=p * q)
        if self.f.others:
            self._add_mixed(self.f.split(made), self.f.split(v))
        return made

    def _add_mixed(self, out: Mapping[str, Tensor], parts: Mapping[str, Tensor]) -> None:
        """What other factors of the same term do to each factor."""
        for term, weights in zip(self.f.others, self.weights, strict=True):
            for k, own in enumerate(term.factors):
                for other, factor in enumerate(term.factors):
                    if other != k:
                        moved = list(weights)
                        moved[other] = weights[other] * factor.power * parts[factor.family]
                        found = weights[k] * summed(term, moved, k)
                        out[own.family].add_(found, alpha=own.power)


def grown(power: float, y: Tensor) -> Tensor:
    """exp(q·y), finite where nothing is multiplied by it."""
    return (power * y).clamp_(max=STEEPEST).exp_()


def _weighted(found: Mapping[float, Tensor], side: int, order: int, like: Tensor) -> Tensor:
    """Σ |q|^order of what is found for powers q of one sign."""
    made = [x * abs(q) ** order for q, x in found.items() if q * side > 0]
    return sum(made[1:], made[0]) if made else torch.zeros_like(like)


def _mark(seen: Tensor, found: Tensor) -> None:
    """Set to one what something positive is found for."""
    seen.masked_fill_(found > 0, 1.0)

"""A cost along the scales of an orbit: a convex sum of exponentials.

With y the logarithms of all scales, a sum of powers of absolute values is

    f(y) = Σ_t Σ_i m_t[i] · Π_k exp(q_tk · y_k[i_k]),

where the mass m_t is what the entries of a block add up to that the same scales multiply, and each
factor k of the term is one family of scales on one or more axes of it. f is convex, because each
summand is the exponential of a linear function. Sums over i are products of m_t with vectors, so
that neither the weighted masses nor the Hessian are ever stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paramsym.structure.contraction import contracted

_CHUNK = 1 << 22  # numbers that are widened to double precision at a time


@dataclass(frozen=True)
class Factor:
    """The scales of one family on axes of a mass, to a power q ≠ 0: exp(q · y[…])."""

    family: str
    axes: tuple[int, ...]
    power: float


@dataclass(frozen=True)
class Term:
    """A mass m ≥ 0 with the families of scales that multiply it."""

    mass: Tensor
    factors: tuple[Factor, ...]


class Posynomial:
    """f(y) for y one vector, the families one after the other.

    Args:
        shapes: the shape of each family of scales.
        terms: what f adds up. Terms with the same factors are joined.
        constant: what no scale moves.
    """

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], terms: Sequence[Term], constant: float = 0.0
    ) -> None:
        self.shapes = dict(shapes)
        self.sizes = {name: math.prod(shape) for name, shape in self.shapes.items()}
        self.size = sum(self.sizes.values())
        joined: dict[tuple[Factor, ...], Tensor] = {}
        for term in terms:
            mass, fixed = _without_cancelled(term)
            constant += fixed
            key = term.factors
            joined[key] = joined[key] + mass if key in joined else mass
        self.terms = tuple(Term(mass, factors) for factors, mass in joined.items())
        self.constant = constant

    def split(self, y: Tensor) -> dict[str, Tensor]:
        """The families of a vector of shape (size,), each in its shape."""
        parts = torch.split(y, list(self.sizes.values())) if self.sizes else ()
        return {n: p.reshape(s) for (n, s), p in zip(self.shapes.items(), parts, strict=True)}

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

    def longest(self, direction: Tensor) -> float:
        """How far an exponent moves at most along a direction of shape (size,)."""
        parts = self.split(direction)
        peaks = {n: float(part.abs().max()) for n, part in parts.items() if part.numel()}
        moved = (sum(abs(k.power) * peaks[k.family] for k in t.factors) for t in self.terms)
        return max(moved, default=0.0)

    def pulls(self, family: str, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """By scale of one family, what grows with it, what falls with it, and Σ q² of both.

        Σ |q|·m·exp(…) over the factors with q > 0, and over those with q < 0.
        """
        parts = self.split(y)
        up, down, both = (torch.zeros(self.shapes[family], dtype=torch.float64) for _ in range(3))
        for term in self.terms:
            if all(factor.family != family for factor in term.factors):
                continue
            weights = [(k.power * parts[k.family]).exp() for k in term.factors]
            for k, factor in enumerate(term.factors):
                if factor.family == family:
                    found = weights[k] * _summed(term, weights, k)
                    (up if factor.power > 0 else down).add_(abs(factor.power) * found)
                    both.add_(factor.power**2 * found)
        return up, down, both

    def reached(self, free: Tensor, side: int) -> Tensor:
        """Which scales something fixed holds from one side, of shape (size,), as 0 and 1.

        Let a summand m·exp(y_i − y_j) be an arc from j to i, and one with y_i alone an arc from
        what is fixed. With `side` 1 these are the scales that arcs lead to from what is fixed, and
        with −1 those from which they lead there. Held from one side alone, they all could go to
        infinity together, and what holds them to zero.
        """
        seen = 1.0 - free
        while True:
            found, parts = seen.clone(), self.split(seen)
            into = self.split(found)
            for term in self.terms:
                for k, factor in enumerate(term.factors):
                    if factor.power * side > 0:
                        weights = [
                            parts[j.family]
                            if j.power * side < 0
                            else torch.ones_like(parts[j.family])
                            for j in term.factors
                        ]
                        into[factor.family].add_(_summed(term, weights, k))
            found = (found > 0).double()
            if torch.equal(found, seen):
                return seen
            seen = found


class Point:
    """f, its gradient and its Hessian at one y; computed in double precision."""

    def __init__(self, f: Posynomial, y: Tensor) -> None:
        self.f, self.y = f, y
        parts = f.split(y)
        self.weights = [
            [(k.power * parts[k.family]).exp() for k in term.factors] for term in f.terms
        ]
        # for each term and factor, the sum over everything else: q · it is its gradient
        self.sums = [
            [w[k] * _summed(term, w, k) for k in range(len(w))]
            for term, w in zip(f.terms, self.weights, strict=True)
        ]

    @property
    def value(self) -> float:
        """f(y)."""
        return self.f.constant + sum(float(sums[0].sum()) for sums in self.sums)

    @property
    def gradient(self) -> Tensor:
        """∇f(y), of shape (size,)."""
        return self._collected((k, k.power * s) for k, s in self._each())

    @property
    def curvature(self) -> Tensor:
        """Σ q² of what moves each coordinate, of shape (size,): the Hessian's diagonal, or, where
        two factors of a term are of one family, close to it."""
        return self._collected((k, k.power**2 * s) for k, s in self._each())

    def inverse(self, free: Tensor) -> Callable[[Tensor], Tensor]:
        """The inverse of the curvature, coordinate by coordinate."""
        curvature = self.curvature
        scale = torch.where(curvature > 0, curvature, torch.ones_like(curvature))
        return lambda v: v / scale

    def hessian(self, v: Tensor) -> Tensor:
        """∇²f(y) v, of shape (size,)."""
        parts = self.f.split(v)
        return self._collected(self._along(parts))

    def _along(self, parts: Mapping[str, Tensor]) -> Iterator[tuple[Factor, Tensor]]:
        for term, weights, sums in zip(self.f.terms, self.weights, self.sums, strict=True):
            for k, own in enumerate(term.factors):
                made = own.power * parts[own.family] * sums[k]
                for other, factor in enumerate(term.factors):
                    if other != k:
                        moved = list(weights)
                        moved[other] = weights[other] * factor.power * parts[factor.family]
                        made = made + weights[k] * _summed(term, moved, k)
                yield own, own.power * made

    def _each(self) -> Iterator[tuple[Factor, Tensor]]:
        for term, sums in zip(self.f.terms, self.sums, strict=True):
            yield from zip(term.factors, sums, strict=True)

    def _collected(self, found: Iterable[tuple[Factor, Tensor]]) -> Tensor:
        total = torch.zeros(self.f.size, dtype=torch.float64)
        parts = self.f.split(total)
        for factor, tensor in found:
            parts[factor.family].add_(tensor)
        return total


def _summed(term: Term, weights: Sequence[Tensor], k: int) -> Tensor:
    """Σ m · Π of the weights of all factors but the k-th, over the axes that it does not have."""
    letters = "".join(chr(ord("a") + i) for i in range(term.mass.ndim))
    named = ["".join(letters[i] for i in factor.axes) for factor in term.factors]
    out = named.pop(k)
    others = [*zip([*weights[:k], *weights[k + 1 :]], named, strict=True)]
    if len(letters) == 2 and [*letters] == sorted([out, *named]):  # a matrix and one vector
        matrix = term.mass if out == "a" else term.mass.mT
        if matrix.dtype == torch.float64:
            return matrix @ others[0][0]
    return (
        torch.cat([*_in_pieces(term.mass, letters, others, out)])
        if "a" in out
        else sum(_in_pieces(term.mass, letters, others, out), torch.zeros((), dtype=torch.float64))
    )


def _in_pieces(
    mass: Tensor, letters: str, others: Sequence[tuple[Tensor, str]], out: str
) -> Iterator[Tensor]:
    """The sum over pieces of the first axis of a mass, each widened to double precision.

    Axes are in the order of `out`.
    """
    rows = len(mass) if mass.dtype == torch.float64 else max(1, _CHUNK // mass[0].numel())
    for start in range(0, len(mass), rows):
        piece = mass[start : start + rows].double()
        cut = [(w.narrow(n.index("a"), start, len(piece)) if "a" in n else w, n) for w, n in others]
        x, found = contracted([(piece, letters), *cut], out)
        yield x if found == out else x.permute([found.index(c) for c in out])


def _without_cancelled(term: Term) -> tuple[Tensor, float]:
    """The mass without the entries on which its two factors cancel, and what these add up to.

    A map from a family to itself multiplies entry (i, j) by exp(q (y_i − y_j)), and its diagonal
    by one.
    """
    if len(term.factors) != 2:
        return term.mass, 0.0
    one, other = term.factors
    apart = [(a, b) for a, b in zip(one.axes, other.axes, strict=False) if a != b]
    if one.family != other.family or one.power != -other.power or len(apart) != 1:
        return term.mass, 0.0
    mass = term.mass.clone()
    diagonal = mass.diagonal(0, *apart[0])
    fixed = float(diagonal.double().sum())
    diagonal.zero_()
    return mass, fixed

"""A sum of exponentials with few numbers, in NumPy.

Of a network with a few hundred units a step takes less time than PyTorch needs to be called for it.
NumPy needs a third of that. What is computed is the same as in `posynomial`, whose classes are the
twins of these, for masses of any size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np

STEEPEST = 700.0  # e-folds that a number in double precision can grow by

Array = np.ndarray


class Matrix(NamedTuple):
    """A matrix between two families: what it multiplies is one row of the powers, and a slice."""

    mass: Array
    left: tuple[int, slice]
    right: tuple[int, slice]
    bend: float  # the product of both powers


_QUIET = np.errstate(all="ignore")  # what overflows is refused, or halves a step


class Small:
    """f(y) of vectors, one for each power, and of matrices between families.

    Args:
        sizes: how many scales each family has, in their order.
        lines: the vectors, of shape (size,), by power.
        pairs: matrices with the places of the families of their rows and columns, and the powers;
            those in single precision are multiplied in that.
        constant: what no scale moves.
        origin: what is added to every y, of shape (size,).
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        lines: Mapping[float, Array],
        pairs: Sequence[tuple[Array, tuple[int, int], tuple[float, float]]],
        constant: float,
        origin: Array | None,
    ) -> None:
        ends = [0, *accumulate(sizes.values())]
        self.families = [slice(*both) for both in zip(ends, ends[1:], strict=False)]
        names = [*sizes]
        powers = sorted({*lines, *(q for *_, both in pairs for q in both)})
        self.row = row = {q: k for k, q in enumerate(powers)}
        self.powers = np.array(powers)
        self.squares = self.powers**2
        self.sides = np.maximum([self.powers, -self.powers], 0.0)
        self.lines = np.zeros((len(powers), ends[-1]))
        for q, line in lines.items():
            self.lines[row[q]] = line
        self.constant, self.origin = constant, origin
        # of each family: what of the vectors is its own, by power, and the matrices that meet it
        self.alone = {
            name: {q: self.lines[row[q]][own] for q in lines}
            for name, own in zip(sizes, self.families, strict=True)
        }
        self.met: dict[str, list[tuple[float, Array, float, slice]]] = {n: [] for n in sizes}
        self.pairs: list[Matrix] = []
        for mass, (a, b), (p, q) in pairs:
            ends_of = (row[p], self.families[a]), (row[q], self.families[b])
            self.pairs.append(Matrix(mass, *ends_of, p * q))
            self.met[names[a]].append((p, mass, q, self.families[b]))
            self.met[names[b]].append((q, mass.T, p, self.families[a]))

    def exponents(self, y: Array) -> Array:
        """y from where the masses were taken."""
        return y if self.origin is None else y + self.origin

    def grown(self, z: Array) -> Array:
        """exp(q·z) for each power q, of shape (powers, size)."""
        return np.exp(np.minimum(self.powers[:, None] * z, STEEPEST))

    def pulls(self, family: str, z: Array) -> dict[float, Array]:
        """What multiplies exp(q·z) of one family in f, by power q; see `Posynomial.pulls`."""
        found = dict(self.alone[family])
        for q, mass, p, other in self.met[family]:
            pull = _times(mass, np.exp(np.minimum(p * z[other], STEEPEST)))
            found[q] = found[q] + pull if q in found else pull
        return found

    def at(self, y: Array) -> SmallPoint:
        """f with its derivatives at y."""
        return SmallPoint(self, y)

    @cached_property
    def here(self) -> SmallPoint:
        """f with its derivatives at zero."""
        return SmallPoint(self, np.zeros(self.lines.shape[1]))

    def longest(self, direction: Array) -> float:
        """A bound on how far an exponent moves along a direction: two scales move each."""
        steepest = np.abs(self.powers).max(initial=0.0)
        return float(2 * steepest * np.abs(direction).max(initial=0.0))


def _times(mass: Array, v: Array) -> Array:
    """m v in the precision of the mass: NumPy would widen the whole matrix first."""
    return mass @ v.astype(mass.dtype, copy=False)


class SmallPoint:
    """f, its gradient and its Hessian at one y; see `posynomial.Point`."""

    @_QUIET
    def __init__(self, f: Small, y: Array) -> None:
        self.f, self.y = f, y
        self.grown = grown = f.grown(f.exponents(y))
        pulls = f.lines.copy()
        for mass, left, right, _ in f.pairs:
            pulls[left] += _times(mass, grown[right])
            pulls[right] += _times(mass.T, grown[left])
        # what has two factors pulls twice
        self.value = f.constant + float(np.vdot(f.lines + pulls, grown)) / 2
        pulls *= grown
        self.pulls = pulls
        self.gradient = f.powers @ pulls
        self.curvature = f.squares @ pulls

    def sides(self) -> Array:
        """`up` and `down` of each scale, of shape (2, size)."""
        return self.f.sides @ self.pulls

    @property
    @_QUIET
    def up(self) -> Array:
        """Σ |q|·m·exp(…) over the factors with q > 0, of shape (size,)."""
        return self.f.sides[0] @ self.pulls

    @property
    @_QUIET
    def down(self) -> Array:
        """The same over those with q < 0."""
        return self.f.sides[1] @ self.pulls

    def inverse(self, free: Array) -> Callable[[Array], Array]:
        """The inverse of the curvature, coordinate by coordinate."""
        some = self.curvature > 0
        scale = np.divide(1.0, self.curvature, out=np.ones_like(self.curvature), where=some)
        return lambda v: v * scale

    def hessian(self, v: Array) -> Array:
        """∇²f(y) v, of shape (size,)."""
        made, moved = self.curvature * v, self.grown * v
        for mass, left, right, bend in self.f.pairs:
            made[left[1]] += bend * self.grown[left] * _times(mass, moved[right])
            made[right[1]] += bend * self.grown[right] * _times(mass.T, moved[left])
        return made

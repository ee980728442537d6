"""Forms, that is homogeneous polynomials, in coordinates in which rotations are isometries.

A form of degree d in n variables is f = Σ_α C(d; α) c_α x^α with multinomial coefficients C(d; α),
and c is its symmetric tensor. Its coordinates here are √C(d; α) c_α, so that their Euclidean norm
is the Frobenius norm of the tensor, which is the norm of Bombieri of f. The power (vᵀx)^d has
c_α = v^α and the norm |v|^d, and ⟨(vᵀx)^d, (wᵀx)^d⟩ = (vᵀw)^d.

Flattened into a matrix with k of the d indices along the rows, the tensor is the catalecticant. Of
a sum of r powers it has rank at most r, and the matrix has the norm of the form.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import factorial

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@lru_cache(maxsize=128)
def exponents(variables: int, degree: int) -> NDArray[np.intp]:
    """All exponents of a degree, of shape (monomials, variables), in one fixed order.

    Those of degree one are the rows of the identity.
    """
    if variables == 1:
        return np.full((1, 1), degree)
    parts = []
    for first in range(degree, -1, -1):
        rest = exponents(variables - 1, degree - first)
        parts.append(np.hstack([np.full((len(rest), 1), first), rest]))
    return np.vstack(parts)


@lru_cache(maxsize=128)
def places(variables: int, degree: int) -> dict[tuple[int, ...], int]:
    """Where each exponent stands among `exponents`."""
    return {tuple(e): k for k, e in enumerate(exponents(variables, degree).tolist())}


@lru_cache(maxsize=128)
def multinomials(variables: int, degree: int) -> Array:
    """C(d; α) of all exponents, of shape (monomials,)."""
    table = np.array([float(factorial(k)) for k in range(degree + 1)])
    return factorial(degree) / table[exponents(variables, degree)].prod(1)


@lru_cache(maxsize=128)
def _lowered(variables: int, degree: int) -> tuple[NDArray[np.intp], Array]:
    """For each monomial and variable, the monomial without it, and its exponent; (monomials, n)."""
    every, known = exponents(variables, degree), places(variables, degree - 1)
    found = np.zeros_like(every)
    for row, exponent in enumerate(every.tolist()):
        for j, power in enumerate(exponent):
            if power:
                less = (*exponent[:j], power - 1, *exponent[j + 1 :])
                found[row, j] = known[less]
    return found, every.astype(np.float64)


@lru_cache(maxsize=128)
def _sums(variables: int, degree: int, rows: int) -> tuple[NDArray[np.intp], Array]:
    """Where β + γ stands, for |β| = rows and |γ| = degree − rows, and the weight of the entry."""
    first, second = exponents(variables, rows), exponents(variables, degree - rows)
    known = places(variables, degree)
    both = (first[:, None] + second[None]).reshape(-1, variables).tolist()
    at = np.array([known[tuple(e)] for e in both]).reshape(len(first), len(second))
    weight = multinomials(variables, rows)[:, None] * multinomials(variables, degree - rows)
    return at, np.sqrt(weight / multinomials(variables, degree)[at])


def monomials(points: Array, degree: int) -> Array:
    """x^α for all |α| = degree, of shape (…, monomials), at points of shape (…, variables)."""
    steps = [np.ones_like(points)]
    for _ in range(degree):
        steps.append(steps[-1] * points)
    table = np.stack(steps, -1)  # (…, variables, degree + 1)
    every = exponents(points.shape[-1], degree)
    found = np.ones((*points.shape[:-1], len(every)))
    for j in range(points.shape[-1]):
        found = found * table[..., j, every[:, j]]
    return found


def powers(vectors: Array, degree: int) -> Array:
    """The coordinates of (vᵀx)^d, of shape (…, monomials), for v of shape (…, variables)."""
    return np.sqrt(multinomials(vectors.shape[-1], degree)) * monomials(vectors, degree)


def slopes(vectors: Array, degree: int) -> Array:
    """The derivatives of `powers` by the entries of v, of shape (…, monomials, variables)."""
    variables = vectors.shape[-1]
    at, power = _lowered(variables, degree)
    weight = power * np.sqrt(multinomials(variables, degree))[:, None]
    return weight * monomials(vectors, degree - 1)[..., at]


@dataclass(frozen=True, eq=False)
class Form:
    """A form of one degree.

    Attributes:
        variables: n.
        degree: d, at least one.
        coordinates: √C(d; α) c_α for α in the order of `exponents`, of shape (monomials,).
        given: the coefficients of x^α in the same order, where it was made of these.
    """

    variables: int
    degree: int
    coordinates: Array
    given: Array | None = None

    @staticmethod
    def of(coefficients: Array, variables: int, degree: int) -> Form:
        """From plain coefficients of x^α, in the order of `exponents`."""
        coordinates = coefficients / np.sqrt(multinomials(variables, degree))
        return Form(variables, degree, coordinates, coefficients)

    @cached_property
    def norm(self) -> float:
        """The norm of Bombieri: that of the symmetric tensor."""
        return float(np.linalg.norm(self.coordinates))

    @property
    def coefficients(self) -> Array:
        """Of x^α, in the order of `exponents`; without rounding where they were given."""
        if self.given is not None:
            return self.given
        return self.coordinates * np.sqrt(multinomials(self.variables, self.degree))

    def scaled(self, factor: float) -> Form:
        return Form(self.variables, self.degree, factor * self.coordinates)

    def catalecticant(self, rows: int) -> Array:
        """The tensor as a matrix with `rows` of its indices along the rows; its norm is `norm`."""
        at, weight = _sums(self.variables, self.degree, rows)
        return weight * self.coordinates[at]

    def derivative(self, direction: Array) -> Form:
        """The tensor with one index contracted with a direction of shape (variables,)."""
        return Form(self.variables, self.degree - 1, direction @ self.catalecticant(1))

    def floors(self, tolerance: float) -> tuple[float, ...]:
        """Entry r is a relative residual that no sum of r powers falls below, as far as these are
        above the tolerance.

        Such a sum has catalecticants of rank r at most, and the norm of what a matrix lacks to rank
        r is that of its singular values from the r-th on (Eckart and Young). The catalecticant has
        the norm of the form.
        """
        longest: list[Array] = []
        for rows in range(1, self.degree // 2 + 1):
            sizes = np.linalg.svd(self.catalecticant(rows), compute_uv=False) / self.norm
            longest.append(np.sqrt(np.cumsum(sizes[::-1] ** 2)[::-1]))
        most = max(map(len, longest))
        found = np.max([np.pad(x, (0, most - len(x))) for x in longest], axis=0)
        return tuple(found[found > tolerance].tolist())

    def restricted(self, basis: Array) -> Form:
        """g(y) = f(B y) for a basis B of shape (variables, fewer)."""
        few = basis.shape[1]
        made = np.ones((1, 1))  # products of rows of B y, as coefficients of y: (of x, of y)
        for degree in range(1, self.degree + 1):
            at = _lowered(self.variables, degree)[0]
            first = (exponents(self.variables, degree) > 0).argmax(1)
            before = made[at[np.arange(len(at)), first]]  # without one x_j, j the first there is
            made = np.zeros((len(at), len(exponents(few, degree))))
            for i in range(few):
                raised = (exponents(few, degree - 1) + np.eye(few, dtype=int)[i]).tolist()
                where = [places(few, degree)[tuple(e)] for e in raised]
                made[:, where] += basis[first, i][:, None] * before
        return Form.of(self.coefficients @ made, few, self.degree)

    def residual(self, weights: Array, vectors: Array) -> float:
        """‖f − Σ_t w_t (v_tᵀx)^d‖/‖f‖ for weights of shape (r,) and vectors of shape (r, n)."""
        left = self.coordinates - weights @ powers(vectors, self.degree)
        return float(np.linalg.norm(left)) / self.norm

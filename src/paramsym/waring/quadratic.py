"""Quadrics: the rank of a symmetric matrix, by its eigenvalues."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .coefficients import Coefficients
from .forms import Array, Form, places


class Quadric(NamedTuple):
    """xᵀA x + lᵀx + c, as Σ_t w_t (u_tᵀx + β_t)² + mᵀx + e; all weights are of eigenvalues of A.

    Attributes:
        weights: w, of shape (r,).
        vectors: u with orthonormal rows, of shape (r, variables).
        shifts: β, of shape (r,).
        slope, constant: what no square takes up: m, of shape (variables,), in the kernel of A; e.
    """

    weights: Array
    vectors: Array
    shifts: Array
    slope: Array
    constant: float


def symmetric_matrix(form: Form) -> Array:
    """A with f = xᵀA x, of shape (variables, variables)."""
    known, unit = places(form.variables, 2), np.eye(form.variables, dtype=int)
    at = [[known[tuple((a + b).tolist())] for b in unit] for a in unit]
    return form.coefficients[at] * (1 + np.eye(form.variables)) / 2


def by_eigenvalues(form: Form, tolerance: float) -> tuple[Array, Array, tuple[float, ...]]:
    """f = Σ_t λ_t (u_tᵀx)², with the fewest squares, and by number the residual of fewer.

    The r largest eigenvalues are a best approximation of rank r in the norm of the tensor (Eckart
    and Young), and their signs are those of every decomposition into as few squares (Sylvester).

    Returns:
        λ of shape (r,); u of shape (r, variables); for k < r, the least relative residual of k
        squares.
    """
    values, vectors = np.linalg.eigh(symmetric_matrix(form))
    order = np.argsort(-np.abs(values), kind="stable")
    values, vectors = values[order], vectors.T[order]
    missing = np.sqrt(np.append(np.cumsum(values[::-1] ** 2)[::-1], 0.0)) / form.norm
    rank = int((missing > tolerance).sum())
    return values[:rank], vectors[:rank], tuple(missing[:rank].tolist())


def completed(polynomial: Coefficients, tolerance: float) -> Quadric:
    """The squares completed, of a polynomial of degree at most two."""
    variables = len(next(iter(polynomial)))
    parts = {d: {e: c for e, c in polynomial.items() if sum(e) == d} for d in range(3)}
    norm = float(np.linalg.norm([*polynomial.values()]))
    coefficients = np.zeros(len(places(variables, 2)))
    for e, c in parts[2].items():
        coefficients[places(variables, 2)[e]] = c
    values, basis = np.linalg.eigh(symmetric_matrix(Form.of(coefficients, variables, 2)))
    kept = np.abs(values) > tolerance * norm
    weights, vectors = values[kept], basis.T[kept]
    slope = np.zeros(variables)
    for e, c in parts[1].items():
        slope[e.index(1)] = c
    shifts = vectors @ slope / (2 * weights)
    slope = slope - (slope @ vectors.T) @ vectors
    if np.linalg.norm(slope) <= tolerance * norm:
        slope = np.zeros(variables)
    given = sum(parts[0].values())
    constant = given - float(weights @ shifts**2)
    # rounding of a difference of numbers that may be larger than the polynomial
    if abs(constant) <= tolerance * max(norm, float(np.abs(weights) @ shifts**2)):
        constant = 0.0
    return Quadric(weights, vectors, shifts, slope, constant)

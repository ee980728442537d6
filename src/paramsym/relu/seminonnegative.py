"""Semi-nonnegative factorisation A = U·V with V >= 0: what linear neurons behind a ReLU can do.

A neuron that is positive on the whole orthant has an input row >= 0, so r such neurons add to the
function exactly the matrices U·V with V >= 0 (r×d) and any U (m×r). The least r for A is

    semirank(A) = rank A       if the non-zero columns of A lie in an open half-space of col(A),
                  rank A + 1   otherwise

(Gillis and Kumar). Which of the two holds is decided by an exact simplex method.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from paramsym.relu.arithmetic import fmpq, fmpq_mat
from paramsym.relu.randomness import generic
from paramsym.relu.rationals import ONE, ZERO, along, dot
from paramsym.relu.rationals import matrix as table_of
from paramsym.relu.simplex import open_half_space


class Columns(NamedTuple):
    """A = base·coordinates with base m×ρ, coordinates ρ×d, ρ = rank A."""

    base: fmpq_mat
    coordinates: fmpq_mat
    rank: int


def columns(matrix: fmpq_mat) -> Columns:
    """Coordinates of the columns of a matrix in its column space."""
    reduced, rank = matrix.rref()
    table = reduced.tolist()[:rank]
    pivots = [next(i for i, v in enumerate(row) if v) for row in table]
    whole = matrix.tolist()
    m, d = matrix.nrows(), matrix.ncols()
    base = fmpq_mat(m, rank, [row[i] for row in whole for i in pivots])
    return Columns(base, fmpq_mat(rank, d, [v for row in table for v in row]), rank)


def half_space(coordinates: fmpq_mat) -> list[fmpq] | None:
    """u with u·c > 0 for every non-zero column c, or None if some λ >= 0, λ != 0 has Σ λ c = 0."""
    rho = coordinates.nrows()
    columns = zip(*coordinates.tolist(), strict=True) if rho else ()
    return open_half_space([c for c in columns if any(c)], rho)


def semirank(matrix: fmpq_mat) -> int:
    """The least inner size of a factorisation U·V with V >= 0."""
    parts = columns(matrix)
    return parts.rank + (0 if half_space(parts.coordinates) is not None else 1)


def dimension(matrix: fmpq_mat, inner: int) -> int | None:
    """dim {(U, V, β, e): U V = A, V >= 0, β >= 0} modulo scaling of the inner units.

    max over s = rank U of (s-ρ)(m-s) + s·r + d(r-s), ρ <= s <= min(r, m), and s < r where the
    columns are not pointed; None if there is no factorisation.
    """
    best = best_rank(matrix, inner)
    return None if best is None else best[1]


def best_rank(matrix: fmpq_mat, inner: int) -> tuple[int, int] | None:
    """The rank s of U that maximises the dimension, and that dimension."""
    m, d = matrix.nrows(), matrix.ncols()
    parts = columns(matrix)
    top = min(inner, m)
    if half_space(parts.coordinates) is None:
        top = min(top, inner - 1)
    choices = [
        ((s - parts.rank) * (m - s) + s * inner + d * (inner - s), -s)
        for s in range(parts.rank, top + 1)
    ]
    if not choices:
        return None
    value, minus = max(choices)
    return -minus, value


def factorise(
    matrix: fmpq_mat, inner: int, rng: random.Random, rank: int | None = None
) -> tuple[fmpq_mat, fmpq_mat] | None:
    """A random exact factorisation (U, V) of an m×d matrix with V >= 0 and inner size `inner`.

    Reaches an open subset of the stratum rank U = `rank` (the one of largest dimension by
    default). None if there is none.
    """
    m, d = matrix.nrows(), matrix.ncols()
    if rank is None:
        chosen = best_rank(matrix, inner)
        if chosen is None:
            return None
        rank = chosen[0]
    if inner == 0:
        return fmpq_mat(m, 0), fmpq_mat(0, d)
    if rank == 0:
        return fmpq_mat(m, inner), _random(inner, d, rng, positive=True)
    parts = columns(matrix)
    base, coordinates = _through_rank(parts, rank, rng)
    if rank < inner:
        w, nu = _positively_spanning(rank, inner, rng)
        return base * w, _nonnegative_solution(w, nu, coordinates, rng)
    direction = half_space(parts.coordinates)
    if direction is None:
        return None
    q = _near_dual_cone(direction, coordinates, rng)
    return base * q.inv(), q * coordinates


def _random(rows: int, width: int, rng: random.Random, positive: bool = False) -> fmpq_mat:
    return fmpq_mat(rows, width, [generic(rng, positive) for _ in range(rows * width)])


def _through_rank(parts: Columns, s: int, rng: random.Random) -> tuple[fmpq_mat, fmpq_mat]:
    """A = base·coordinates through s >= ρ dimensions: base m×s of rank s, the new rows zero."""
    d, spare = parts.coordinates.ncols(), s - parts.rank
    coordinates = table_of([*parts.coordinates.tolist(), *([ZERO] * d for _ in range(spare))], d)
    while True:
        base = table_of(
            [[*row, *(generic(rng) for _ in range(spare))] for row in parts.base.tolist()], s
        )
        if base.rank() == s:
            return base, coordinates


def _near_dual_cone(direction: list[fmpq], coordinates: fmpq_mat, rng: random.Random) -> fmpq_mat:
    """A random invertible Q with Q·coordinates >= 0: rows close to u, which is in the dual cone.

    The rows of `coordinates` beyond the length of u are zero; there Q is free.
    """
    s, free, size = coordinates.nrows(), coordinates.nrows() - len(direction), ONE
    while True:
        q = table_of(
            [
                [u + size * generic(rng) for u in direction] + [generic(rng) for _ in range(free)]
                for _ in range(s)
            ],
            s,
        )
        if all(entry >= 0 for entry in (q * coordinates).entries()) and q.rank() == s:
            return q
        size = size / 2


def _positively_spanning(s: int, inner: int, rng: random.Random) -> tuple[fmpq_mat, list[fmpq]]:
    """Random W (s×inner) of rank s < inner and ν > 0 with W·ν = 0.

    That is: the columns of W span R^s with non-negative coefficients.
    """
    while True:
        nu = [generic(rng, True) for _ in range(inner)]
        w = _random(s, inner, rng).tolist()
        w = table_of([[*row[:-1], -dot(row[:-1], nu[:-1]) / nu[-1]] for row in w], inner)
        if w.rank() == s:
            return w, nu


def _nonnegative_solution(
    w: fmpq_mat, nu: list[fmpq], coordinates: fmpq_mat, rng: random.Random
) -> fmpq_mat:
    """A random V >= 0 with W·V = coordinates, where W·ν = 0 and ν > 0.

    V = X + ν·λᵀ for any solution X: a random table, corrected by the right inverse of W, and λ
    large enough.
    """
    inner, d = w.ncols(), coordinates.ncols()
    inverse = w.transpose() * (w * w.transpose()).inv()
    start = _random(inner, d, rng)
    solution = start + inverse * (coordinates - w * start)
    raised = []
    for x in solution.transpose().tolist():
        least = max([ZERO, *(-v / n for v, n in zip(x, nu, strict=True))])
        raised.append(along(x, least + generic(rng, True), nu))
    return table_of(raised, inner).transpose()

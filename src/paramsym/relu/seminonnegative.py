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
from paramsym.relu.rationals import ONE, ZERO


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
    """u with u·c > 0 for every non-zero column c, or None if some λ >= 0, λ != 0 has Σ λ c = 0.

    Phase one of the simplex method with Bland's rule, in rationals, for {λ >= 0, Σ λ_j c_j = 0,
    Σ λ_j = 1}: feasible means None, infeasible gives u as the dual solution.
    """
    rho = coordinates.nrows()
    table = coordinates.tolist() if rho else []
    kept = [j for j in range(coordinates.ncols()) if any(row[j] for row in table)]
    if not kept:
        return [ONE] * rho
    rows_count, count = rho + 1, len(kept)
    # Columns: λ (count), artificials (rows_count), right-hand side.
    rows = [
        [row[j] for j in kept] + [ONE if k == i else ZERO for k in range(rows_count)] + [ZERO]
        for i, row in enumerate(table)
    ]
    last = [ZERO] * rho + [ONE]
    rows.append([ONE] * count + last + [ONE])
    basis = [count + i for i in range(rows_count)]
    # Minimise the sum of the artificials; reduced costs = c - Σ rows.
    cost = [-sum((row[j] for row in rows), ZERO) for j in range(count)]
    cost += [ZERO] * rows_count + [-sum((row[-1] for row in rows), ZERO)]
    while True:
        enter = next((j for j in range(count) if cost[j] < 0), None)
        if enter is None:
            break
        leave, best = None, None
        for i, row in enumerate(rows):
            if row[enter] > 0:
                ratio = row[-1] / row[enter]
                if best is None or (ratio, basis[i]) < best:
                    leave, best = i, (ratio, basis[i])
        assert leave is not None  # the objective is bounded below by zero
        pivot = rows[leave][enter]
        rows[leave] = [v / pivot for v in rows[leave]]
        for i, row in enumerate(rows):
            if i != leave and row[enter]:
                f = row[enter]
                rows[i] = [v - f * w for v, w in zip(row, rows[leave], strict=True)]
        f = cost[enter]
        cost = [v - f * w for v, w in zip(cost, rows[leave], strict=True)]
        basis[leave] = enter
    if cost[-1] == 0:
        return None
    # The reduced cost of artificial i is 1 - y_i, and u = -y.
    u = [cost[count + i] - ONE for i in range(rho)]
    whole = [sum((u[i] * table[i][j] for i in range(rho)), ZERO) for j in kept]
    if any(v <= 0 for v in whole):
        raise AssertionError("the simplex method failed: a bug of paramsym")
    return u


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
    parts = columns(matrix)
    if inner == 0:
        return fmpq_mat(m, 0), fmpq_mat(0, d)
    if rank == 0:
        return fmpq_mat(m, inner), fmpq_mat(
            inner, d, [generic(rng, True) for _ in range(inner * d)]
        )
    s, rho = rank, parts.rank
    padded = parts.coordinates.tolist() if rho else []
    padded = [*padded, *([ZERO] * d for _ in range(s - rho))]
    coordinates = fmpq_mat(s, d, [v for row in padded for v in row])
    base_rows = parts.base.tolist() if rho else [[] for _ in range(m)]
    while True:
        entries = []
        for row in base_rows:
            entries += [*row, *(generic(rng) for _ in range(s - rho))]
        base = fmpq_mat(m, s, entries)
        if base.rank() == s:
            break
    if s == inner:
        direction = half_space(parts.coordinates)
        if direction is None:
            return None
        return _square(base, coordinates, direction, rho, rng)
    while True:
        nu = [generic(rng, True) for _ in range(inner)]
        free = [[generic(rng) for _ in range(inner)] for _ in range(s)]
        for row in free:  # rows orthogonal to nu
            row[-1] = -sum((v * n for v, n in zip(row[:-1], nu[:-1], strict=True)), ZERO) / nu[-1]
        w = fmpq_mat(s, inner, [v for row in free for v in row])
        if w.rank() == s:
            break
    right = w.transpose() * (w * w.transpose()).inv()
    x = (right * coordinates).tolist()
    kernel = _kernel_element(w, d, rng).tolist()
    x = [[p + q for p, q in zip(u, v, strict=True)] for u, v in zip(x, kernel, strict=True)]
    for i in range(d):
        lam = max([ZERO, *(-x[j][i] / nu[j] for j in range(inner))]) + generic(rng, True)
        for j in range(inner):
            x[j][i] += nu[j] * lam
    return base * w, fmpq_mat(inner, d, [v for row in x for v in row])


def _square(base, coordinates, direction, rho: int, rng: random.Random):
    """U = base·Q^-1, V = Q·coordinates for a random Q near the open dual cone."""
    s = coordinates.nrows()
    size = fmpq(1)
    while True:
        rows = []
        for _ in range(s):
            near = [u + size * generic(rng) for u in direction[:rho]]
            rows.append([*near, *(generic(rng) for _ in range(s - rho))])
        q = fmpq_mat(s, s, [v for row in rows for v in row])
        v = q * coordinates
        if all(entry >= 0 for entry in v.entries()) and q.rank() == s:
            return base * q.inv(), v
        size = size / 2


def _kernel_element(w: fmpq_mat, d: int, rng: random.Random) -> fmpq_mat:
    """A random matrix K (inner×d) with w·K = 0."""
    inner = w.ncols()
    right = w.transpose() * (w * w.transpose()).inv()
    random_part = fmpq_mat(inner, d, [generic(rng) for _ in range(inner * d)])
    return random_part - right * (w * random_part)

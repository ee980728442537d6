"""Linear algebra over a prime field: ranks that no rounding can change.

A matrix of integers has at most the rank over the rationals that it has modulo a prime p, and at a
random point the two agree but for a chance near (degree · rank) / p. So a rank found here is a
lower bound for certain, and almost always the rank.

Residues are balanced, |x| ≤ p/2, and held in float64, where sums of products up to 2⁵³ are exact:
that lets BLAS do the work.
"""

from __future__ import annotations

import numpy as np

PRIME = 8_388_593  # the largest below 2²³
_INNER = 256  # sums of this many products of balanced residues stay below 2⁵³
_SLICE = 2  # columns that are searched for pivots, per row


def residues(x: np.ndarray) -> np.ndarray:
    """Balanced residues of exact numbers below 2⁵³."""
    return x - PRIME * np.rint(x * (1.0 / PRIME))


def inverse(x: float) -> float:
    """The residue with x · inverse(x) = 1."""
    return float(pow(int(x), -1, PRIME))


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b of balanced residues, batched as `numpy.matmul`."""
    inner = a.shape[-1]
    if inner <= _INNER:
        return residues(a @ b)
    parts = (
        residues(a[..., low : low + _INNER] @ b[..., low : low + _INNER, :])
        for low in range(0, inner, _INNER)
    )
    return residues(sum(parts, np.zeros(())))


def drawn(generator: np.random.Generator, *shape: int) -> np.ndarray:
    """Uniform residues."""
    return residues(generator.integers(0, PRIME, shape).astype(np.float64))


class ModularSpan:
    """The span of row vectors over the prime field, grown batch by batch.

    The basis is fully reduced: the identity in the pivot columns, `rest` in the free ones.

    Attributes:
        rank: the dimension so far.
    """

    certain = True

    def __init__(self, columns: int):
        self.pivots = np.zeros(0, dtype=np.int64)
        self.free = np.arange(columns)
        self.rest = np.zeros((0, columns))

    @property
    def rank(self) -> int:
        return len(self.pivots)

    def add(self, rows: np.ndarray) -> int:
        """Add row vectors (count, columns) of balanced residues; by how much the rank has grown."""
        left = residues(rows[:, self.free] - product(rows[:, self.pivots], self.rest))
        left, chosen = _reduced(left)
        if not len(chosen):
            return 0
        kept = np.ones(len(self.free), dtype=bool)
        kept[chosen] = False
        shifted = self.rest[:, kept] - product(self.rest[:, chosen], left[:, kept])
        self.rest = np.concatenate([residues(shifted), left[:, kept]])
        self.pivots = np.concatenate([self.pivots, self.free[chosen]])
        self.free = self.free[kept]
        return len(chosen)


def rank(rows: np.ndarray) -> int:
    """The rank of a matrix of balanced residues."""
    span = ModularSpan(rows.shape[1])
    for low in range(0, len(rows), 64):
        span.add(rows[low : low + 64])
    return span.rank


def _reduced(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The reduced row echelon form without zero rows, and the pivot column of each row."""
    pivots = np.full(len(rows), -1)
    while True:
        waiting = (pivots < 0) & rows.any(1)
        if not waiting.any():
            return rows[pivots >= 0], pivots[pivots >= 0]
        # pivots are looked for in few columns; one product then moves all others
        columns = np.flatnonzero(rows[waiting].any(0))
        stride = max(1, len(columns) // (_SLICE * len(rows)))
        columns = columns[::stride]
        transform, found = _eliminated(rows[:, columns], waiting)
        rows = product(transform, rows)
        pivots[found >= 0] = columns[found[found >= 0]]


def _eliminated(rows: np.ndarray, waiting: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gauss–Jordan: the transform of the rows, and the pivot of each waiting row or -1."""
    count = len(rows)
    table = np.concatenate([rows, np.eye(count)], axis=1)
    found = np.full(count, -1)
    for row in waiting.nonzero()[0]:
        places = table[row, : rows.shape[1]].nonzero()[0]
        if not len(places):
            continue
        pivot = places[0]
        scale = inverse(table[row, pivot])  # up to 2²³, times at most 2²²
        table[row] = residues(table[row] * scale)
        factor = table[:, pivot].copy()
        factor[row] = 0
        table = residues(table - factor[:, None] * table[row])
        found[row] = pivot
    return table[:, rows.shape[1] :], found

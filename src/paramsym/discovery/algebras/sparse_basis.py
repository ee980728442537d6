"""A sparse basis of the span of some matrices: reduced echelon form, then fewer entries by pairs.

Each entry of a matrix is a linear functional of the span. Functionals that become pivots are those
of largest value, and in the reduced basis each pivot belongs to one matrix alone. In the span of
gl_n, of diagonal or of skew matrices the result is the textbook basis, up to order and sign.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy
from scipy.sparse import csr_array

from paramsym.discovery.algebras.vector_fields import order_of

_LARGEST_DENOMINATOR = 12
_ZERO = 10.0  # pivoting adds so many errors of the size of the tolerance
_ROUNDS = 4  # passes over all pairs of basis vectors


def flattened(matrices: Sequence[csr_array]) -> tuple[numpy.ndarray, numpy.ndarray]:
    """(matrices, entries that are not zero everywhere) as a dense array, and where these stand.

    Places are row · width + column.
    """
    coordinates = [matrix.tocoo() for matrix in matrices]
    width = order_of(matrices[0])
    flat = [c.coords[0].astype(numpy.int64) * width + c.coords[1] for c in coordinates]
    places = numpy.unique(numpy.concatenate([*flat, numpy.zeros(0, dtype=numpy.int64)]))
    dense = numpy.zeros((len(matrices), len(places)))
    for row, (where, entries) in enumerate(zip(flat, coordinates, strict=True)):
        dense[row, numpy.searchsorted(places, where)] = entries.data
    return dense, places


def sparse_rows(rows: numpy.ndarray, tolerance: float) -> numpy.ndarray:
    """A sparse basis of the row space; as many rows as the rank.

    Args:
        rows: (vectors, entries).
        tolerance: singular values and entries below it, relative to the largest, count as zero,
            and a row whose entries are all as near to fractions of small denominator gets these.
    """
    if not rows.size:
        return numpy.zeros((0, rows.shape[1]))
    norms = numpy.linalg.norm(rows, axis=1, keepdims=True)
    _, values, right = numpy.linalg.svd(rows / numpy.maximum(norms, 1e-300), full_matrices=False)
    rank = int((values > tolerance * values[0]).sum()) if values[0] > 0 else 0
    reduced = _clean(_scaled(_reduced(right[:rank], tolerance)), tolerance)
    scaled = _clean(_scaled(_fewer(reduced, tolerance)), tolerance)
    order = sorted(range(rank), key=lambda k: tuple(numpy.flatnonzero(scaled[k])))
    return scaled[order]


def _reduced(rows: numpy.ndarray, tolerance: float) -> numpy.ndarray:
    """The reduced echelon form with complete pivoting."""
    rows = rows.copy()
    free = numpy.ones(len(rows), dtype=bool)
    while free.any():
        candidates = numpy.where(free[:, None], numpy.abs(rows), 0.0)
        row, column = numpy.unravel_index(int(candidates.argmax()), rows.shape)
        rows[row] /= rows[row, column]
        factors = rows[:, column].copy()
        factors[row] = 0.0
        rows -= numpy.outer(factors, rows[row])
        free[row] = False
    rows[numpy.abs(rows) <= _ZERO * tolerance] = 0.0
    return rows


def _fewer(rows: numpy.ndarray, tolerance: float) -> numpy.ndarray:
    """Multiples of one row taken from another while that leaves fewer entries."""
    rows = rows.copy()
    for _ in range(_ROUNDS if len(rows) <= 128 else 0):
        changed = False
        for i in range(len(rows)):
            for j in range(len(rows)):
                changed |= i != j and _lighten(rows, i, j, tolerance)
        if not changed:
            break
    return rows


def _lighten(rows: numpy.ndarray, i: int, j: int, tolerance: float) -> bool:
    """Take the multiple of row j from row i that removes most entries, if it adds fewer.

    Multiples are fractions, and where rows are none, three entries have to agree on one: a single
    entry can be removed always, by chance, and rows of large numbers are no better to read.
    """
    both = (rows[i] != 0) & (rows[j] != 0)
    if not both.any():
        return False
    ratios = rows[i, both] / rows[j, both]
    if len(ratios) > 1 and len(ratios) == (rows[j] != 0).sum() and numpy.ptp(ratios) <= 1e-9:
        rows[i] -= ratios.mean() * rows[j]  # all of row j is in row i
        rows[i, both] = 0.0
        return True
    near = _fractions(ratios)
    kinds, counts = numpy.unique(near[numpy.abs(near - ratios) <= 1e-9], return_counts=True)
    added = int(((rows[i] == 0) & (rows[j] != 0)).sum())
    if not counts.size or counts.max() <= added:
        return False
    row = rows[i] - kinds[counts.argmax()] * rows[j]
    row[numpy.abs(row) <= _ZERO * tolerance] = 0.0
    plain = _is_plain(row) and _is_plain(rows[i])
    if not plain and counts.max() < 3:
        return False
    rows[i] = _fractions(row) if plain else row
    return True


def _is_plain(row: numpy.ndarray) -> bool:
    """Whether all entries are fractions of small denominator."""
    return bool((numpy.abs(_fractions(row) - row) <= 1e-12).all())


def _scaled(rows: numpy.ndarray) -> numpy.ndarray:
    """Each row divided by its most frequent size, the first entry that has it made positive."""
    found = rows.copy()
    for row in found:
        sizes = numpy.abs(row[row != 0])
        kinds, counts = numpy.unique(sizes.round(9), return_counts=True)
        alike = counts.max() > 1 or _is_plain(sizes / sizes.min())
        common = kinds[counts == counts.max()].min() if alike else sizes.max()
        first = row[numpy.isclose(numpy.abs(row), common, rtol=1e-8, atol=2e-9)][0]
        row /= first
    return found


def _clean(rows: numpy.ndarray, tolerance: float) -> numpy.ndarray:
    """Rows whose numbers are all near fractions of small denominator get these.

    Of other rows no number is touched: among many, some are near a fraction by chance.
    """
    found = rows.copy()
    for row in found:
        kept = numpy.flatnonzero(row)
        near = _fractions(row[kept])
        if (
            numpy.abs(near - row[kept]) <= _ZERO * tolerance * numpy.maximum(1.0, numpy.abs(near))
        ).all():
            row[kept] = near
    return found


def _fractions(values: numpy.ndarray) -> numpy.ndarray:
    """The nearest fractions of small denominator."""
    denominators = numpy.arange(1, _LARGEST_DENOMINATOR + 1)
    near = (values[:, None] * denominators).round() / denominators
    best = numpy.abs(near - values[:, None]).argmin(1)
    return near[numpy.arange(len(values)), best]


def matrices_of(rows: numpy.ndarray, places: numpy.ndarray, width: int) -> list[csr_array]:
    """The matrices with these entries: the inverse of `flattened`."""
    found = []
    for row in rows:
        kept = numpy.flatnonzero(row)
        where = places[kept]
        coordinates = (where // width, where % width)
        found.append(csr_array((row[kept], coordinates), shape=(width, width)))
    return found

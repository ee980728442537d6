"""Structure constants of a span of linear vector fields, and how far it is from closed.

[ξ_i, ξ_j] = Σ_k c_ij^k ξ_k + remainder,      [ξ_A, ξ_B](θ) = (BA − AB)(θ, 1)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy
from scipy.sparse import coo_array, csr_array, hstack, vstack

from paramsym.discovery.algebras.vector_fields import order_of


@dataclass(frozen=True)
class StructureConstants:
    """c[i, j, k] with [ξ_i, ξ_j] = Σ_k c_ij^k ξ_k, and the largest remainder of any bracket.

    The remainder is relative to the norms of the two matrices, in the orthonormal basis too.
    """

    values: numpy.ndarray
    orthonormal: numpy.ndarray
    to_orthonormal: numpy.ndarray  # rows: the orthonormal basis in terms of the given one
    defect: float


def structure_constants(
    matrices: Sequence[csr_array], rows: numpy.ndarray, places: numpy.ndarray
) -> StructureConstants:
    """Least squares of every bracket on the span.

    Args:
        matrices: M̂ of independent fields.
        rows: their entries, (fields, places).
        places: where the entries stand, row · width + column.
    """
    count = len(matrices)
    if not count:
        empty = numpy.zeros((0, 0, 0))
        return StructureConstants(empty, empty, numpy.zeros((0, 0)), 0.0)
    basis = numpy.linalg.svd(rows, full_matrices=False)[2]  # orthonormal rows, the same span
    turn = rows @ basis.T  # ξ_i = Σ_a turn[i, a] o_a
    back = numpy.linalg.inv(turn)  # o_a = Σ_i back[a, i] ξ_i
    found = numpy.zeros((count, count, count))
    norms = numpy.linalg.norm(rows, axis=1)
    defect = 0.0
    for i, (inside, outside) in enumerate(_brackets(matrices, places)):
        coordinates = inside @ basis.T
        rest = numpy.sqrt(((inside - coordinates @ basis) ** 2).sum(1) + outside)
        defect = max(defect, float((rest / (norms[i] * norms)).max()))
        found[i] = coordinates @ back
    turned = numpy.einsum("ai,bj,ijk,kc->abc", back, back, found, turn, optimize=True)
    return StructureConstants(found, turned, back, defect)


def _brackets(
    matrices: Sequence[csr_array], places: numpy.ndarray
) -> Iterator[tuple[numpy.ndarray, numpy.ndarray]]:
    """For each i the brackets with all j: entries at the places, and squares of the others."""
    count, width = len(matrices), order_of(matrices[0])
    beside, below = hstack(matrices, format="csr"), vstack(matrices, format="csr")
    for one in matrices:
        left = csr_array(one @ beside).tocoo()  # M_i M_j
        right = csr_array(below @ one).tocoo()  # M_j M_i
        (p, jq), (jp, q) = left.coords, right.coords
        j = numpy.concatenate([jq // width, jp // width]).astype(numpy.int64)
        flat = numpy.concatenate(
            [
                p.astype(numpy.int64) * width + jq % width,
                (jp % width).astype(numpy.int64) * width + q,
            ]
        )
        values = numpy.concatenate([numpy.negative(left.data), right.data])
        found = csr_array(coo_array((values, (j, flat)), shape=(count, width * width)))
        entries = found.tocoo()
        others = numpy.isin(entries.coords[1], places, invert=True)
        squares = entries.data[others] ** 2
        yield (
            found[:, places].toarray(),
            numpy.bincount(entries.coords[0][others], squares, minlength=count),
        )

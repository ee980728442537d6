r"""Determinantal varieties over ℝ, ℂ and ℍ, seen as real algebraic varieties.

M_r(m × n) = { matrices of rank ≤ r }. Over an algebra of real dimension δ the complexification of
the real variety is M_r (δ = 1), M_r × M_r (δ = 2: a complex matrix and its conjugate become two
independent ones), and M_2r(2m × 2n) (δ = 4). All numbers are exact Python integers.

The Euclidean distance degree is C(min(m, n), r) in each case. For δ = 1 this is Eckart–Young. For
δ = 2, 4 let * be the complexified conjugate transpose and Z critical for a generic U; then
Z*(U − Z) = 0 and (U − Z)Z* = 0. Put Q = U⁻¹Z (square case) and H = U*U: the first equation makes
HQ self-adjoint and Q² = Q, the second makes Q self-adjoint, so Q is a self-adjoint projection that
commutes with H. H has min(m, n) distinct eigenvalues, and on each the only such projections are 0
and 1: one critical point for each choice of r of them.
"""

from math import comb, prod


def dimension(rows: int, columns: int, rank: int, size: int = 1) -> int:
    """The real dimension δ·r·(m + n − r) of M_r(m × n) over the algebra of dimension δ = size."""
    return size * rank * (rows + columns - rank)


def degree(rows: int, columns: int, rank: int, size: int = 1) -> int:
    r"""The degree of the (complexified) variety.

    deg M_r(m × n) = ∏_{i=0}^{n−r−1} C(m + i, r) / C(r + i, r); its square over ℂ; that of
    M_2r(2m × 2n) over ℍ.

    Source: Harris, Algebraic Geometry, Example 19.10.
    """
    if size == 2:
        return degree(rows, columns, rank) ** 2
    if size == 4:
        return degree(2 * rows, 2 * columns, 2 * rank)
    steps = range(columns - rank)
    top = prod(comb(rows + i, rank) for i in steps)
    return top // prod(comb(rank + i, rank) for i in steps)


def ed_degree(rows: int, columns: int, rank: int) -> int:
    """The number C(min(m, n), r) of complex critical points of the distance to a generic matrix.

    Source: Draisma, Horobeț, Ottaviani, Sturmfels, Thomas (2016), Example 2.3, for δ = 1.
    """
    return comb(min(rows, columns), rank)

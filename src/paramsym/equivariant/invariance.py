r"""Invariant linear maps: determinantal varieties with repeated columns.

M (m × n) is invariant under G, M P_σ = M for all σ, exactly if its columns agree along each orbit
A_1, …, A_k of G. Deleting repeated columns is a linear isomorphism

    ψ : I_r(m × n) → M_min(r,k)(m × k),      M = ψ(M) · E,   E (k × n) with e_i in column j ∈ A_i.

Distances are not kept (column i counts |A_i| times), but scaling column i by √|A_i| is a linear
automorphism of the determinantal variety, so the ED degree is that of M_min(r,k)(m × k).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import determinantal
from .arguments import finite_matrix, rank_up_to, real, whole
from .division import Real
from .errors import EquivariantError
from .groups import Partition, PermutationGroup, as_group, reduce_to_cyclic


@dataclass(frozen=True)
class InvariantVariety:
    """The G-invariant m × n matrices of rank ≤ r, as a determinantal variety.

    Args:
        group: G, acting on the n columns.
        rows: m.
        rank: r ≤ min(m, n).

    Raises:
        RankTooLargeError: r > min(m, n). (Ranks between k and min(m, n) bound nothing.)

    Source: arXiv:2309.13736, properties of the invariant variety.
    """

    group: PermutationGroup
    rows: int
    rank: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "group", as_group(self.group))
        object.__setattr__(self, "rows", whole(self.rows, "InvariantVariety(rows=…)"))
        largest = min(self.rows, self.group.degree)
        rank = rank_up_to(largest, self.rank, "InvariantVariety(rank=…)")
        object.__setattr__(self, "rank", rank)

    @property
    def orbits(self) -> Partition:
        """The orbits A_1, …, A_k."""
        return self.group.orbits

    @property
    def cyclic(self) -> PermutationGroup:
        """One permutation with the same invariant matrices."""
        return reduce_to_cyclic(self.group)

    @property
    def effective_rank(self) -> int:
        """min(r, k): the rank that invariance leaves."""
        return min(self.rank, len(self.orbits))

    @property
    def dimension(self) -> int:
        """min(r,k) · (m + k − min(r,k))."""
        return determinantal.dimension(self.rows, len(self.orbits), self.effective_rank)

    @property
    def degree(self) -> int:
        """The degree of M_min(r,k)(m × k), exactly."""
        return determinantal.degree(self.rows, len(self.orbits), self.effective_rank)

    @property
    def ed_degree(self) -> int:
        """C(min(m, k), min(r, k)), exactly."""
        return determinantal.ed_degree(self.rows, len(self.orbits), self.effective_rank)

    @property
    def parameter_count(self) -> int:
        """min(r,k) · (m + k): decoder and shared encoder weights."""
        return self.effective_rank * (self.rows + len(self.orbits))

    @cached_property
    def indicator(self) -> Real:
        """E (k × n): e_i in column j for all j in the orbit A_i."""
        matrix = np.zeros((len(self.orbits), self.group.degree))
        for row, orbit in enumerate(self.orbits):
            matrix[row, list(orbit)] = 1
        return matrix

    @property
    def singular_locus(self) -> str:
        """The singular locus in words."""
        if self.effective_rank in (0, min(self.rows, len(self.orbits))):
            return "smooth: the variety is a linear space"
        return f"the invariant matrices of rank < {self.effective_rank}"

    def contains(self, matrix: NDArray[Any], tolerance: float = 1e-10) -> bool:
        """Whether a matrix (m × n) is invariant with rank ≤ r.

        Args:
            matrix: m × n.
            tolerance: relative to the largest singular value.
        """
        self._check(matrix)
        real(tolerance, "InvariantVariety.contains(tolerance=…)")
        size = float(np.linalg.norm(matrix, 2))
        folded = self.compress(matrix)
        if float(np.abs(folded @ self.indicator - matrix).max(initial=0.0)) > tolerance * size:
            return False
        return int((np.linalg.svd(matrix)[1] > tolerance * size).sum()) <= self.rank

    def is_singular(self, matrix: NDArray[Any], tolerance: float = 1e-10) -> bool:
        """Whether a matrix of the variety is a singular point: its rank is below min(r, k).

        Raises:
            EquivariantError: the matrix is not on the variety.
        """
        if not self.contains(matrix, tolerance):
            raise EquivariantError(
                f"InvariantVariety.is_singular(matrix): the matrix is not invariant of rank <= "
                f"{self.rank}; expected a matrix of the variety. Use .project(matrix) first."
            )
        if self.effective_rank in (0, min(self.rows, len(self.orbits))):
            return False
        values = np.linalg.svd(self.compress(matrix))[1]
        return int((values > tolerance * max(values[0], 1e-300)).sum()) < self.effective_rank

    def compress(self, matrix: NDArray[Any]) -> Real:
        """ψ(M) (m × k): one column for each orbit (the first of it)."""
        self._check(matrix)
        return np.asarray(matrix, dtype=np.float64)[:, [orbit[0] for orbit in self.orbits]]

    def compress_encoder(self, encoder: NDArray[Any]) -> Real:
        """The free weights (rank × k) of an encoder (rank × n) with weight sharing."""
        return np.asarray(encoder, dtype=np.float64)[:, [orbit[0] for orbit in self.orbits]]

    def expand(self, compressed: NDArray[Any]) -> Real:
        """ψ⁻¹: M = N · E (m × n) from N (m × k)."""
        return np.asarray(compressed, dtype=np.float64) @ self.indicator

    def project(self, matrix: NDArray[Any]) -> Real:
        """The nearest invariant matrix (m × n) of rank ≤ r: Eckart–Young, orbits weighted."""
        self._check(matrix)
        root = np.sqrt([len(orbit) for orbit in self.orbits])
        scaled = np.asarray(matrix, dtype=np.float64) @ self.indicator.T / root
        left, values, right = np.linalg.svd(scaled, full_matrices=False)
        r = self.effective_rank
        return self.expand(left[:, :r] * values[:r] @ right[:r] / root)

    def factorise(self, matrix: NDArray[Any]) -> tuple[Real, Real]:
        """M = A · B with A (m × min(r,k)) and a weight-shared encoder B (min(r,k) × n)."""
        left, values, right = np.linalg.svd(self.compress(matrix), full_matrices=False)
        r, root = self.effective_rank, np.sqrt(values[: self.effective_rank])
        return left[:, :r] * root, self.expand(right[:r] * root[:, None])

    def move_in_fiber(
        self, decoder: NDArray[Any], encoder: NDArray[Any], change: NDArray[Any]
    ) -> tuple[Real, Real]:
        """Another factorisation of the same matrix, (A T⁻¹, T B) for T in GL_r.

        Where rank(A·B) = r, these are all of them; the weight sharing of B is kept.

        Args:
            decoder: A (m × r).
            encoder: B (r × n).
            change: T (r × r), invertible.
        """
        return np.linalg.solve(change.T, decoder.T).T, change @ encoder

    def fiber_element(
        self,
        first: tuple[NDArray[Any], NDArray[Any]],
        second: tuple[NDArray[Any], NDArray[Any]],
    ) -> Real:
        """The T (r × r) with (A₂, B₂) = (A₁T⁻¹, TB₁), for two factorisations of one matrix."""
        return second[1] @ np.linalg.pinv(first[1])

    def weight_sharing(self) -> NDArray[np.int64]:
        """The encoder's pattern (min(r,k) × n): equal numbers mark shared weights."""
        k = len(self.orbits)
        labels = (np.arange(self.effective_rank)[:, None] * k + np.arange(1, k + 1)).astype(float)
        return (labels @ self.indicator).astype(np.int64)

    def _check(self, matrix: NDArray[Any]) -> None:
        shape = (self.rows, self.group.degree)
        finite_matrix(matrix, "InvariantVariety(matrix)", shape)

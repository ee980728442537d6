r"""One irreducible component of the equivariant matrices of bounded rank.

In adapted coordinates (see `decomposition`) an equivariant matrix is a list of blocks A_i over
D_i = ℝ, ℂ, ℍ, and its rank is Σ p_i rank A_i. For a vector r = (r_i) the matrices with
rank A_i ≤ r_i form

    ∏_i M_{r_i}(D_i^{e_i × d_i}),

a product of determinantal varieties: irreducible, and its dimension, degree and ED degree are the
sum, product and product of those of its factors (the change of basis is orthogonal and repeating a
block only rescales its distance). A factor M_r with 0 < r < min(d, e) is singular exactly where the
rank drops below r.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag

from . import determinantal
from .arguments import real, whole
from .decomposition import Decomposition, Isotypic
from .division import Real, adjoint, multiply, realise, svd
from .errors import EquivariantError, NoSuchComponentError


@dataclass(frozen=True)
class Component:
    r"""The component with rank vector r: equivariant matrices with rank A_i ≤ r_i in each block.

    Args:
        decomposition: the two representations (m × n matrices).
        ranks: r_i for each isotypic block, in the order of `decomposition.isotypics`.

    Raises:
        BadNumberError: a rank is no integer.
        NoSuchComponentError: a wrong number of ranks, or one outside 0 ≤ r_i ≤ min(d_i, e_i).

    Source: arXiv:2309.13736, the one-to-one correspondence between components and integer
    solutions, for cyclic groups.
    """

    decomposition: Decomposition
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        isotypics = self.decomposition.isotypics
        object.__setattr__(
            self, "ranks", tuple(whole(r, "Component(ranks)", low=None) for r in self.ranks)
        )
        if len(self.ranks) != len(isotypics):
            reason = f"it has {len(self.ranks)} entries and the group has {len(isotypics)} blocks"
            raise NoSuchComponentError("Component", self.ranks, reason, ())
        for v, r in zip(isotypics, self.ranks, strict=True):
            if not 0 <= r <= v.largest_rank:
                reason = f"block {v.name} allows ranks 0 to {v.largest_rank}, not {r}"
                clipped = tuple(
                    min(max(s, 0), w.largest_rank)
                    for w, s in zip(isotypics, self.ranks, strict=True)
                )
                raise NoSuchComponentError("Component", self.ranks, reason, (clipped,))

    @property
    def _pairs(self) -> list[tuple[Isotypic, int]]:
        return list(zip(self.decomposition.isotypics, self.ranks, strict=True))

    @property
    def rank(self) -> int:
        """The rank Σ p_i r_i of a generic matrix of the component."""
        return sum(v.dimension * r for v, r in self._pairs)

    @property
    def dimension(self) -> int:
        """The dimension Σ δ_i r_i (d_i + e_i − r_i) as a real variety."""
        return sum(determinantal.dimension(v.target, v.source, r, v.size) for v, r in self._pairs)

    @property
    def degree(self) -> int:
        """The degree of its complexification, exactly."""
        return prod(determinantal.degree(v.target, v.source, r, v.size) for v, r in self._pairs)

    @property
    def ed_degree(self) -> int:
        """The Euclidean-distance degree ∏ C(min(d_i, e_i), r_i), exactly."""
        return prod(determinantal.ed_degree(v.target, v.source, r) for v, r in self._pairs)

    @property
    def parameter_count(self) -> int:
        """The free parameters Σ δ_i r_i (d_i + e_i) of the factorisation decoder · encoder."""
        return sum(v.size * r * (v.source + v.target) for v, r in self._pairs)

    @property
    def fiber_dimension(self) -> int:
        """The dimension Σ δ_i r_i² of the fiber over a generic matrix, a ∏ GL_{r_i}(D_i) orbit."""
        return sum(v.size * r * r for v, r in self._pairs)

    @cached_property
    def singular_blocks(self) -> tuple[Isotypic, ...]:
        """The blocks with 0 < r_i < min(d_i, e_i), whose rank can drop at a singular point."""
        return tuple(v for v, r in self._pairs if 0 < r < v.largest_rank)

    @property
    def singular_locus(self) -> str:
        """The singular locus in words."""
        if not self.singular_blocks:
            return "smooth: every block is zero or of full rank, the component is a linear space"
        drops = [f"rank A[{v.name}] < {r}" for v, r in self._pairs if v in self.singular_blocks]
        return "the matrices of the component with " + " or ".join(drops)

    def block_ranks(self, matrix: NDArray[Any], tolerance: float = 1e-10) -> tuple[int, ...]:
        """The ranks of the blocks A_i of an equivariant matrix.

        Args:
            matrix: m × n.
            tolerance: singular values below this multiple of the largest one count as zero.
        """
        real(tolerance, "Component.block_ranks(tolerance=…)")
        values = [svd(block).values for block in self.decomposition.blocks(matrix)]
        top = max((float(v[0]) for v in values if len(v)), default=0.0)
        return tuple(int((v > tolerance * top).sum()) for v in values)

    def contains(self, matrix: NDArray[Any], tolerance: float = 1e-10) -> bool:
        """Whether a matrix (m × n) is equivariant with block ranks at most r."""
        if self.decomposition.equivariance_error(matrix) > real(tolerance, "contains(tolerance=…)"):
            return False
        found = self.block_ranks(matrix, tolerance)
        return all(f <= r for f, r in zip(found, self.ranks, strict=True))

    def is_singular(self, matrix: NDArray[Any], tolerance: float = 1e-10) -> bool:
        """Whether a matrix of the component is a singular point of it.

        Raises:
            EquivariantError: the matrix does not lie on the component.
        """
        if not self.contains(matrix, tolerance):
            raise EquivariantError(
                f"Component.is_singular(matrix): the matrix has block ranks "
                f"{self.block_ranks(matrix, tolerance)} and equivariance error "
                f"{self.decomposition.equivariance_error(matrix):.1e}; expected a matrix of the "
                f"component {self.ranks}. Use project(matrix, component) first."
            )
        found = self.block_ranks(matrix, tolerance)
        return any(
            0 < r < v.largest_rank and f < r for (v, r), f in zip(self._pairs, found, strict=True)
        )

    def sample(self, generator: np.random.Generator) -> Real:
        """A random matrix (m × n) of the component: Gaussian factors in each block."""
        blocks = []
        for v, r in self._pairs:
            left = generator.standard_normal((v.target, r, v.size))
            blocks.append(multiply(left, generator.standard_normal((r, v.source, v.size))))
        return self.decomposition.matrix(blocks)

    def factorise(self, matrix: NDArray[Any]) -> tuple[Real, Real]:
        """A balanced factorisation M = decoder · encoder with the weight sharing of the component.

        Args:
            matrix: M (m × n), on the component.

        Returns:
            Decoder (m × rank) and encoder (rank × n); in adapted coordinates both are block
            diagonal, with blocks I ⊗ realise(·).
        """
        decoders, encoders = [], []
        for (_, r), block in zip(self._pairs, self.decomposition.blocks(matrix), strict=True):
            left, values, right = svd(block)
            root = np.sqrt(values[:r])[:, None]
            decoders.append(left[:, :r] * root)
            encoders.append(adjoint(right[:, :r] * root))
        return self.decoder(decoders), self.encoder(encoders)

    def encoder(self, blocks: Sequence[Real]) -> Real:
        """The encoder (rank × n) with blocks (r_i × d_i × δ_i)."""
        adapted = self._adapted(blocks)
        return adapted @ self.decomposition.source_basis.T

    def decoder(self, blocks: Sequence[Real]) -> Real:
        """The decoder (m × rank) with blocks (e_i × r_i × δ_i)."""
        return self.decomposition.target_basis @ self._adapted(blocks)

    def _adapted(self, blocks: Sequence[Real]) -> Real:
        """The block-diagonal matrix ⊕ I ⊗ realise(block_i)."""
        repeated = [
            realise(block)
            for v, block in zip(self.decomposition.isotypics, blocks, strict=True)
            for _ in range(v.slices)
        ]
        return np.asarray(block_diag(*repeated), dtype=np.float64)

    def latent_action(self, index: int) -> Real:
        """How the generator of this index acts on the latent space ⊕ V_i^{r_i} (rank × rank).

        encoder · P_σ = latent_action · encoder, for every encoder of the component.
        """
        permuted = self.decomposition.group.act(index, self.decomposition.source_basis.T).T
        moved = self.decomposition.source_basis.T @ permuted
        kept = []
        row = 0
        for v, r in self._pairs:
            # Copy 0 shows how the group acts on V_i; all copies are alike.
            first = [
                row + s * v.source * v.size + c for s in range(v.slices) for c in range(v.size)
            ]
            action = moved[np.ix_(first, first)] if v.source else np.zeros((0, 0))
            if r:
                shaped = action.reshape(v.slices, v.size, v.slices, v.size)
                full = np.einsum("scud,ab->sacubd", shaped, np.eye(r))
                kept.append(full.reshape(v.dimension * r, v.dimension * r))
            row += v.dimension * v.source
        # Of no blocks at all SciPy makes a 1 × 0 matrix.
        return np.asarray(block_diag(np.zeros((0, 0)), *kept), dtype=np.float64)

    def __repr__(self) -> str:
        return f"<Component {self.ranks}: rank {self.rank}, dimension {self.dimension}>"

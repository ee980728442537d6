"""Products of Householder reflections, applied at O(h) per vector and never written out.

H_1 H_2 ⋯ H_k with H_i = I − 2 w_i w_iᵀ is I − W T Wᵀ, where T is upper triangular and its inverse
needs no recursion: T⁻¹ = ½ I + (the entries of WᵀW above the diagonal). (The compact WY form of
Bischof and van Loan, 1987, in the form of Puglisi, 1992.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .degenerate import Degenerate
from .scales import powers_of_two


@dataclass(frozen=True)
class Reflections:
    """Q = H_1 ⋯ H_k, orthogonal of size h.

    Attributes:
        vectors: W, of shape (h, k): unit columns, or zero where nothing is reflected.
    """

    vectors: Tensor

    def times(self, v: Tensor) -> Tensor:
        """Q v for the columns of v, of shape (h, n)."""
        return self._less(self._inverse(), v, upper=True)

    def transposed(self, v: Tensor) -> Tensor:
        """Qᵀ v for the columns of v, of shape (h, n)."""
        return self._less(self._inverse().mT, v, upper=False)

    def _inverse(self) -> Tensor:
        """T⁻¹, of shape (k, k)."""
        products = self.vectors.mT @ self.vectors
        return products.triu(1) + 0.5 * torch.eye(products.shape[0]).to(products)

    def _less(self, inverse: Tensor, v: Tensor, upper: bool) -> Tensor:
        inner = torch.linalg.solve_triangular(inverse, self.vectors.mT @ v, upper=upper)
        return v - self.vectors @ inner


@dataclass(frozen=True)
class Triangular:
    """S = Q [R; 0].

    Attributes:
        reflections: Q.
        triangle: R, of shape (k, k), upper triangular.
        distances: by step, how far the unit vector that was reflected onto e stood from e, from 0
            to 2; at 0 no reflection exists, and beside it all of them do.
    """

    reflections: Reflections
    triangle: Tensor
    distances: Tensor


def triangular(columns: Tensor, stable: bool = False) -> Triangular:
    """Bring independent columns to triangular form by reflections, differentiably.

    The sign of the diagonal is a constant and not LAPACK's: that one turns wherever an entry
    passes zero, which is a hypersurface, and Q jumps with it. With a constant sign Q jumps on a
    half-line for one column.

    Args:
        columns: S, of shape (h, k) with k ≤ h, of full rank.
        stable: reflect to the far end instead, as LAPACK does: never near a jump, nor continuous.

    Returns:
        Q, R with a positive diagonal (unless `stable`; the last entry of a square S keeps its
        sign, for nothing is left to be reflected), and the distances.
    """
    h, k = columns.shape
    scales = powers_of_two(columns)  # Q does not see them, and squares stay in range
    rest, vectors, distances = columns / scales, [], []
    sizes = torch.linalg.vector_norm(rest.detach(), dim=0)
    for i in range(k):
        x = rest[i:, i]
        left = float(torch.linalg.vector_norm(x.detach()))
        if not left > h * torch.finfo(x.dtype).eps * float(sizes[i]):
            raise Degenerate(
                f"triangular(columns of shape {(h, k)}): column {i} is zero, not finite, or "
                "depends on those before it; independent columns were expected. Leave it out."
            )
        if i == h - 1:  # the sphere of one dimension: two points and no jump between them
            vectors.append(columns.new_zeros(h))
            continue
        x = x / powers_of_two(x)
        unit = x / torch.linalg.vector_norm(x)
        ahead = bool(unit[0] > 0)
        end = -1.0 if stable and ahead else 1.0
        if i == h - 2 and ahead and not stable:  # the circle: ±w turns by half the angle, unbroken
            w = torch.cat([-unit[1:], unit[:1] + end])
            length = torch.linalg.vector_norm(w)
        else:
            w = torch.cat([unit[:1] - end, unit[1:]])
            length = torch.linalg.vector_norm(w)
            if i < h - 2:
                distances.append(length.detach())
        # where w vanishes, the caller refuses by the distance
        w = torch.cat([columns.new_zeros(i), w / length])
        vectors.append(w)
        rest = rest - 2 * torch.outer(w, w @ rest)
    found = torch.stack(distances) if distances else columns.new_full((1,), 2.0)
    return Triangular(Reflections(torch.stack(vectors, 1)), rest[:k].triu() * scales, found)

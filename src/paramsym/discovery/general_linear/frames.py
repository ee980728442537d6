r"""Frames: R_z with R_z e₁ = z, orthogonal up to the factor |z|, applied at O(h) per vector.

Two constructions, each as an operator and, for small h, as a matrix:

- *spherical* (Definition D.1): |z| G_{h−1} ⋯ G_1, where G_k turns coordinates k and k + 1 by the
  angle β_k of z. With ρ_i = |(z_i, …, z_h)| all products of sines telescope, so that R_z v needs
  one cumulative sum and R_zᵀ v another;
- *Householder*: |z| times the reflection that exchanges e₁ and z/|z|.

**No such frame is continuous.** Proposition D.3 asserts a continuous R: ℝʰ∖{0} → GL_h with these
properties. On the sphere its columns 2 to h would be a frame of the tangent bundle, and the sphere
S^{h−1} has one for h = 1, 2, 4, 8 only (Bott and Milnor, Kervaire, 1958; for odd h not even one
vector field without zeros, Brouwer's hairy ball). Both constructions jump, and R_z/|z| by 2√2 in
the Frobenius norm, however large |z| is:

- the reflection across the half-line {t e₁ : t > 0}: beside it R is I − 2ddᵀ, for any unit d ⊥ e₁
  from which one comes; for h = 2 there is one ±d only, and no jump;
- the spherical one across the subspace z_{h−1} = z_h = 0, of codimension two: for h = 3 the line
  through e₁, both of its halves.

A jump does no harm to what is exact: R R'⁻¹ is a coboundary for any R whatever. It does harm to
whoever follows a derivative. So the place of the jump is chosen away from given data, a frame
refuses in a cone around it, and nothing may be optimised through it.

Source: "Symmetries, flat minima, and the conserved quantities of gradient flow", Definition D.1,
Lemma D.2, Proposition D.3 (false as stated), Lemma D.6.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from .reflections import Triangular, triangular
from .scales import geometric_mean, powers_of_two
from .turns import Turn, came, turn_away

MARGIN = 1e-3  # of the cone around the jump: rounding enters R as its inverse


class NearJump(ValueError):
    """A vector so near the place where its frame jumps that the frame is refused."""


class AbstractFrameAt(ABC):
    """R_S at one S: a matrix of size h with first columns S, by its products with columns v."""

    size: int

    @abstractmethod
    def times(self, v: Tensor) -> Tensor:
        """R v, for v of shape (h, n)."""

    @abstractmethod
    def transposed(self, v: Tensor) -> Tensor:
        """Rᵀ v."""

    @abstractmethod
    def inverse(self, v: Tensor) -> Tensor:
        """R⁻¹ v."""

    @abstractmethod
    def inverse_transposed(self, v: Tensor) -> Tensor:
        """R⁻ᵀ v."""

    def dense(self, like: Tensor) -> Tensor:
        """R written out, of shape (h, h): for tests and for the eye."""
        return self.times(torch.eye(self.size, dtype=like.dtype, device=like.device))


class AbstractFrame(ABC):
    """S ↦ R_S with first columns S.

    Attributes:
        margin: of the refused cone around the jump: a distance of unit vectors, from 0 to 2.
    """

    margin: float

    @abstractmethod
    def at(self, columns: Tensor) -> AbstractFrameAt:
        """R_S for S of shape (h, k), of full rank.

        Raises:
            NearJump: S is within the margin of where R jumps.
            Degenerate: a column that is zero or not finite, or that depends on those before it.
            ValueError: another shape or dtype than that of `away`, or k > h.
        """

    @abstractmethod
    def distance(self, columns: Tensor) -> float:
        """How far unit vectors of S are from the jump; the margin is compared with it."""


class HouseholderFrame(AbstractFrame):
    """|z| times a reflection; for k columns, Q·diag(R, s I) by k reflections.

    S = Q [R; 0] has the frame [S | s Q⊥], with s = (R_11 ⋯ R_kk)^{1/k}, which is |z| for k = 1. It
    jumps at −away·t for t > 0, and at t e₁ without `away`.

    Args:
        away: columns that are to lie on the far side of the jump, of shape (h,) or (h, k).
        margin: of the refused cone.

    Raises:
        Degenerate: a column of `away` that is zero or not finite, or depends on others.
        ValueError: a margin that is no distance of unit vectors, or columns of another shape.

    Source: norm times Householder reflection for Proposition D.3; Lemma D.6, whose proof is left
    out there, for several columns.
    """

    def __init__(self, away: Tensor | None = None, margin: float = MARGIN):
        self.turn, self.margin = turn_away(away, margin, "HouseholderFrame"), margin

    def at(self, columns: Tensor) -> AbstractFrameAt:
        found = self._reduced(columns)
        _require_apart(float(found.distances.min()), self.margin, "HouseholderFrame")
        return _Completed(len(columns), self.turn, found)

    def distance(self, columns: Tensor) -> float:
        return float(self._reduced(columns).distances.min())

    def _reduced(self, columns: Tensor) -> Triangular:
        columns = came(columns, self.turn, "HouseholderFrame.at(columns)")
        return triangular(columns if self.turn is None else self.turn.times(columns))


class _Completed(AbstractFrameAt):
    """Turnᵀ · Q · diag(R, s I)."""

    def __init__(self, size: int, turn: Turn | None, found: Triangular):
        self.size, self.turn, self.found = size, turn, found
        count = len(found.triangle)
        # the mean size of the columns; a last sign of a square matrix is none of its business
        self.scale = geometric_mean(found.triangle.diagonal().abs())
        self.count = count

    def _blocks(self, v: Tensor, first: Tensor, factor: Tensor) -> Tensor:
        return torch.cat([first, factor * v[self.count :]])

    def _turned(self, v: Tensor) -> Tensor:
        v = self.found.reflections.times(v)
        return v if self.turn is None else self.turn.transposed(v)

    def _back(self, v: Tensor) -> Tensor:
        v = v if self.turn is None else self.turn.times(v)
        return self.found.reflections.transposed(v)

    def times(self, v: Tensor) -> Tensor:
        first = self.found.triangle @ v[: self.count]
        return self._turned(self._blocks(v, first, self.scale))

    def transposed(self, v: Tensor) -> Tensor:
        v = self._back(v)
        return self._blocks(v, self.found.triangle.mT @ v[: self.count], self.scale)

    def inverse(self, v: Tensor) -> Tensor:
        v = self._back(v)
        first = torch.linalg.solve_triangular(self.found.triangle, v[: self.count], upper=True)
        return self._blocks(v, first, 1 / self.scale)

    def inverse_transposed(self, v: Tensor) -> Tensor:
        triangle = self.found.triangle.mT
        first = torch.linalg.solve_triangular(triangle, v[: self.count], upper=False)
        return self._turned(self._blocks(v, first, 1 / self.scale))


class SphericalFrame(AbstractFrame):
    """|z| R(β_1, …, β_{h−1}) with the spherical coordinates of z: for one column.

    Without `away` it is the matrix of Definition D.1, which jumps at z_{h−1} = z_h = 0. With it,
    the last coordinate is along `away`.

    Args:
        away: a vector that is to be far from the jump, of shape (h,) or (h, 1).
        margin: of the refused cone.

    Raises:
        Degenerate, ValueError: as for `HouseholderFrame`.

    Source: Definition D.1 and Lemma D.2. (In section 4 the first column is said to be z/|z|; the
    matrix written there has z.)
    """

    def __init__(self, away: Tensor | None = None, margin: float = MARGIN):
        self.turn, self.margin = turn_away(away, margin, "SphericalFrame"), margin

    def at(self, columns: Tensor) -> AbstractFrameAt:
        z = self._coordinates(columns)
        _require_apart(_last_two(z), self.margin, "SphericalFrame")
        return _Spherical(z, self.turn)

    def distance(self, columns: Tensor) -> float:
        return _last_two(self._coordinates(columns))

    def _coordinates(self, columns: Tensor) -> Tensor:
        columns = came(columns, self.turn, "SphericalFrame.at(columns)")
        if columns.shape[1] != 1:
            raise ValueError(
                f"SphericalFrame.at(columns of shape {tuple(columns.shape)}): one column was "
                "expected, since spherical coordinates belong to one vector. Take "
                "HouseholderFrame for a batch."
            )
        if self.turn is not None:
            columns = self.turn.times(columns).flip(0)
        return columns[:, 0]


def _last_two(z: Tensor) -> float:
    if len(z) < 3:  # circles have a frame, and points
        return 2.0
    z = (z / powers_of_two(z)).detach()
    return float(torch.linalg.vector_norm(z[-2:]) / torch.linalg.vector_norm(z))


class _Spherical(AbstractFrameAt):
    """Turnᵀ · |z| R(β), by cumulative sums."""

    def __init__(self, z: Tensor, turn: Turn | None):
        self.size, self.turn = len(z), turn
        scale = powers_of_two(z)  # angles do not see it, and squares stay in range
        z = z / scale
        self.z = z[:, None]
        self.norm = torch.linalg.vector_norm(z) * scale
        tails = z.square().flip(0).cumsum(0).flip(0).sqrt()
        tails = torch.cat([tails[:-1], z[-1:]])  # the last angle runs through the whole circle
        self.tails = tails[:, None]  # ρ
        self.cosines, self.sines = self.z[:-1] / self.tails[:-1], self.tails[1:] / self.tails[:-1]
        self.previous = torch.cat([torch.ones_like(self.z[:1]), self.cosines])  # cos β_{j−1}

    def _rotated(self, v: Tensor) -> Tensor:
        """R(β) v, of entries cos β_i t_i − sin β_i v_{i+1} with one sum that runs along.

        t_i = sin β_{i−1} t_{i−1} + cos β_{i−1} v_i = ρ_i Σ_{j ≤ i} cos β_{j−1} v_j / ρ_j.
        """
        if self.size == 1:
            return self.z.sign() * v
        kept = self.tails[:-1]
        t = kept * (self.previous[:-1] * v[:-1] / kept).cumsum(0)
        last = self.sines[-1:] * t[-1:] + self.previous[-1:] * v[-1:]
        return torch.cat([self.cosines * t - self.sines * v[1:], last])

    def _rotated_back(self, w: Tensor) -> Tensor:
        """R(β)ᵀ w: (Rᵀw)_j = cos β_{j−1} (Σ_{i ≥ j} z_i w_i) / ρ_j − sin β_{j−1} w_{j−1}."""
        if self.size == 1:
            return self.z.sign() * w
        sums = (self.z * w).flip(0).cumsum(0).flip(0)[:-1] / self.tails[:-1]
        inner = torch.cat([sums, w[-1:]])
        return self.previous * inner - torch.cat([torch.zeros_like(w[:1]), self.sines * w[:-1]])

    def _turned(self, v: Tensor) -> Tensor:
        return v if self.turn is None else self.turn.transposed(v.flip(0))

    def _back(self, v: Tensor) -> Tensor:
        return v if self.turn is None else self.turn.times(v).flip(0)

    def times(self, v: Tensor) -> Tensor:
        return self._turned(self.norm * self._rotated(v))

    def transposed(self, v: Tensor) -> Tensor:
        return self.norm * self._rotated_back(self._back(v))

    def inverse(self, v: Tensor) -> Tensor:
        return self._rotated_back(self._back(v)) / self.norm

    def inverse_transposed(self, v: Tensor) -> Tensor:
        return self._turned(self._rotated(v) / self.norm)


def _require_apart(distance: float, margin: float, where: str) -> None:
    if not distance >= margin:
        raise NearJump(
            f"{where}.at(…): a unit vector came that is {distance:.2g} from where the frame jumps; "
            f"at least {margin:.2g} was expected, since R turns by 2√2 across it, and rounding "
            "enters as its inverse. Pass away=… nearer to your vectors, or move by another element."
        )

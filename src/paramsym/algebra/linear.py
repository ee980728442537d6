"""Groups whose elements are full matrices: all invertible ones, and two kinds of rotations.

- GL(n): the interface between two linear maps with nothing in between.
- O(n): what an RMS norm without gain commutes with, since ‖R x‖ = ‖x‖.
- O(n) fixing ones: what a layer norm without gain commutes with. It subtracts the mean, which is
  the component along 1 = (1, …, 1), so R must keep 1 and its complement. The group is a copy of
  O(n − 1), and it contains every permutation.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .axes import multiply, require_length
from .element import Element, Tangent
from .group import (
    Group,
    Power,
    Shape,
    check_size,
    default_tolerance,
    normal,
    require_plain_power,
)
from .woven import Woven, grid


def random_orthogonal(
    generator: torch.Generator, n: int, strength: float, batch: Shape, dtype: torch.dtype | None
) -> Tensor:
    """An orthogonal matrix between the identity (strength 0) and a Haar one (strength 1).

    The factor Q of (1 − s) I + s G / √n, made unique by a positive diagonal of R; for a Gaussian G
    alone that is Haar measure (Mezzadri, How to generate random matrices, 2007).
    """
    strength = min(max(strength, 0.0), 1.0)
    gaussian = normal(generator, (*batch, n, n), dtype) / max(n, 1) ** 0.5
    eye = torch.eye(n, dtype=gaussian.dtype, device=gaussian.device)
    q, r = torch.linalg.qr((1 - strength) * eye + strength * gaussian)
    sign = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(q.dtype)
    return q * sign[..., None, :]


def _upper_places(n: int, device: torch.device) -> Tensor:
    i, j = torch.triu_indices(n, n, 1, device=device)
    return i * n + j


def skew(coordinates: Tensor, n: int) -> Tensor:
    """The skew matrix with these coordinates on (E_ij − E_ji)/√2, i < j, row by row."""
    places = _upper_places(n, coordinates.device).expand(coordinates.shape)
    upper = coordinates.new_zeros(*coordinates.shape[:-1], n * n)
    upper = upper.scatter(-1, places, coordinates / 2**0.5).unflatten(-1, (n, n))
    return upper - upper.mT


def skew_coordinates(matrix: Tensor) -> Tensor:
    """The coordinates of the skew part, orthonormal as in `skew`."""
    n = matrix.shape[-1]
    difference = (matrix - matrix.mT).flatten(-2)
    return difference[..., _upper_places(n, matrix.device)] / 2**0.5


def _reflect(matrix: Tensor) -> Tensor:
    """H M H, for the Householder reflection H that exchanges e_1 and 1/√n.

    H = I − 2 v vᵀ/vᵀv with v = e_1 − 1/√n, so that blocks diag(c, Q) become maps that carry 1 to
    c·1 and keep its complement. Two rank-one updates, n² work.
    """
    n = matrix.shape[-1]
    if n == 1:
        return matrix
    v = torch.full((n,), -(n**-0.5), dtype=matrix.dtype, device=matrix.device)
    v = v + torch.nn.functional.one_hot(torch.zeros((), dtype=torch.long, device=v.device), n)
    v = v.to(matrix.dtype) * (2 / (v @ v)) ** 0.5  # H = I − v vᵀ
    matrix = matrix - (matrix @ v)[..., :, None] * v
    return matrix - v[:, None] * (v @ matrix)[..., None, :]


def _border(block: Tensor, corner: float) -> Tensor:
    """diag(corner, block)."""
    padded = torch.nn.functional.pad(block, (1, 0, 1, 0))
    n = padded.shape[-1]
    first = torch.zeros(n, n, dtype=block.dtype, device=block.device)
    first[0, 0] = corner
    return padded + first


class AbstractLinear(Group):
    """The shared arithmetic: one n×n matrix."""

    def identity(
        self,
        batch: Shape = (),
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> Element:
        eye = torch.eye(self.size, dtype=dtype, device=device)
        return Element(matrix=eye.expand(*batch, self.size, self.size))

    def compose(self, g: Element, h: Element) -> Element:
        if g.matrix is None or h.matrix is None:
            return h if g.matrix is None else g
        return Element(matrix=g.matrix @ h.matrix)

    def apply(self, g: Element, x: Tensor, axis: int, power: Power = 1) -> Tensor:
        require_length(x, axis, self.size, self)
        require_plain_power(self, power)
        return x if g.matrix is None else multiply(g.matrix, x, axis)

    def exp(self, a: Tangent) -> Element:
        return Element(matrix=None if a.matrix is None else torch.linalg.matrix_exp(a.matrix))

    def dual_tangent(self, a: Tangent) -> Tangent:
        return a.map(lambda velocity: -velocity.mT)

    def infinitesimal(self, a: Tangent, x: Tensor, axis: int, power: Power = 1) -> Tensor:
        require_length(x, axis, self.size, self)
        require_plain_power(self, power)
        return torch.zeros_like(x) if a.matrix is None else multiply(a.matrix, x, axis)

    def _velocity(self, a: Tangent) -> Tensor:
        return torch.zeros(self.size, self.size) if a.matrix is None else a.matrix


class AbstractRotation(AbstractLinear):
    """Orthogonal matrices: the inverse is the transpose, and the dual is the element itself."""

    def inverse(self, g: Element) -> Element:
        return Element(matrix=None if g.matrix is None else g.matrix.mT)

    def dual(self, g: Element) -> Element:
        return g

    def polar(self, g: Element) -> tuple[Element, Element]:
        return g, Element()

    def sample_woven(
        self,
        generator: torch.Generator,
        strength: float = 1.0,
        dtype: torch.dtype | None = None,
    ) -> Element:
        """A random woven rotation, which moves in two quick steps (`woven`); a plain one where the
        coordinates are few, or their number has no divisors for it. Arguments as for `sample`."""
        sides = grid(self.size)
        if sides is None:
            return self.sample(generator, strength, dtype=dtype)
        k, m = sides
        rows = self._alike(m).sample(generator, strength, (k,), dtype).matrix
        columns = self._alike(k).sample(generator, strength, (m,), dtype).matrix
        assert rows is not None and columns is not None
        return Element(matrix=Woven(rows, columns).matrix())

    @abc.abstractmethod
    def _alike(self, size: int) -> AbstractRotation:
        """The same kind of group on another number of coordinates."""

    def contains_matrix(self, matrix: Tensor, tol: float | None = None) -> bool:
        tol = default_tolerance(matrix.dtype) if tol is None else tol
        eye = torch.eye(self.size, dtype=matrix.dtype, device=matrix.device)
        return bool(((matrix.mT @ matrix - eye).abs() <= tol).all()) and self._keeps(matrix, tol)

    @abc.abstractmethod
    def _keeps(self, matrix: Tensor, tol: float) -> bool: ...


@dataclass(frozen=True, repr=False)
class Orthogonal(AbstractRotation):
    """The orthogonal group O(n) = {R : Rᵀ R = 1}."""

    size: int

    def __post_init__(self) -> None:
        check_size("Orthogonal", self.size)

    @property
    def dimension(self) -> int:
        return self.size * (self.size - 1) // 2

    @property
    def log_order(self) -> float:
        return math.log(2)  # determinant 1 or −1

    def _keeps(self, matrix: Tensor, tol: float) -> bool:
        return True

    def _alike(self, size: int) -> Orthogonal:
        return Orthogonal(size)

    def sample(
        self,
        generator: torch.Generator,
        strength: float = 1.0,
        batch: Shape = (),
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> Element:
        matrix = random_orthogonal(generator, self.size, strength, batch, dtype)
        return Element(matrix=matrix.to(device=device))

    def tangent(self, coordinates: Tensor) -> Tangent:
        return Tangent(matrix=skew(coordinates, self.size))

    def coordinates(self, a: Tangent) -> Tensor:
        return skew_coordinates(self._velocity(a))


@dataclass(frozen=True, repr=False)
class OrthogonalFixingOnes(AbstractRotation):
    """The orthogonal maps R with R 1 = 1: a copy of O(n − 1), and every permutation is one."""

    size: int

    def __post_init__(self) -> None:
        check_size("OrthogonalFixingOnes", self.size)

    @property
    def dimension(self) -> int:
        return (self.size - 1) * (self.size - 2) // 2

    @property
    def log_order(self) -> float:
        return math.log(2) if self.size > 1 else 0.0

    def _keeps(self, matrix: Tensor, tol: float) -> bool:
        return bool(((matrix.sum(-1) - 1).abs() <= tol * self.size).all())

    def _alike(self, size: int) -> OrthogonalFixingOnes:
        return OrthogonalFixingOnes(size)

    def sample(
        self,
        generator: torch.Generator,
        strength: float = 1.0,
        batch: Shape = (),
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> Element:
        block = random_orthogonal(generator, self.size - 1, strength, batch, dtype)
        return Element(matrix=_reflect(_border(block, 1.0)).to(device=device))

    def tangent(self, coordinates: Tensor) -> Tangent:
        return Tangent(matrix=_reflect(_border(skew(coordinates, self.size - 1), 0.0)))

    def coordinates(self, a: Tangent) -> Tensor:
        return skew_coordinates(_reflect(self._velocity(a))[..., 1:, 1:])


def _inverse(matrix: Tensor) -> Tensor:
    """The inverse, rounded once: elimination in float32 loses two more digits at 784 rows."""
    narrow = matrix.dtype == torch.float32 and matrix.device.type != "mps"  # has no float64
    return torch.linalg.inv(matrix.double()).to(matrix) if narrow else torch.linalg.inv(matrix)


@dataclass(frozen=True, repr=False)
class GeneralLinear(AbstractLinear):
    """The general linear group GL(n): every invertible matrix."""

    size: int

    def __post_init__(self) -> None:
        check_size("GeneralLinear", self.size)

    @property
    def dimension(self) -> int:
        return self.size**2

    @property
    def log_order(self) -> float:
        return math.log(2)  # the sign of the determinant

    def contains_matrix(self, matrix: Tensor, tol: float | None = None) -> bool:
        tol = torch.finfo(matrix.dtype).eps if tol is None else tol
        if not matrix.isfinite().all():
            return False
        values = torch.linalg.svdvals(matrix)
        return bool((values[..., -1] > tol * values[..., 0]).all())

    def sample(
        self,
        generator: torch.Generator,
        strength: float = 1.0,
        batch: Shape = (),
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> Element:
        # Polar form R exp(S). A symmetric Gaussian matrix has spectral norm about √(2n), so the
        # condition number is about exp(0.6 · strength), whatever the size.
        rotation = random_orthogonal(generator, self.size, strength, batch, dtype)
        gaussian = normal(generator, (*batch, self.size, self.size), dtype)
        stretch = 0.3 * strength * (gaussian + gaussian.mT) / (2 * (2 * self.size) ** 0.5)
        return Element(matrix=(rotation @ torch.linalg.matrix_exp(stretch)).to(device=device))

    def inverse(self, g: Element) -> Element:
        return Element(matrix=None if g.matrix is None else _inverse(g.matrix))

    def dual(self, g: Element) -> Element:
        return Element(matrix=None if g.matrix is None else _inverse(g.matrix).mT)

    def polar(self, g: Element) -> tuple[Element, Element]:
        # g = U S Vᵀ = (U Vᵀ) (V S Vᵀ)
        if g.matrix is None:
            return g, Element()
        left, stretch, right = torch.linalg.svd(g.matrix)
        positive = right.mT @ (stretch[..., None] * right)
        return Element(matrix=left @ right), Element(matrix=(positive + positive.mT) / 2)

    def tangent(self, coordinates: Tensor) -> Tangent:
        return Tangent(matrix=coordinates.unflatten(-1, (self.size, self.size)))

    def coordinates(self, a: Tangent) -> Tensor:
        return self._velocity(a).flatten(-2)

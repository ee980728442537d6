"""Complex scalings: what commutes with rotary position embeddings.

For even n, R^n is read as n/2 complex numbers, the first half of the coordinates being the real
parts and the second half the imaginary parts: z = x[: n/2] + i x[n/2 :]. A rotary embedding turns
each z by an angle that depends on the position and the frequency. The linear maps that commute
with it, for distinct frequencies, multiply each z by a complex number of their own, (C≠0)^{n/2}.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .axes import along, normalise_axis, require_length
from .element import Element, Tangent
from .group import (
    Group,
    Power,
    Shape,
    check_size,
    default_tolerance,
    normal,
    require_plain_power,
    uniform,
)


def _multiply(factor: Tensor, x: Tensor, axis: int) -> Tensor:
    """(a + ib)(u + iv) = (au − bv) + i (av + bu), on the two halves of a real axis."""
    axis = normalise_axis(x, axis, factor.dim() - 1)
    u, v = x.chunk(2, axis)
    a, b = along(factor.real, u, axis), along(factor.imag, u, axis)
    return torch.cat([a * u - b * v, a * v + b * u], axis)


class AbstractComplexScaling(Group):
    """The shared arithmetic: one complex factor for each pair of coordinates."""

    @property
    def log_order(self) -> float:
        return 0.0

    def contains_matrix(self, matrix: Tensor, tol: float | None = None) -> bool:
        tol = default_tolerance(matrix.dtype) if tol is None else tol
        half = self.size // 2
        blocks = matrix.unflatten(-1, (2, half)).unflatten(-3, (2, half))  # (*B, 2, h, 2, h)
        diagonals = blocks.diagonal(dim1=-3, dim2=-1)  # (*B, 2, 2, h)
        real, imaginary = diagonals[..., 0, 0, :], diagonals[..., 1, 0, :]
        factor = torch.complex(real, imaginary)
        expected = self.matrix(Element(diagonal=factor))
        scale = matrix.abs().amax().clamp_min(torch.finfo(matrix.dtype).tiny)
        near = (matrix - expected).abs().amax() <= tol * scale
        return bool(near) and self._allows(factor, tol)

    @abc.abstractmethod
    def _allows(self, factor: Tensor, tol: float) -> bool: ...

    def identity(
        self,
        batch: Shape = (),
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> Element:
        dtype = (dtype or torch.get_default_dtype()).to_complex()
        return Element(diagonal=torch.ones(*batch, self.size // 2, dtype=dtype, device=device))

    def compose(self, g: Element, h: Element) -> Element:
        if g.diagonal is None or h.diagonal is None:
            return h if g.diagonal is None else g
        return Element(diagonal=g.diagonal * h.diagonal)

    def inverse(self, g: Element) -> Element:
        return Element(diagonal=None if g.diagonal is None else g.diagonal.reciprocal())

    def dual(self, g: Element) -> Element:
        # The transpose of multiplication by z is multiplication by its conjugate.
        return Element(
            diagonal=None if g.diagonal is None else g.diagonal.reciprocal().conj().resolve_conj()
        )

    def polar(self, g: Element) -> tuple[Element, Element]:
        if g.diagonal is None:
            return g, Element()
        modulus = g.diagonal.abs()
        return Element(diagonal=g.diagonal / modulus), Element(
            diagonal=modulus.to(g.diagonal.dtype)
        )

    def apply(self, g: Element, x: Tensor, axis: int, power: Power = 1) -> Tensor:
        require_length(x, axis, self.size, self)
        require_plain_power(self, power)
        return x if g.diagonal is None else _multiply(g.diagonal, x, axis)

    def exp(self, a: Tangent) -> Element:
        return Element(diagonal=None if a.diagonal is None else a.diagonal.exp())

    def dual_tangent(self, a: Tangent) -> Tangent:
        return a.map(lambda velocity: -velocity.conj().resolve_conj())

    def infinitesimal(self, a: Tangent, x: Tensor, axis: int, power: Power = 1) -> Tensor:
        require_length(x, axis, self.size, self)
        require_plain_power(self, power)
        return torch.zeros_like(x) if a.diagonal is None else _multiply(a.diagonal, x, axis)

    def _velocity(self, a: Tangent) -> Tensor:
        """The complex velocities, projected from a matrix where one is given."""
        half = self.size // 2
        if a.matrix is not None:
            blocks = a.matrix.unflatten(-1, (2, half)).unflatten(-3, (2, half))
            d = blocks.diagonal(dim1=-3, dim2=-1)  # (*B, 2, 2, h)
            real = (d[..., 0, 0, :] + d[..., 1, 1, :]) / 2
            return torch.complex(real, (d[..., 1, 0, :] - d[..., 0, 1, :]) / 2)
        if a.diagonal is None:
            return torch.zeros(half, dtype=torch.get_default_dtype().to_complex())
        return a.diagonal


def _check_even(name: str, size: int) -> None:
    check_size(name, size)
    if size % 2:
        raise ValueError(
            f"{name}({size}): expected an even size, because coordinates i and i + n/2 make one "
            f"complex number. {size} coordinates have no such pairs; use Trivial({size})."
        )


@dataclass(frozen=True, repr=False)
class ComplexScaling(AbstractComplexScaling):
    """(C≠0)^{n/2}: each pair of coordinates turned and scaled by one complex number."""

    size: int

    def __post_init__(self) -> None:
        _check_even("ComplexScaling", self.size)

    @property
    def dimension(self) -> int:
        return self.size

    def _allows(self, factor: Tensor, tol: float) -> bool:
        return bool((factor.isfinite() & (factor != 0)).all())

    def sample(
        self,
        generator: torch.Generator,
        strength: float = 1.0,
        batch: Shape = (),
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> Element:
        shape = (*batch, self.size // 2)
        radius = (0.5 * strength * normal(generator, shape, dtype)).exp()
        angle = strength * math.pi * (2 * uniform(generator, shape, dtype) - 1)
        return Element(diagonal=torch.polar(radius, angle)).to(device=device)

    def tangent(self, coordinates: Tensor) -> Tangent:
        # One factor is two 2×2 entries each for its real and imaginary part, hence √2.
        real, imaginary = coordinates.chunk(2, -1)
        return Tangent(diagonal=torch.complex(real.contiguous(), imaginary.contiguous()) / 2**0.5)

    def coordinates(self, a: Tangent) -> Tensor:
        velocity = self._velocity(a)
        return torch.cat([velocity.real, velocity.imag], -1) * 2**0.5


@dataclass(frozen=True, repr=False)
class UnitComplex(AbstractComplexScaling):
    """U(1)^{n/2}: each pair of coordinates turned by an angle, the orthogonal complex scalings."""

    size: int

    def __post_init__(self) -> None:
        _check_even("UnitComplex", self.size)

    @property
    def dimension(self) -> int:
        return self.size // 2

    def _allows(self, factor: Tensor, tol: float) -> bool:
        return bool(((factor.abs() - 1).abs() <= tol).all())

    def sample(
        self,
        generator: torch.Generator,
        strength: float = 1.0,
        batch: Shape = (),
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> Element:
        shape = (*batch, self.size // 2)
        angle = strength * math.pi * (2 * uniform(generator, shape, dtype) - 1)
        return Element(diagonal=torch.polar(torch.ones_like(angle), angle)).to(device=device)

    def tangent(self, coordinates: Tensor) -> Tangent:
        angle = coordinates / 2**0.5
        return Tangent(diagonal=torch.complex(torch.zeros_like(angle), angle))

    def coordinates(self, a: Tangent) -> Tensor:
        return self._velocity(a).imag * 2**0.5

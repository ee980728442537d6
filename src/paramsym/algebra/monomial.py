"""Monomial groups: one entry in each row and column, g = D P.

Three questions place each of the eight: may coordinates be permuted, may they change sign, may they
be scaled by positive numbers?

    permutes  signs  scales
       –        –       –     Trivial             1
       –        ✓       –     Signs               {±1}ⁿ
       –        –       ✓     PositiveScaling     (R>0)ⁿ
       –        ✓       ✓     Scaling             (R≠0)ⁿ
       ✓        –       –     Permutation         Sₙ
       ✓        ✓       –     SignedPermutation   {±1} ≀ Sₙ
       ✓        –       ✓     Monomial            R>0 ≀ Sₙ
       ✓        ✓       ✓     Monomial, signed    R≠0 ≀ Sₙ

The meet answers each question with "and". These are also the only groups here for which an
entrywise power D P ↦ Dᵖ P is a representation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .axes import along, require_length, take
from .element import Element, Tangent
from .group import (
    Group,
    Power,
    Shape,
    check_size,
    default_tolerance,
    normal,
    random_order,
    uniform,
)


class AbstractMonomial(Group):
    """The shared arithmetic: an order (absent unless `permutes`) and a diagonal (absent unless
    `signs` or `scales`)."""

    permutes: bool  # whether coordinates may change places
    signs: bool  # whether they may change sign
    scales: bool  # whether they may be multiplied by positive numbers

    @property
    def dimension(self) -> int:
        return self.size if self.scales else 0

    @property
    def log_order(self) -> float:
        orders = math.lgamma(self.size + 1) if self.permutes else 0.0
        return orders + (self.size * math.log(2) if self.signs else 0.0)

    def contains_matrix(self, matrix: Tensor, tol: float | None = None) -> bool:
        tol = default_tolerance(matrix.dtype) if tol is None else tol
        peak = matrix.abs().amax(-1, keepdim=True)  # each row at its own scale
        support = matrix.abs() > tol * peak
        one_each = (support.sum(-1) == 1).all() and (support.sum(-2) == 1).all()
        if not one_each or not matrix.isfinite().all():
            return False
        if not self.permutes and not support.diagonal(dim1=-2, dim2=-1).all():
            return False
        return self._allows(matrix.sum(-1), tol)

    def contains(self, g: Element, tol: float | None = None) -> bool:
        # The dense test needs n² numbers, too many for a vocabulary; g's own form has 2n.
        if g.matrix is not None or g.base is not None:
            return super().contains(g, tol)
        if g.order is not None:
            places = torch.arange(self.size, device=g.order.device)
            if g.order.shape[-1] != self.size:
                return False
            if not (g.order if not self.permutes else g.order.sort(-1).values).eq(places).all():
                return False
        if g.diagonal is None:
            return True
        if g.diagonal.is_complex():
            return super().contains(g, tol)
        if g.diagonal.shape[-1] != self.size:
            return False
        return self._allows(g.diagonal, default_tolerance(g.diagonal.dtype) if tol is None else tol)

    def _allows(self, entries: Tensor, tol: float) -> bool:
        allowed = entries.isfinite() & (entries != 0)
        if not self.signs:
            allowed &= entries > 0
        if not self.scales:
            allowed &= (entries.abs() - 1).abs() <= tol
        return bool(allowed.all())

    def identity(
        self,
        batch: Shape = (),
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> Element:
        shape = (*batch, self.size)
        diagonal = self.signs or self.scales
        return Element(
            order=torch.arange(self.size, device=device).expand(shape) if self.permutes else None,
            diagonal=torch.ones(shape, dtype=dtype, device=device) if diagonal else None,
        )

    def sample(
        self,
        generator: torch.Generator,
        strength: float = 1.0,
        batch: Shape = (),
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> Element:
        shape = (*batch, self.size)
        order, diagonal = None, None
        if self.permutes:
            order = random_order(generator, self.size, strength, batch)
        if self.scales:
            diagonal = (0.5 * strength * normal(generator, shape, dtype)).exp()
        if self.signs:
            flipped = uniform(generator, shape, dtype) < 0.5 * min(strength, 1.0)
            sign = 1.0 - 2.0 * flipped.to(dtype or torch.get_default_dtype())
            diagonal = sign if diagonal is None else sign * diagonal
        return Element(order=order, diagonal=diagonal).to(device=device)

    def compose(self, g: Element, h: Element) -> Element:
        # (g (h x))[i] = g.diagonal[i] · h.diagonal[g.order[i]] · x[h.order[g.order[i]]]
        batch = torch.broadcast_shapes(g.batch_shape, h.batch_shape)
        g, h = g.expand(batch), h.expand(batch)
        if g.order is None:
            order, diagonal = h.order, h.diagonal
        else:
            order = g.order if h.order is None else take(h.order, g.order, -1)
            diagonal = None if h.diagonal is None else take(h.diagonal, g.order, -1)
        if g.diagonal is not None:
            diagonal = g.diagonal if diagonal is None else g.diagonal * diagonal
        return Element(order=order, diagonal=diagonal)

    def inverse(self, g: Element) -> Element:
        g = g.expand(g.batch_shape)
        order = None if g.order is None else g.order.argsort(-1)
        diagonal = None if g.diagonal is None else g.diagonal.reciprocal()
        if order is not None and diagonal is not None:
            diagonal = take(diagonal, order, -1)
        return Element(order=order, diagonal=diagonal)

    def dual(self, g: Element) -> Element:
        return g._replace(diagonal=None if g.diagonal is None else g.diagonal.reciprocal())

    def polar(self, g: Element) -> tuple[Element, Element]:
        # D P = (sign(D) P) (P⁻¹ |D| P): the modulus acts before the order
        if not self.scales or g.diagonal is None:
            return g, Element()
        g = g.expand(g.batch_shape)
        assert g.diagonal is not None
        modulus = g.diagonal.abs()
        if g.order is not None:
            modulus = take(modulus, g.order.argsort(-1), -1)
        sign = g.diagonal.sign() if self.signs else None
        return Element(order=g.order, diagonal=sign), Element(diagonal=modulus)

    def apply(self, g: Element, x: Tensor, axis: int, power: Power = 1) -> Tensor:
        require_length(x, axis, self.size, self)
        if g.order is not None:
            x = take(x, g.order, axis)
        if g.diagonal is not None and power != 0:
            x = along(self._entrywise(g.diagonal, power), x, axis) * x
        return x

    def _entrywise(self, diagonal: Tensor, power: Power) -> Tensor:
        if power == 1:
            return diagonal
        if power == -1:
            return diagonal.reciprocal()  # exact for signs, unlike a general power
        if power == int(power):
            return diagonal ** int(power)
        if self.signs:
            raise ValueError(
                f"{self} was asked for its entrywise power {power}, which has no real value at "
                "−1; expected a whole number. Use the group without signs, or a whole power."
            )
        return diagonal ** float(power)

    def apply_dual(self, g: Element, x: Tensor, axis: int, power: Power = 1) -> Tensor:
        # Not by way of `dual`: one reciprocal less to round where −power is positive.
        return self.apply(g, x, axis, -power)

    def tangent(self, coordinates: Tensor) -> Tangent:
        return Tangent(diagonal=coordinates) if self.scales else Tangent()

    def coordinates(self, a: Tangent) -> Tensor:
        if not self.scales:
            return torch.zeros(*a.batch_shape, 0)
        if a.matrix is not None:
            return a.matrix.diagonal(dim1=-2, dim2=-1)
        return torch.zeros(self.size) if a.diagonal is None else a.diagonal

    def exp(self, a: Tangent) -> Element:
        return Element(diagonal=None if a.diagonal is None else a.diagonal.exp())

    def dual_tangent(self, a: Tangent) -> Tangent:
        return a.map(torch.neg)

    def infinitesimal(self, a: Tangent, x: Tensor, axis: int, power: Power = 1) -> Tensor:
        require_length(x, axis, self.size, self)
        if a.diagonal is None:
            return torch.zeros_like(x)
        velocity = along(a.diagonal, x, axis) * x
        return velocity if power == 1 else float(power) * velocity


@dataclass(frozen=True, repr=False)
class _Sized:
    """The one field that these groups have."""

    size: int

    def __post_init__(self) -> None:
        check_size(type(self).__name__, self.size)


@dataclass(frozen=True, repr=False)
class Trivial(_Sized, AbstractMonomial):
    """Only the identity: a space whose coordinates are pinned."""

    permutes = False
    signs = False
    scales = False


@dataclass(frozen=True, repr=False)
class Signs(_Sized, AbstractMonomial):
    """Sign changes {±1}ⁿ, each coordinate at its own place."""

    permutes = False
    signs = True
    scales = False


@dataclass(frozen=True, repr=False)
class PositiveScaling(_Sized, AbstractMonomial):
    """Positive diagonal matrices: what commutes with ReLU while every unit keeps its place."""

    permutes = False
    signs = False
    scales = True


@dataclass(frozen=True, repr=False)
class Scaling(_Sized, AbstractMonomial):
    """Invertible diagonal matrices, of either sign."""

    permutes = False
    signs = True
    scales = True


@dataclass(frozen=True, repr=False)
class Permutation(_Sized, AbstractMonomial):
    """The symmetric group Sₙ: what commutes with any pointwise activation."""

    permutes = True
    signs = False
    scales = False


@dataclass(frozen=True, repr=False)
class SignedPermutation(_Sized, AbstractMonomial):
    """The hyperoctahedral group {±1} ≀ Sₙ: what commutes with odd pointwise activations."""

    permutes = True
    signs = True
    scales = False


@dataclass(frozen=True, repr=False)
class Monomial(_Sized, AbstractMonomial):
    """Permutations with scalings, positive by default: what commutes with ReLU.

    With `signed`, scalings of either sign: what passes through a product of two features.
    """

    signed: bool = False

    permutes = True
    scales = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "signs", self.signed)  # the one answer that an argument gives

    def __repr__(self) -> str:
        return f"Monomial({self.size}, signed)" if self.signed else f"Monomial({self.size})"

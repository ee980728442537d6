"""Wreath products: several copies of one space, each moved by its own element, and permuted.

R^n with n = copies · m is read copy by copy (copy-major). An element of base ≀ S_copies is a
permutation of the copies and one base element for each,

    (g x)[k] = base[k] · x[order[k]],

as for attention heads: each has its own change of key coordinates, and the heads are exchangeable.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .axes import normalise_axis, require_length, take
from .element import Element, Tangent
from .group import Group, Power, Shape, check_size, default_tolerance, random_order


@dataclass(frozen=True, repr=False)
class Wreath(Group):
    """The wreath product base ≀ S_copies, on `copies` spaces laid one after the other."""

    base: Group
    copies: int
    size: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.base, Group):
            raise ValueError(
                f"Wreath({self.base!r}, {self.copies!r}): expected a group first and the number "
                "of its copies second, as in Wreath(GeneralLinear(4), 3)."
            )
        check_size(f"Wreath({self.base}, copies)", self.copies)
        object.__setattr__(self, "size", self.base.size * self.copies)

    @property
    def dimension(self) -> int:
        return self.copies * self.base.dimension

    @property
    def log_order(self) -> float:
        return self.copies * self.base.log_order + math.lgamma(self.copies + 1)

    def contains_matrix(self, matrix: Tensor, tol: float | None = None) -> bool:
        tol = default_tolerance(matrix.dtype) if tol is None else tol
        width = self.base.size
        blocks = matrix.unflatten(-1, (self.copies, width)).unflatten(-3, (self.copies, width))
        blocks = blocks.transpose(-3, -2)  # (*B, copies, copies, width, width)
        peak = blocks.abs().amax((-3, -2, -1))  # each row of blocks at its own scale
        support = blocks.abs().amax((-2, -1)) > tol * peak[..., None]  # (*B, copies, copies)
        if not ((support.sum(-1) == 1).all() and (support.sum(-2) == 1).all()):
            return False
        return self.base.contains_matrix(blocks[support], tol)

    def identity(
        self,
        batch: Shape = (),
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> Element:
        return Element(
            order=torch.arange(self.copies, device=device).expand(*batch, self.copies),
            base=self.base.identity((*batch, self.copies), dtype, device),
        )

    def sample(
        self,
        generator: torch.Generator,
        strength: float = 1.0,
        batch: Shape = (),
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> Element:
        order = random_order(generator, self.copies, strength, batch).to(device=device)
        base = self.base.sample(generator, strength, (*batch, self.copies), dtype, device)
        return Element(order=order, base=base)

    def compose(self, g: Element, h: Element) -> Element:
        # (g (h x))[k] = base_g[k] · base_h[order_g[k]] · x[order_h[order_g[k]]]
        batch = torch.broadcast_shapes(g.batch_shape, h.batch_shape)
        g, h = g.expand(batch), h.expand(batch)
        order, inner = h.order, h.base or Element()
        if g.order is not None:
            order = g.order if order is None else take(order, g.order, -1)
            inner = inner.take(g.order)
        return Element(order=order, base=self.base.compose(g.base or Element(), inner))

    def inverse(self, g: Element) -> Element:
        g = g.expand(g.batch_shape)
        base = self.base.inverse(g.base or Element())
        if g.order is None:
            return Element(base=base)
        order = g.order.argsort(-1)
        return Element(order=order, base=base.take(order))

    def dual(self, g: Element) -> Element:
        return Element(order=g.order, base=self.base.dual(g.base or Element()))

    def polar(self, g: Element) -> tuple[Element, Element]:
        # copy by copy; the positive factor acts before the copies are permuted
        g = g.expand(g.batch_shape)
        compact, positive = self.base.polar(g.base or Element())
        if g.order is not None:
            positive = positive.take(g.order.argsort(-1))
        return Element(order=g.order, base=compact), Element(base=positive)

    def apply(self, g: Element, x: Tensor, axis: int, power: Power = 1) -> Tensor:
        return self._copywise(g, x, axis, power, dual=False)

    def apply_dual(self, g: Element, x: Tensor, axis: int, power: Power = 1) -> Tensor:
        return self._copywise(g, x, axis, power, dual=True)

    def _copywise(self, g: Element, x: Tensor, axis: int, power: Power, dual: bool) -> Tensor:
        x, axis, front = self._split(x, axis, len(g.batch_shape))
        if g.order is not None:
            x = take(x, g.order, front)
        act = self.base.apply_dual if dual else self.base.apply
        return self._join(act(g.base or Element(), x, axis + 1, power), axis, front)

    def _split(self, x: Tensor, axis: int, batch_dims: int) -> tuple[Tensor, int, int]:
        """The copies as a dimension of their own, right behind the batch of the element."""
        require_length(x, axis, self.size, self)
        axis = normalise_axis(x, axis, batch_dims)
        x = x.unflatten(axis, (self.copies, self.base.size))
        return x.movedim(axis, batch_dims), axis, batch_dims

    def _join(self, x: Tensor, axis: int, front: int) -> Tensor:
        return x.movedim(front, axis).flatten(axis, axis + 1)

    def tangent(self, coordinates: Tensor) -> Tangent:
        each = coordinates.unflatten(-1, (self.copies, self.base.dimension))
        return Tangent(base=self.base.tangent(each))

    def coordinates(self, a: Tangent) -> Tensor:
        if a.matrix is not None:
            width = self.base.size
            blocks = a.matrix.unflatten(-1, (self.copies, width))
            blocks = blocks.unflatten(-3, (self.copies, width))
            own = blocks.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)  # (*B, copies, m, m)
            return self.base.coordinates(Tangent(matrix=own)).flatten(-2)
        each = self.base.coordinates(a.base or Tangent())
        return each.expand(*a.batch_shape, self.copies, self.base.dimension).flatten(-2)

    def exp(self, a: Tangent) -> Element:
        return Element(base=self.base.exp(a.base or Tangent()))

    def dual_tangent(self, a: Tangent) -> Tangent:
        return Tangent(base=self.base.dual_tangent(a.base or Tangent()))

    def infinitesimal(self, a: Tangent, x: Tensor, axis: int, power: Power = 1) -> Tensor:
        x, axis, front = self._split(x, axis, len(a.batch_shape))
        velocity = self.base.infinitesimal(a.base or Tangent(), x, axis + 1, power)
        return self._join(velocity, axis, front)

    def __repr__(self) -> str:
        return f"Wreath({self.base}, {self.copies})"

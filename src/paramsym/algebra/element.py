"""The values that groups work with: group elements and Lie algebra elements.

Both are plain bundles of tensors. They do not know their group; the group gives them their meaning.
A part that is None is the identity (or zero) there, so an all-None value is the identity of every
group. Every tensor may have leading batch dimensions, the same for all parts of one value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .axes import take


def _batch(tensor: Tensor | None, tail: int) -> torch.Size:
    return torch.Size() if tensor is None else tensor.shape[: tensor.dim() - tail]


def _cast(tensor: Tensor, dtype: torch.dtype | None, device: torch.device | None) -> Tensor:
    """To a real dtype, or to its complex counterpart for complex parts; indices stay indices."""
    if dtype is not None and tensor.is_complex():
        dtype = dtype.to_complex()
    made = tensor.to(device=device, dtype=dtype if tensor.dtype != torch.long else None)
    return made.contiguous()  # an equal element moves equally, however its numbers lie


class Element(NamedTuple):
    """One group element, or a batch of them.

    It acts on x in R^n by one of

        (g x)[i] = diagonal[i] · x[order[i]]          monomial kinds
        g x      = matrix · x                         linear kinds
        z        ↦ diagonal · z                       complex kinds, z = x[: n/2] + i x[n/2 :]
        (g x)[k] = base[k] · x[order[k]]              wreath products, x[k] the k-th copy
    """

    order: Tensor | None = None  # (*B, n), long
    diagonal: Tensor | None = None  # (*B, n), or (*B, n/2) complex
    matrix: Tensor | None = None  # (*B, n, n)
    base: Element | None = None  # batched (*B, copies)

    @property
    def batch_shape(self) -> torch.Size:
        """The leading dimensions B; empty for a single element."""
        inner = torch.Size() if self.base is None else self.base.batch_shape[:-1]
        return torch.broadcast_shapes(
            _batch(self.order, 1), _batch(self.diagonal, 1), _batch(self.matrix, 2), inner
        )

    @property
    def device(self) -> torch.device | None:
        """Where the tensors live; None where there are none."""
        for part in (self.order, self.diagonal, self.matrix):
            if part is not None:
                return part.device
        return None if self.base is None else self.base.device

    def map(self, function: Callable[[Tensor, int], Tensor]) -> Element:
        """Applies function(tensor, tail) to every part; the last `tail` dimensions are no batch."""
        return Element(
            None if self.order is None else function(self.order, 1),
            None if self.diagonal is None else function(self.diagonal, 1),
            None if self.matrix is None else function(self.matrix, 2),
            None if self.base is None else self.base.map(function),
        )

    def expand(self, batch: torch.Size) -> Element:
        """The same element at every place of a batch that B broadcasts to."""

        def part(tensor: Tensor, tail: int) -> Tensor:
            return tensor.expand(*batch, *tensor.shape[tensor.dim() - tail :])

        inner = None
        if self.base is not None:
            shape = self.base.batch_shape
            inner = self.base if not shape else self.base.expand(torch.Size((*batch, shape[-1])))
        return self._replace(base=None).map(part)._replace(base=inner)

    def take(self, order: Tensor) -> Element:
        """Reorders the last batch dimension: h[…, k] = g[…, order[…, k]]."""
        axis = order.dim() - 1
        return self.map(lambda tensor, _: take(tensor, order, axis))

    def to(self, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Element:
        """The same element in another real dtype or on another device."""
        return self.map(lambda tensor, _: _cast(tensor, dtype, device))


class Tangent(NamedTuple):
    """One element of a Lie algebra, or a batch of them: a velocity at the identity.

    `diagonal` holds log-scales (complex for complex kinds), `matrix` an n×n velocity, `base` one
    velocity per copy. Discrete parts have none, so there is no `order`.
    """

    diagonal: Tensor | None = None  # (*B, n), or (*B, n/2) complex
    matrix: Tensor | None = None  # (*B, n, n)
    base: Tangent | None = None  # batched (*B, copies)

    @property
    def batch_shape(self) -> torch.Size:
        """The leading dimensions B; empty for a single velocity."""
        inner = torch.Size() if self.base is None else self.base.batch_shape[:-1]
        return torch.broadcast_shapes(_batch(self.diagonal, 1), _batch(self.matrix, 2), inner)

    def map(self, function: Callable[[Tensor], Tensor]) -> Tangent:
        """Applies a function to every part."""
        return Tangent(
            None if self.diagonal is None else function(self.diagonal),
            None if self.matrix is None else function(self.matrix),
            None if self.base is None else self.base.map(function),
        )

    def scaled(self, factor: float | Tensor) -> Tangent:
        """factor · a, for one factor."""
        return self.map(lambda tensor: tensor * factor)

    def to(self, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tangent:
        """The same velocity in another real dtype or on another device."""
        return self.map(lambda tensor: _cast(tensor, dtype, device))


def first_order(a: Tangent) -> Element:
    """1 + a, which agrees with exp(a) to first order: all that a derivative at the identity needs.

    It lies in no group in particular, and costs no matrix exponential.
    """
    matrix = a.matrix
    if matrix is not None:
        matrix = matrix + torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    return Element(
        diagonal=None if a.diagonal is None else 1 + a.diagonal,
        matrix=matrix,
        base=None if a.base is None else first_order(a.base),
    )


def dense(g: Element, size: int, dtype: torch.dtype | None = None) -> Tensor:
    """The n×n matrix of an element, of shape (*B, n, n), written entry by entry.

    It shares no code with any `apply`, so that tests can set one against the other. Without a
    dtype, the element's own; the default dtype for an element that is only an order.
    """
    if g.base is not None and (g.order is not None or g.base.batch_shape):
        matrix = _dense_wreath(g, g.base, size)
    elif g.matrix is not None:
        matrix = g.matrix
    elif g.diagonal is not None and g.diagonal.is_complex():
        real, imaginary = torch.diag_embed(g.diagonal.real), torch.diag_embed(g.diagonal.imag)
        matrix = torch.cat(
            [torch.cat([real, -imaginary], -1), torch.cat([imaginary, real], -1)], -2
        )
    else:
        device = g.device
        order = torch.arange(size, device=device) if g.order is None else g.order
        entries = torch.ones(size, device=device) if g.diagonal is None else g.diagonal
        batch = torch.broadcast_shapes(order.shape[:-1], entries.shape[:-1])
        matrix = torch.zeros(*batch, size, size, dtype=entries.dtype, device=device)
        matrix = matrix.scatter(
            -1, order.expand(*batch, size)[..., None], entries.expand(*batch, size)[..., None]
        )
    return matrix if dtype is None else matrix.to(dtype)


def _dense_wreath(g: Element, base: Element, size: int) -> Tensor:
    """Block k of rows holds base k, in the columns of copy order[k]."""
    copies = base.batch_shape[-1] if g.order is None else g.order.shape[-1]
    width = size // copies
    blocks = dense(base, width)  # (*B, copies, width, width), or without batch for an identity
    order = torch.arange(copies, device=blocks.device) if g.order is None else g.order
    batch = torch.broadcast_shapes(order.shape[:-1], blocks.shape[:-3])
    place = torch.nn.functional.one_hot(order, copies).to(blocks.dtype)  # (*B, copies, copies)
    blocks = blocks.expand(*batch, copies, width, width)
    place = place.expand(*batch, copies, copies)
    return torch.einsum("...kl,...kij->...kilj", place, blocks).reshape(*batch, size, size)

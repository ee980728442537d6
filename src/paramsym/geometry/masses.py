"""Sums of powers of weights, and products with matrices of them, without a copy of the weights.

Both read the weights in panels that fit the cache, each widened to double precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

_PANEL = 1 << 16  # entries that are widened at a time: half a megabyte
_WHOLE = 1 << 18  # entries of which panels would save no time


def raised(size: Tensor, power: float) -> Tensor:
    """|w|^p of absolute values or of weights, in place where they are double already."""
    if power == 2:
        return size.mul_(size)
    return size.abs_() if power == 1 else size.abs_().pow_(power)


def power_sum(x: Tensor, power: float, summed: Sequence[int] = ()) -> Tensor:
    """Σ |x|^p over some axes, a new tensor in double precision.

    Args:
        x: real or complex numbers of any precision.
        power: p > 0.
        summed: the axes to sum over.
    """
    if x.numel() <= _WHOLE or not x.ndim:
        if x.dtype == torch.float64:  # one pass over memory less than a copy
            mass = x.square() if power == 2 else x.abs() if power == 1 else x.abs().pow_(power)
        else:
            mass = raised(_widened(x), power)
        return mass.sum([*summed]) if summed else mass
    along = max(range(x.ndim), key=lambda axis: x.shape[axis])
    rows = max(1, _PANEL * x.shape[along] // x.numel())
    pieces = torch.split(x, rows, along)
    if along in summed:
        found = power_sum(pieces[0], power, summed)
        for piece in pieces[1:]:
            found += power_sum(piece, power, summed)
        return found
    place = along - sum(axis < along for axis in summed)
    return torch.cat([power_sum(piece, power, summed) for piece in pieces], place)


def norm_power(
    x: Tensor, power: float, summed: Sequence[int] = (), out: Tensor | None = None
) -> Tensor:
    """The same for real numbers, p one or two, added up in their own precision: one pass over them,
    and no wide copy.

    In single precision sums are off by a share of about 1e-6, the scales that are best by as
    little, and the cost there by its square.

    Args:
        x, power, summed: as for `power_sum`.
        out: what is overwritten; by default a new tensor.
    """
    if not summed:
        return torch.mul(x, x, out=out) if power == 2 else torch.abs(x, out=out)
    if x.ndim - 1 not in summed:  # across rows PyTorch takes norms slowly
        return torch.sum(norm_power(x, power), [*summed], out=out)
    found = torch.linalg.vector_norm(x, power, [*summed], out=out)
    return found.square_() if power == 2 else found


def _widened(x: Tensor) -> Tensor:
    """A new tensor in double precision, moduli of complex numbers."""
    return x.abs().double() if x.is_complex() else x.to(torch.float64, copy=True)


class Mass:
    """A matrix m ≥ 0 that is multiplied with vectors on either side, in double precision.

    Args:
        source: the matrix itself, or weights w with m = |w|^p; it is kept as it is, in any
            precision and with any strides, and read once for each product.
        power: p, or None for the matrix itself.
    """

    def __init__(self, source: Tensor, power: float | None = None) -> None:
        self.source, self.power = source, power
        self.plain = power is None and source.dtype == torch.float64
        self.whole = self.plain and source.ndim == 2 and source.numel() <= _WHOLE

    def times(self, right: Tensor) -> Tensor:
        """m v, of shape (rows,)."""
        if self.plain:
            return self.source @ right
        return torch.cat([panel @ right for _, panel in self._panels()])

    def transposed(self, left: Tensor) -> Tensor:
        """mᵀ u, of shape (columns,)."""
        if self.plain:
            return self.source.mT @ left
        made = left.new_zeros(self.source.shape[1])
        for start, panel in self._panels():
            made.addmv_(panel.mT, left[start : start + len(panel)])
        return made

    def both(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """m v and mᵀ u, at the price of reading m once."""
        if self.whole:
            return self.source @ right, self.source.mT @ left
        rows, made = [], left.new_zeros(self.source.shape[1])
        for start, panel in self._panels():
            rows.append(panel @ right)
            made.addmv_(panel.mT, left[start : start + len(panel)])
        return torch.cat(rows), made

    def _panels(self) -> Iterator[tuple[int, Tensor]]:
        """Panels of rows with where they start; each is gone when the next one comes."""
        count, columns = self.source.shape
        step = max(1, _PANEL // max(1, columns))
        room = None if self.plain else torch.empty(min(step, count), columns, dtype=torch.float64)
        for start in range(0, count, step):
            panel = self.source[start : start + step]
            if room is not None:
                panel = room[: len(panel)].copy_(panel)
                panel = panel if self.power is None else raised(panel, self.power)
            yield start, panel


class Diagonal(Mass):
    """A diagonal matrix, given by the vector on it: what two scales of each entry multiply."""

    def times(self, right: Tensor) -> Tensor:
        """m v."""
        return self.source * right

    def transposed(self, left: Tensor) -> Tensor:
        """mᵀ u."""
        return self.source * left

    def both(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """m v and mᵀ u."""
        return self.source * right, self.source * left

"""One tensor moved by the values of spaces, block by block and leg by leg: the general path."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from paramsym.algebra import Element
from paramsym.structure.axes import AxisType, Product, Sizes, Sum, spaces_of
from paramsym.structure.data import SymmetryData
from paramsym.structure.element import Values
from paramsym.structure.frames import frame_of, framed, unframed
from paramsym.structure.layout import working_dtype
from paramsym.structure.origin import added
from paramsym.structure.shift import Params
from paramsym.structure.space import Space
from paramsym.structure.walk import Leg, walked


def leg_by_leg(
    symmetry: SymmetryData, spaces: Mapping[str, Space], values: Values, name: str, params: Params
) -> torch.Tensor:
    """The tensor `name` after the values of some spaces, whose groups `spaces` says.

    It comes in the dtype in which it was computed, `working_dtype`.
    """
    x, axes, offset = params[name], symmetry.signature[name], symmetry.offsets.get(name, 0.0)
    work = x.to(working_dtype(x))
    if offset:
        work = added(work, offset)
    mover, blocks = _Mover(spaces, values, params, work.dtype), iter(symmetry.blocks[name])
    work = walked(work, axes, symmetry.sizes, lambda x, *_: mover.move(x, next(blocks).legs))
    return added(work, -offset) if offset else work


class _Mover:
    """Applies one element to the blocks of one tensor."""

    def __init__(
        self, spaces: Mapping[str, Space], values: Values, params: Params, dtype: torch.dtype
    ):
        self.spaces, self.values, self.params, self.dtype = spaces, values, params, dtype
        # a diagonal stays real for complex tensors, and is no number of integers
        real = dtype.is_floating_point or dtype.is_complex
        self.real = dtype.to_real() if real else torch.float64

    def move(self, x: torch.Tensor, legs: tuple[Leg, ...]) -> torch.Tensor:
        """Move one block, leg by leg."""
        for leg in legs:
            value = self.values.get(leg.space)
            if value is None:
                continue
            frame = frame_of(leg, self.params, x, self.dtype) if leg.frame else None
            if frame is not None:
                x = unframed(x, leg, frame)
            x = self._apply(x, leg, value.to(self.real, x.device))
            if frame is not None:
                x = framed(x, leg, frame)
        return x

    def _apply(self, x: torch.Tensor, leg: Leg, value: Element) -> torch.Tensor:
        group, copies = self.spaces[leg.space].group, leg.copies
        front = x.movedim(copies, tuple(range(len(copies)))) if copies else x
        at = [d for d in range(x.ndim) if d not in copies].index(leg.axis) + len(copies)
        if leg.is_dual:
            made = group.apply_dual(value, front, at, -leg.power)
        else:
            made = group.apply(value, front, at, leg.power)
        return made.movedim(tuple(range(len(copies))), copies) if copies else made


def halves(axis: AxisType, sizes: Sizes, paired: set[str]) -> torch.Tensor:
    """Ones at the entries of an axis that are imaginary parts of a paired space."""
    if isinstance(axis, Sum):
        return torch.cat([halves(term, sizes, paired) for term in axis.terms])
    if isinstance(axis, Product):
        made = torch.zeros((), dtype=torch.long)
        for factor in axis.factors:
            made = made[..., None] + halves(factor, sizes, paired)
        return made.reshape(-1)
    n = axis.size(sizes)
    if paired.isdisjoint(spaces_of(axis)):
        return torch.zeros(n, dtype=torch.long)
    return (torch.arange(n) >= n // 2).long()

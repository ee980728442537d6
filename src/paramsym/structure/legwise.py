"""One tensor moved by the values of spaces, block by block and leg by leg: the general path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import torch

from paramsym.algebra import Element
from paramsym.algebra.following import is_followed
from paramsym.algebra.linear import AbstractLinear, AbstractRotation
from paramsym.algebra.woven import Woven, woven_of
from paramsym.structure.axes import AxisType, Frame, Product, Sizes, Sum, spaces_of
from paramsym.structure.data import SymmetryData
from paramsym.structure.element import Values
from paramsym.structure.frames import along, framed, gains_of, unframed
from paramsym.structure.layout import working_dtype
from paramsym.structure.origin import added
from paramsym.structure.shift import Params
from paramsym.structure.space import Space
from paramsym.structure.walk import Leg, walked


def leg_by_leg(
    symmetry: SymmetryData,
    spaces: Mapping[str, Space],
    values: Values,
    name: str,
    params: Params,
    movers: Movers | None = None,
) -> torch.Tensor:
    """The tensor `name` after the values of some spaces, whose groups `spaces` says.

    It comes in the dtype in which it was computed, `working_dtype`. `movers` keep what several
    tensors ask for that the same values move, and that read the same gains.
    """
    x, axes, offset = params[name], symmetry.signature[name], symmetry.offsets.get(name, 0.0)
    work = x.to(working_dtype(x))
    if offset:
        work = added(work, offset)
    movers, blocks = {} if movers is None else movers, symmetry.blocks[name]
    mover = movers.get((work.dtype, work.device))
    if mover is None:
        mover = _Mover(spaces, values, work.dtype, work.device)
        movers[work.dtype, work.device] = mover
    if len(blocks) == 1:
        block = work.reshape(blocks[0].shape)
        work = mover.move(block, blocks[0].legs, params).reshape(x.shape)
    else:
        left = iter(blocks)
        work = walked(
            work, axes, symmetry.sizes, lambda x, *_: mover.move(x, next(left).legs, params)
        )
    return added(work, -offset) if offset else work


class _Mover:
    """Applies one element to the blocks of tensors of one dtype."""

    def __init__(
        self,
        spaces: Mapping[str, Space],
        values: Values,
        dtype: torch.dtype,
        device: torch.device,
    ):
        self.spaces, self.given, self.dtype, self.device = spaces, values, dtype, device
        # a diagonal stays real for complex tensors, and is no number of integers
        real = dtype.is_floating_point or dtype.is_complex
        self.real = dtype.to_real() if real else torch.float64
        self._values: dict[str, Element] = {}
        self._duals: dict[str, Element] = {}
        self._woven: dict[str, Woven | None] = {}
        self._framed: dict[tuple[str, tuple[Frame, ...], bool], Woven] = {}
        self._gains: dict[tuple[Frame, ...], torch.Tensor] = {}

    def move(self, x: torch.Tensor, legs: tuple[Leg, ...], params: Params) -> torch.Tensor:
        """Move one block, leg by leg."""
        for leg in legs:
            if leg.space not in self.given:
                continue
            value = self._value(leg.space)
            steps = self._woven[leg.space]
            if steps is not None:
                steps = self._in_frame(steps, leg, params) if leg.frame else steps
                x = steps.times(x, leg.axis)
                continue
            frame = along(leg, self._gain(leg, params), x.ndim) if leg.frame else None
            if frame is not None:
                x = unframed(x, leg, frame)
            x = self._apply(x, leg, value)
            if frame is not None:
                x = framed(x, leg, frame)
        return x

    def _value(self, space: str) -> Element:
        found = self._values.get(space)
        if found is None:
            found = self._values[space] = self.given[space].to(self.real, self.device)
            self._woven[space] = self._steps(space, found.matrix)
        return found

    def _dual(self, space: str) -> Element:
        """The inverse transpose of a matrix."""
        found = self._duals.get(space)
        if found is None:
            found = self._duals[space] = self.spaces[space].group.dual(self._value(space))
        return found

    def _steps(self, space: str, matrix: torch.Tensor | None) -> Woven | None:
        """A rotation in the two quick steps of which it is made, if it is."""
        rotates = isinstance(self.spaces[space].group, AbstractRotation)  # its own dual
        if matrix is None or not rotates or is_followed(matrix) or self.dtype.is_complex:
            return None
        return woven_of(matrix)

    def _in_frame(self, steps: Woven, leg: Leg, params: Params) -> Woven:
        """The two steps with the gains in whose frame a leg moves."""
        key = leg.space, leg.frame, leg.is_dual
        if key not in self._framed:
            gain = self._gain(leg, params)
            self._framed[key] = steps.framed(gain if leg.is_dual else gain.reciprocal())
        return self._framed[key]

    def _gain(self, leg: Leg, params: Params) -> torch.Tensor:
        gain = self._gains.get(leg.frame)
        if gain is None:
            gain = gains_of(leg, params, self.dtype, self.device)
            self._gains[leg.frame] = gain
        return gain

    def _apply(self, x: torch.Tensor, leg: Leg, value: Element) -> torch.Tensor:
        group, copies = self.spaces[leg.space].group, leg.copies
        front = x.movedim(copies, tuple(range(len(copies)))) if copies else x
        at = [d for d in range(x.ndim) if d not in copies].index(leg.axis) + len(copies)
        if leg.is_dual and isinstance(group, AbstractLinear):
            made = group.apply(self._dual(leg.space), front, at, -leg.power)
        elif leg.is_dual:
            made = group.apply_dual(value, front, at, -leg.power)
        else:
            made = group.apply(value, front, at, leg.power)
        return made.movedim(tuple(range(len(copies))), copies) if copies else made


Movers: TypeAlias = dict[tuple[torch.dtype, torch.device], _Mover]


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

"""One moved tensor in panels of consecutive rows, so that none has to be in memory as a whole.

A panel needs the rows that it is made of: those in the same places where the first axis is not
moved, as for a token table in a rotated stream; those that an order brings there; or all of them,
where rows are mixed. What comes out is `act_tensor`: to the last bit, except where matrices are
multiplied panel by panel, whose sums then come in another order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

import torch

from paramsym.structure.action import act_tensor
from paramsym.structure.axes import Fixed, spaces_of
from paramsym.structure.element import GroupElement, Slide
from paramsym.structure.fast import AxisPlan, Rows, panels, plans_of
from paramsym.structure.needs import Steps, steps
from paramsym.structure.pieces import cutting
from paramsym.structure.symmetry import ParameterSymmetry

PANEL = 1 << 23  # bytes of a panel that is moved by the general path: its copies stay small
_COPIES = 10  # of a panel, at most, in the wider dtype


def act_panels(
    symmetry: ParameterSymmetry, element: GroupElement, name: str, tensors: Mapping[str, Rows],
    way: Way | None = None,
) -> Iterator[torch.Tensor]:  # fmt: skip
    """The rows of `act_tensor(symmetry, element, name, tensors)`, some at a time.

    Args:
        symmetry: as for `act`.
        element: as for `act`.
        name: the tensor to move, by the name that the signature has for it.
        tensors: those of `symmetry.needs(name, element)`; tensors, or anything with a shape and a
            dtype whose slices along the first axis are tensors.
        way: `way_of` these, for a caller that has asked for it before.

    Returns:
        Panels of consecutive rows, from the first to the last row. Each is good until the next is
        asked for; a tensor without axes, or one whose rows are mixed, is a single panel.

    Raises:
        ValueError: as `act_tensor`.
    """
    x = tensors[name]
    way = way_of(symmetry, element, name, x) if way is None else way
    if way.plans is not None:
        gains = _whole(way.steps, tensors, name)
        return panels(x, [plan.reading(gains) for plan in way.plans])
    if not way.moves:
        return as_they_are(x)
    if way.rows == Needed.PANEL:
        return _row_by_row(symmetry, element, name, way.steps, tensors)
    return iter([act_tensor(symmetry, element, name, _whole(way.steps, tensors))])


class Needed(Enum):
    """Which rows of a tensor have to be there for some of the moved ones."""

    PANEL = "the same"
    ORDER = "those that an order brings there"
    ALL = "all"


@dataclass(frozen=True)
class Way:
    """How `act_panels` moves a tensor: which rows it needs, and the plan of the fast path."""

    steps: Steps
    rows: Needed
    plans: list[AxisPlan] | None = None

    @property
    def moves(self) -> bool:
        """Whether the tensor moves at all."""
        return bool(self.steps.moved)

    def memory(self, x: Rows) -> int:
        """Bytes that moving a tensor takes at most, what is read and written included."""
        whole = x.shape.numel() * x.dtype.itemsize
        wide = x.shape.numel() * max(4, x.dtype.itemsize)
        if self.rows == Needed.PANEL:
            return min(_COPIES * whole, _COPIES * PANEL)
        if self.plans is None:
            return 2 * whole + 3 * wide
        if self.rows == Needed.ORDER:
            return whole + min(_COPIES * whole, _COPIES * PANEL)
        mixed = [plan.mixed is not None for plan in self.plans]
        gathered = not all(mixed) and any(plan.order is not None for plan in self.plans)
        return (2 + gathered) * whole + all(mixed) * wide + min(_COPIES * whole, _COPIES * PANEL)


def way_of(symmetry: ParameterSymmetry, element: GroupElement, name: str, x: Rows) -> Way:
    """How `act_panels` moves a tensor, of which nothing but its shape and dtype is asked."""
    found = steps(symmetry, element, name)
    moving = [place for place, names in found.moved.items() if name in names]
    if not moving:
        return Way(Steps((name,), {}), Needed.PANEL)
    plans = None
    if len(moving) == 1 and found.moved == {moving[0]: (name,)} and name in symmetry.signature:
        part, spaces = element.parts[moving[0]], element.symmetry.spaces
        if not isinstance(part, Slide):
            plans = plans_of(symmetry, spaces, part, name, x, {})
    if plans is not None:
        rows = Needed.PANEL if plans[0].order is None else Needed.ORDER
        return Way(found, Needed.ALL if plans[0].mixed is not None else rows, plans)
    rows_stay = _rows_stay(symmetry, element, name, moving)
    return Way(found, Needed.PANEL if rows_stay else Needed.ALL)


def as_they_are(x: Rows) -> Iterator[torch.Tensor]:
    """The rows of a tensor in panels, as they are."""
    if not x.shape:
        yield x[:]
        return
    for low, high in spans(x):
        yield x[low:high]


def _row_by_row(
    symmetry: ParameterSymmetry, element: GroupElement, name: str, found: Steps,
    tensors: Mapping[str, Rows],
) -> Iterator[torch.Tensor]:  # fmt: skip
    """Panels of a tensor whose rows keep their places: each is a smaller tensor of its own."""
    x, axes = tensors[name], symmetry.signature[name]
    others = _whole(found, tensors, name)
    own: dict[int, ParameterSymmetry] = {}
    for low, high in spans(x):
        rows = high - low
        if rows not in own:
            signature = {n: symmetry.signature[n] for n in others if n in symmetry.signature}
            signature[name] = (Fixed(rows), *axes[1:])
            own[rows] = replace(symmetry, signature=signature, ties={}, inputs={}, outputs={})
        yield act_tensor(own[rows], element, name, {**others, name: x[low:high]})


def _rows_stay(
    symmetry: ParameterSymmetry, element: GroupElement, name: str, moving: list[int]
) -> bool:
    """Whether an element moves each row of a tensor by itself, and in its place."""
    axes = symmetry.signature.get(name, ())
    if len(axes) < 2 or symmetry.offsets.get(name) or 0 in cutting(axes):
        return False
    parts = [element.parts[place] for place in moving]
    carried = {space for axis in axes[:1] for space in spaces_of(axis)}
    below = {base for s in carried for base in symmetry.spaces[s].over} | carried
    others = {space for axis in axes[1:] for space in spaces_of(axis)}
    if any(carried & {*symmetry.spaces[s].over} for s in others):
        return False  # the first axis says which of their copies is meant
    return not any(isinstance(part, Slide) or below & set(part) for part in parts)


def _whole(found: Steps, tensors: Mapping[str, Rows], but: str = "") -> dict[str, torch.Tensor]:
    return {name: tensors[name][:] for name in found.names if name != but}


def spans(x: Rows, size: int | None = None) -> Iterator[tuple[int, int]]:
    """First and last rows of panels of a tensor, about so many bytes each; by default `PANEL`."""
    count = x.shape[0]
    if not math.prod(x.shape):  # of however many rows without a number
        yield 0, count
        return
    step = max(1, (size or PANEL) // max(1, math.prod(x.shape[1:]) * x.dtype.itemsize))
    for low in range(0, count, step):
        yield low, min(low + step, count)

"""Permutations and scalings of large tensors at the speed of memory.

A tensor all of whose axes carry plain orders, and scales over them, is moved in one pass over row
panels that fit the cache: rows are gathered, columns are gathered, and the scales are multiplied
while the panel is warm. Everything else is left to the general path, which is also its twin in the
tests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import torch

from paramsym.algebra import Element
from paramsym.structure.axes import AxisType, Carried, Fixed, Product
from paramsym.structure.data import SymmetryData
from paramsym.structure.following import is_followed

_SMALL = 1 << 16  # entries below which the general path is as good
# Entries per panel: 128 KB of float32 stay in the cache between passes, and torch does not split so
# small a tensor over threads, whose waiting for each other would cost more than they save. A single
# thread waits for nobody, and larger panels spare it calls.
_PANEL = 1 << 15
_ALONE = 4  # times as much
_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class Rows(Protocol):
    """Something whose rows can be read: a tensor, or a tensor in a file."""

    @property
    def shape(self) -> torch.Size: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def __getitem__(self, rows: slice, /) -> torch.Tensor: ...


@dataclass(frozen=True)
class AxisPlan:
    """What happens along one axis: units are taken in this order, then multiplied by this scale."""

    order: torch.Tensor | None = None
    scale: torch.Tensor | None = None


def monomial_matrix(
    symmetry: SymmetryData, values: Mapping[str, Element], x: torch.Tensor,
    axes: tuple[AxisType, ...],
) -> torch.Tensor | None:  # fmt: skip
    """The moved tensor, or None where the fast path does not apply."""
    if not pays(x) or x.device.type != "cpu":
        return None
    if type(x) not in (torch.Tensor, torch.nn.Parameter) or is_followed(x):
        return None
    plans = plans_of(symmetry, values, axes, x.dtype)
    if plans is None:
        return None
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    for _ in panels(x.detach().contiguous(), plans, out):
        pass
    return out


def pays(x: Rows) -> bool:
    """Whether a tensor is large enough for panels."""
    return math.prod(x.shape) >= _SMALL


def plans_of(
    symmetry: SymmetryData, values: Mapping[str, Element], axes: tuple[AxisType, ...],
    dtype: torch.dtype,
) -> list[AxisPlan] | None:  # fmt: skip
    """What happens along each axis of a tensor; None where that is more than orders and scales."""
    if len(axes) < 2 or dtype not in _FLOATS:
        return None
    scales = (v.diagonal for v in values.values() if v.diagonal is not None)
    if any(map(is_followed, scales)):
        return None
    work = torch.float32 if dtype.itemsize == 2 else dtype
    plans = []
    for axis in axes:
        plan = _plan(symmetry, values, axis, work)
        if plan is None:
            return None
        plans.append(plan)
    return None if any(plan.order is not None for plan in plans[2:]) else plans


def _plan(
    symmetry: SymmetryData, values: Mapping[str, Element], axis: AxisType, dtype: torch.dtype
) -> AxisPlan | None:
    """The plan of one axis; None if it is not monomial."""
    if isinstance(axis, Fixed):
        return AxisPlan()
    units, scalars = _split(symmetry, axis)
    if units is None or (units.frame and units.factors[0][0] in values):
        return None
    order = scale = None
    for name, power in (*units.factors, *scalars):
        value = values.get(name)
        if value is None:
            continue
        if not _is_real_monomial(value):
            return None
        if value.diagonal is not None:
            diagonal = _power(value.diagonal.reshape(-1), power)  # one scalar for each unit
            scale = diagonal if scale is None else scale * diagonal
        if value.order is not None:
            order = value.order  # at most one, before every scale
    return AxisPlan(order, None if scale is None else scale.to(dtype))


def _is_real_monomial(value: Element) -> bool:
    """Whether an element is an order and real scales, and nothing else."""
    if value.matrix is not None or value.base is not None:
        return False
    return value.diagonal is None or not value.diagonal.is_complex()


def _power(diagonal: torch.Tensor, power: Fraction) -> torch.Tensor:
    """Entrywise power; whole ones also of negative scales."""
    if power == 1:
        return diagonal
    return diagonal ** (int(power) if power.denominator == 1 else float(power))


def _split(
    symmetry: SymmetryData, axis: AxisType
) -> tuple[Carried | None, tuple[tuple[str, Fraction], ...]]:
    """The units of an axis, and the scalars that stand over each of them alone."""
    scalars: tuple = ()
    if isinstance(axis, Product) and len(axis.factors) == 2:
        axis, beside = axis.factors
        if not isinstance(axis, Carried) or not isinstance(beside, Carried):
            return None, ()
        scalars, over = beside.factors, (axis.factors[0][0],)
        spaces = [symmetry.spaces[name] for name, _ in scalars]
        if any(space.size != 1 or space.over != over for space in spaces):
            return None, ()
    if not isinstance(axis, Carried) or any(symmetry.spaces[s].over for s, _ in axis.factors):
        return None, ()
    return axis, scalars


def panels(
    x: Rows, plans: list[AxisPlan], out: torch.Tensor | None = None
) -> Iterator[torch.Tensor]:
    """The moved tensor, in panels of consecutive rows.

    Args:
        x: the tensor; where rows keep their places, its rows are asked for panel by panel.
        plans: one for each axis.
        out: where the panels are written; by default each is good until the next is asked for.
    """
    rows, (left, *after) = plans[0].order, [plan.scale for plan in plans]
    count, tail = x.shape[0], tuple(x.shape[1:])
    entries = _PANEL * (_ALONE if torch.get_num_threads() == 1 else 1)
    step = min(max(1, entries // max(1, math.prod(tail))), max(1, count))
    whole = x[0:count] if rows is not None else None
    made = _Panel(x.dtype, (step, *tail), plans)
    for low in range(0, count, step):
        high = min(low + step, count)
        target = made.target[: high - low] if out is None else out[low:high]
        if whole is None or rows is None:
            panel = x[low:high]
        else:
            panel = torch.index_select(whole, 0, rows[low:high], out=made.rows[: high - low])
        yield made.finish(panel, None if left is None else left[low:high], after, target)


class _Panel:
    """Room for one panel: memory that is new each time would cost more than what is done to it."""

    def __init__(self, dtype: torch.dtype, shape: tuple[int, ...], plans: list[AxisPlan]):
        self.columns = plans[1].order
        self.rows = torch.empty(shape, dtype=dtype)
        self.target = torch.empty(shape, dtype=dtype)
        half = dtype.itemsize == 2
        self.wide = torch.empty(shape, dtype=torch.float32) if half else None

    def finish(self, panel, left, after, target: torch.Tensor) -> torch.Tensor:
        """Gather the columns of a panel, multiply all scales, and write it to its place."""
        if self.columns is not None:
            panel = _columns(panel, self.columns, target)
        scales = [] if left is None else [left.reshape(-1, *[1] * (panel.ndim - 1))]
        scales += [
            scale.reshape(-1, *[1] * (panel.ndim - 2 - k))
            for k, scale in enumerate(after) if scale is not None
        ]  # fmt: skip
        if scales:
            work = target if self.wide is None else self.wide[: panel.shape[0]].copy_(panel)
            source = panel if self.wide is None else work
            for scale in scales:
                source = torch.mul(source, scale, out=work)
            panel = work
        return panel if panel is target else target.copy_(panel)


def _columns(panel: torch.Tensor, order: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The columns of a panel in another order."""
    if panel.ndim == 2 and panel.element_size() == 2 and panel.is_contiguous():
        bits, place = (t.view(torch.int16).numpy() for t in (panel, target))
        bits.take(order.numpy(), axis=1, out=place, mode="clip")  # three times as fast as torch
        return target
    return torch.index_select(panel, 1, order, out=target)

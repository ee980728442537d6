"""Large tensors axis by axis, at the speed of memory.

An element acts on each axis of a tensor by itself, so that a tensor is moved axis after axis, in
panels that fit the cache. Where an axis carries orders and real scales alone, in whatever product,
it is an order and a scale of its entries, which are read off two vectors: entries are gathered and
multiplied. Factors of complex pairs along the first axis are two such terms. Along any other axis a
panel is moved leg by leg, the other axes standing still.

Everything else, and every small tensor, is left to the general path, which is the twin in the
tests. The result is the same but for the rounding of the numbers in between.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from paramsym.algebra import Element
from paramsym.algebra.complex_scaling import AbstractComplexScaling
from paramsym.algebra.following import is_followed
from paramsym.structure.axes import AxisType, Sizes, parts_of, spaces_of
from paramsym.structure.data import SymmetryData
from paramsym.structure.element import Values
from paramsym.structure.layout import working_dtype_of
from paramsym.structure.legwise import Movers, halves, leg_by_leg
from paramsym.structure.mixing import AXIS, Mixed, alone
from paramsym.structure.pieces import cutting
from paramsym.structure.placing import misplaced
from paramsym.structure.shift import Params
from paramsym.structure.space import Space

_SMALL = 1 << 16  # entries below which the general path is as good
# Entries per panel: 128 KB of float32 stay in the cache between passes, and torch does not split so
# small a tensor over threads, whose waiting for each other would cost more than they save. A single
# thread waits for nobody, and larger panels spare it calls.
_PANEL = 1 << 15
_ALONE = 16  # times as much
# Entries of a panel along whose rows or columns entries are mixed: many for a product with a wide
# matrix, which is read again for each panel; few for what is mixed by small ones.
_MIXED, _SLIGHTLY = 1 << 21, 1 << 18
_WIDE = 256  # coordinates that a wide matrix has
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
    """What happens along one axis.

    Entries are taken in this order and multiplied by this scale, and the entries of a `second` such
    term are added; or a panel is `mixed`, whatever its other axes are.
    """

    order: torch.Tensor | None = None
    scale: torch.Tensor | None = None
    second: tuple[torch.Tensor, torch.Tensor] | None = None
    mixed: Mixed | None = None

    def reading(self, gains: Params) -> AxisPlan:
        """The same with the gains in whose frames values act, for a plan that was made without."""
        return self if self.mixed is None else replace(self, mixed=self.mixed.reading(gains))


def pays(x: Rows) -> bool:
    """Whether a tensor is large enough for panels."""
    return len(x.shape) > 1 and math.prod(x.shape) >= _SMALL


def moved_by_axes(
    symmetry: SymmetryData, spaces: Mapping[str, Space], values: Values, name: str, params: Params,
    movers: Movers | None = None,
) -> torch.Tensor | None:  # fmt: skip
    """The moved tensor, or None where it cannot be moved axis by axis, or is too small for it.

    `movers` are those of `leg_by_leg`.
    """
    x = params[name]
    if not pays(x) or x.device.type != "cpu" or is_followed(x):
        return None
    if type(x) not in (torch.Tensor, torch.nn.Parameter):
        return None
    plans = plans_of(symmetry, spaces, values, name, x, params, movers)
    if plans is None:
        return None
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    at = 0
    for panel in panels(x.detach().contiguous(), plans, out):
        at += panel.shape[0]
    assert at == x.shape[0]
    return out


# -- plans -------------------------------------------------------------------------------------


def plans_of(
    symmetry: SymmetryData, spaces: Mapping[str, Space], values: Values, name: str, x: Rows,
    params: Params, movers: Movers | None = None,
) -> list[AxisPlan] | None:  # fmt: skip
    """What happens along each axis of a tensor; None where axes cannot be told apart.

    Args:
        symmetry: whose signature types the tensor.
        spaces: whose groups the values are of.
        values: of some spaces.
        name: of the tensor.
        x: the tensor, of which shape and dtype are asked.
        params: the gains in whose frames values act.
        movers: those of `leg_by_leg`.
    """
    if not pays(x) or x.dtype not in _FLOATS:
        return None
    plans = axis_plans(symmetry, spaces, values, name, working_dtype_of(x.dtype), params, movers)
    if plans is None or any(plan.order is not None for plan in plans[2:]):
        return None
    if len(plans) > 2 and plans[0].mixed is not None:
        return None
    return plans


def axis_plans(
    symmetry: SymmetryData, spaces: Mapping[str, Space], values: Values, name: str,
    dtype: torch.dtype, params: Params, movers: Movers | None = None,
) -> list[AxisPlan] | None:  # fmt: skip
    """`plans_of` a tensor of any size that is moved in any way; its scales are of this dtype."""
    axes = symmetry.signature[name]
    if symmetry.offsets.get(name) or cutting(axes):
        return None
    mine = [value for s, value in values.items() if s in symmetry.movers[name]]
    if any(map(_is_followed, mine)) or not all(_stands_alone(spaces, values, a) for a in axes):
        return None
    movers = {} if movers is None else movers
    return [
        _read(spaces, values, axis, place, dtype)
        or AxisPlan(mixed=Mixed(spaces, values, axis, place, params, movers))
        for place, axis in enumerate(axes)
    ]


def _read(
    spaces: Mapping[str, Space], values: Values, axis: AxisType, place: int, dtype: torch.dtype
) -> AxisPlan | None:
    """What happens along an axis, where entries are taken and multiplied; None otherwise."""
    moving = [s for s in spaces_of(axis) if s in values]
    if not moving or _in_frame(axis, values):
        return None if moving else AxisPlan()
    if all(_is_real_monomial(values[s]) for s in moving):
        return _read_off(spaces, values, axis, dtype)
    return _read_off_pairs(spaces, values, axis, dtype) if place == 0 else None


def _stands_alone(spaces: Mapping[str, Space], values: Values, axis: AxisType) -> bool:
    """Whether all that an axis carries, if any of it moves, has its copies told apart there."""
    resting = not any(s in values for s in spaces_of(axis))
    return resting or not any(misplaced(spaces, {AXIS: (axis,)}))


def _in_frame(axis: AxisType, values: Values) -> bool:
    """Whether a value on an axis acts in the frame of a gain: the first factor of what has one."""
    return any(item.factors[0][0] in values for item in parts_of(axis) if item.frame)


def _is_followed(value: Element) -> bool:
    parts = (value.matrix, value.diagonal)
    inner = value.base is not None and _is_followed(value.base)
    return inner or any(part is not None and is_followed(part) for part in parts)


def _is_real_monomial(value: Element) -> bool:
    """Whether an element is orders and real scales, and nothing else."""
    if value.matrix is not None or (value.base is not None and not _is_real_monomial(value.base)):
        return False
    return value.diagonal is None or not value.diagonal.is_complex()


def _read_off(
    spaces: Mapping[str, Space], values: Values, axis: AxisType, dtype: torch.dtype
) -> AxisPlan | None:
    """The order and the scale of an axis that carries nothing else."""
    ones = torch.ones(axis.size(_sizes(spaces, axis)), dtype=torch.float64)
    order, scale = _term(spaces, values, axis, ones)
    if not bool((scale.isfinite() & (scale != 0)).all()):  # the root of a negative scale
        return None
    still = bool((order == torch.arange(len(order))).all())
    plain = bool((scale == 1).all())
    return AxisPlan(None if still else order, None if plain else scale.to(dtype))


def _read_off_pairs(
    spaces: Mapping[str, Space], values: Values, axis: AxisType, dtype: torch.dtype
) -> AxisPlan | None:
    """The two terms of an axis on which one space multiplies complex pairs; None for another."""
    moving = {s for s in spaces_of(axis) if s in values}
    paired = {s for s in moving if not _is_real_monomial(values[s])}
    sizes = _sizes(spaces, axis)
    single = len(paired) == 1 and [*spaces_of(axis)].count(next(iter(paired))) == 1
    if not single or not isinstance(spaces[next(iter(paired))].group, AbstractComplexScaling):
        return None
    if values[next(iter(paired))].matrix is not None:
        return None
    mask = halves(axis, sizes, paired).double()
    first, second = (_term(spaces, values, axis, part) for part in (1 - mask, mask))
    if not all(bool(scale.isfinite().all()) for _, scale in (first, second)):
        return None
    return AxisPlan(first[0], first[1].to(dtype), (second[0], second[1].to(dtype)))


def _term(
    spaces: Mapping[str, Space], values: Values, axis: AxisType, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which of the entries of a mask goes where, and times what: g·m = s, g·(1, 2, …) m = s p.

    Each entry of the moved axis depends on one entry of the mask at most.
    """
    plain = alone(spaces, axis)

    def moved(x: torch.Tensor) -> torch.Tensor:
        return leg_by_leg(plain, spaces, values, AXIS, {AXIS: x})

    scale = moved(mask)
    places = torch.arange(1, len(mask) + 1, dtype=torch.float64)
    found = moved(places * mask) / torch.where(scale == 0, 1.0, scale)
    order = found.nan_to_num(1.0).round().long() - 1
    return order.clamp(0, len(mask) - 1), scale


def _sizes(spaces: Mapping[str, Space], axis: AxisType) -> Sizes:
    return {s: spaces[s].size for s in spaces_of(axis)}


# -- panels ------------------------------------------------------------------------------------


def panels(
    x: Rows, plans: list[AxisPlan], out: torch.Tensor | None = None
) -> Iterator[torch.Tensor]:
    """The moved tensor, in panels of consecutive rows.

    Args:
        x: the tensor; where rows keep their places, its rows are asked for panel by panel.
        plans: one for each axis.
        out: where the panels are written; by default each is good until the next is asked for.
    """
    first, *others = plans
    if first.mixed is None:
        return _row_panels(x, plans, out)
    if any(plan.mixed is not None for plan in others):
        wide = torch.empty(x.shape, dtype=working_dtype_of(x.dtype))
        for _ in _row_panels(x, [AxisPlan(), *others], wide):
            pass
        return _column_panels(wide, [first, AxisPlan()], x.dtype, out)
    return _column_panels(x[0 : x.shape[0]], plans, x.dtype, out)


def _row_panels(x: Rows, plans: list[AxisPlan], out: torch.Tensor | None) -> Iterator[torch.Tensor]:
    """Panels of a tensor whose rows are taken in an order, scaled, and moved one by one."""
    rows, left, second = plans[0].order, plans[0].scale, plans[0].second
    count, tail = x.shape[0], tuple(x.shape[1:])
    entries = _PANEL * (_ALONE if torch.get_num_threads() == 1 else 1)
    if mixed := [plan.mixed for plan in plans if plan.mixed is not None]:
        entries = max(map(_mixed_at_once, mixed))
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
        scale, beside = None if left is None else left[low:high], None
        if second is not None and whole is not None:
            beside = torch.index_select(whole, 0, second[0][low:high]), second[1][low:high]
        yield made.finish(panel, scale, beside, target)


def _column_panels(
    x: torch.Tensor, plans: list[AxisPlan], dtype: torch.dtype, out: torch.Tensor | None
) -> Iterator[torch.Tensor]:
    """The one panel of a matrix whose rows are mixed: it is made some columns at a time."""
    rows, columns = plans
    assert rows.mixed is not None
    made = torch.empty(x.shape, dtype=dtype) if out is None else out
    wide = working_dtype_of(dtype)
    if columns.order is not None:  # row by row, each of which is in the cache then
        x = _columns(x, columns.order, torch.empty_like(x))
    step = max(1, _mixed_at_once(rows.mixed) // max(1, x.shape[0]))
    for low in range(0, x.shape[1], step):
        high = min(low + step, x.shape[1])
        panel = x[:, low:high].to(wide, memory_format=torch.contiguous_format, copy=True)
        if columns.scale is not None:
            panel *= columns.scale[low:high]
        made[:, low:high] = rows.mixed(panel)
    yield made


def _mixed_at_once(mixed: Mixed) -> int:
    """The entries of a panel that is mixed."""
    return _MIXED if mixed.widest > _WIDE else _SLIGHTLY


class _Panel:
    """Room for one panel: memory that is new each time would cost more than what is done to it."""

    def __init__(self, dtype: torch.dtype, shape: tuple[int, ...], plans: list[AxisPlan]):
        self.columns, self.after = plans[1].order, plans[1:]
        self.mixed = [plan.mixed for plan in self.after if plan.mixed is not None]
        self.rows = torch.empty(shape, dtype=dtype)
        self.target = torch.empty(shape, dtype=dtype)
        wide = working_dtype_of(dtype)
        self.wide = torch.empty(shape, dtype=wide) if wide != dtype else None

    def finish(
        self, panel: torch.Tensor, left: torch.Tensor | None,
        beside: tuple[torch.Tensor, torch.Tensor] | None, target: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        """Gather the columns of a panel, scale and mix it, and write it to its place."""
        if beside is not None and left is not None:
            panel = _added(panel, left, *beside)
            left = None
        if self.columns is not None:
            panel = self._in_order(panel, self.columns)
        tail = panel.ndim - 1
        given = [left, *(plan.scale for plan in self.after)]
        scales = [s.reshape(-1, *[1] * (tail - k)) for k, s in enumerate(given) if s is not None]
        if scales or self.mixed:
            work = (self.target if self.wide is None else self.wide)[: panel.shape[0]]
            source = panel if panel.dtype == work.dtype else work.copy_(panel)
            for scale in scales:
                source = torch.mul(source, scale, out=work)
            for mix in self.mixed:
                source = mix(source)
            panel = source
        return panel if panel.data_ptr() == target.data_ptr() else target.copy_(panel)

    def _in_order(self, panel: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        room = self.target[: panel.shape[0]]
        room = room if room.dtype == panel.dtype else torch.empty_like(panel)
        return _columns(panel, columns, room)


def _added(
    panel: torch.Tensor, left: torch.Tensor, other: torch.Tensor, right: torch.Tensor
) -> torch.Tensor:
    """The sum of two terms, each with a scale for every row, in the wider dtype."""
    shape = (-1, *[1] * (panel.ndim - 1))
    made = panel.to(left.dtype) * left.reshape(shape)
    return made.addcmul_(other.to(left.dtype), right.reshape(shape))


def _columns(panel: torch.Tensor, order: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The columns of a panel in another order."""
    if panel.ndim == 2 and panel.element_size() == 2 and panel.is_contiguous():
        bits, place = (t.view(torch.int16).numpy() for t in (panel, target))
        bits.take(order.numpy(), axis=1, out=place, mode="clip")  # three times as fast as torch
        return target
    return torch.index_select(panel, 1, order, out=target)

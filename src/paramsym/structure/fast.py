"""Permutations and scalings of large tensors at the speed of memory.

A tensor all of whose axes carry plain orders, and scales over them, is moved in one pass over row
panels that fit the cache: rows are gathered, columns are gathered, and the scales are multiplied
while the panel is warm. Everything else is left to the general path, which is also its twin in the
tests.
"""

from __future__ import annotations

from fractions import Fraction

import torch

from paramsym.structure.axes import AxisType, Carried, Fixed, Product
from paramsym.structure.following import is_followed

_SMALL = 1 << 16  # entries below which the general path is as good
# Entries per panel: 128 KB of float32 stay in the cache between passes, and torch does not split so
# small a tensor over threads, whose waiting for each other would cost more than they save. A single
# thread waits for nobody, and larger panels spare it calls.
_PANEL = 1 << 15
_ALONE = 4  # times as much


def monomial_matrix(symmetry, values, x: torch.Tensor, axes: tuple[AxisType, ...]):
    """The moved tensor, or None where the fast path does not apply."""
    if x.numel() < _SMALL or x.ndim < 2 or x.dtype not in (torch.float32, torch.float64):
        return None
    if x.device.type != "cpu" or type(x) not in (torch.Tensor, torch.nn.Parameter):
        return None
    scales = (v.diagonal for v in values.values() if v.diagonal is not None)
    if is_followed(x) or any(map(is_followed, scales)):
        return None
    plans = []
    for axis in axes:
        plan = _plan(symmetry, values, axis, x.dtype)
        if plan is None:
            return None
        plans.append(plan)
    if any(order is not None for order, _ in plans[2:]):
        return None
    return _move(x.detach().contiguous(), plans)


def _plan(symmetry, values, axis: AxisType, dtype):
    """(order, scale) of an axis; None if it is not monomial."""
    if isinstance(axis, Fixed):
        return None, None
    units, scalars = _split(symmetry, axis)
    if units is None or units.frame:
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
    return order, None if scale is None else scale.to(dtype)


def _is_real_monomial(value) -> bool:
    """Whether an element is an order and real scales, and nothing else."""
    if value.matrix is not None or value.base is not None:
        return False
    return value.diagonal is None or not value.diagonal.is_complex()


def _power(diagonal: torch.Tensor, power: Fraction) -> torch.Tensor:
    """Entrywise power; whole ones also of negative scales."""
    if power == 1:
        return diagonal
    return diagonal ** (int(power) if power.denominator == 1 else float(power))


def _split(symmetry, axis: AxisType):
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


def _move(x: torch.Tensor, plans) -> torch.Tensor:
    (rows, left), (columns, _), *rest = plans
    out = torch.empty_like(x)
    entries = _PANEL * (_ALONE if torch.get_num_threads() == 1 else 1)
    step = min(max(1, entries // max(1, x[0].numel())), x.shape[0])
    tail = [1] * (x.ndim - 2)
    after = [scale for _, scale in (plans[1], *rest)]
    scales = [
        scale.reshape(-1, *[1] * (x.ndim - 2 - k))
        for k, scale in enumerate(after) if scale is not None
    ]  # fmt: skip
    buffer = x.new_empty((step, *x.shape[1:])) if None not in (rows, columns) else None
    for low in range(0, x.shape[0], step):
        high = min(low + step, x.shape[0])
        target = out[low:high]
        panel = x[low:high]
        if rows is not None:  # a panel of its own each time would be fresh memory each time
            panel = target if buffer is None else buffer[: high - low]
            torch.index_select(x, 0, rows[low:high], out=panel)
        if columns is not None:
            panel = torch.index_select(panel, 1, columns, out=target)
        if left is not None:
            panel = torch.mul(panel, left[low:high].reshape(-1, 1, *tail), out=target)
        for scale in scales:
            panel = torch.mul(panel, scale, out=target)
        if panel is not target:
            target.copy_(panel)
    return out

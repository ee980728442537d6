"""Tensors of files after an element: some entries of them, and where their shifts are at rest."""

from __future__ import annotations

from collections.abc import Callable

import torch

from paramsym.checkpoints.streaming.spelling import Named
from paramsym.geometry.factors import factors_of
from paramsym.geometry.folded import folded
from paramsym.geometry.movers import Movers
from paramsym.geometry.slices import is_projected, sliced
from paramsym.structure.action import act_tensor
from paramsym.structure.element import GroupElement, Slide
from paramsym.structure.fast import AxisPlan, plans_of
from paramsym.structure.needs import steps
from paramsym.structure.panels import spans
from paramsym.structure.symmetry import ParameterSymmetry

_PANEL = 1 << 25  # bytes that are read at a time


def to_rest(
    symmetry: ParameterSymmetry, tensors: Named, progress: Callable[[str], None]
) -> GroupElement:
    """The element that makes gains one and what shifts move freely vanish, as `reduce` does.

    Shifts that share no tensor are read one after the other, so that only theirs are in memory.
    """
    shifts = [s.name for s in symmetry.shifts if s.size and not is_projected(s)]
    if not shifts:
        return GroupElement(symmetry)
    element = folded(symmetry, {n: tensors.whole(n) for n in symmetry.frame_parameters})
    factors = factors_of(symmetry, Movers([], [], [], shifts))
    for k, factor in enumerate(factors):
        progress(f"bringing shifts to rest, part {k + 1} of {len(factors)}")
        own = {n: _whole(tensors, n, symmetry, element) for n in factor.tensors}
        _, step, _ = sliced(symmetry, own, [symmetry.shift_of[n] for n in factor.movers.shifts])
        element = step @ element
    return element


def sampled(
    tensors: Named, name: str, symmetry: ParameterSymmetry, element: GroupElement,
    picks: list[torch.Tensor | None],
) -> torch.Tensor:  # fmt: skip
    """Some entries of a tensor after an element, in the dtype in which models are run."""
    x, still = tensors[name], [AxisPlan()] * len(picks)
    found = steps(symmetry, element, name)
    if not found.moved:
        return _rows(x, still, picks, tensors.dtype)
    part, *others = (element.parts[k] for k in found.moved)
    if others or isinstance(part, Slide):
        return _rows(_whole(tensors, name, symmetry, element), still, picks, tensors.dtype)
    gains = {n: tensors[n][:] for n in found.names if n != name}
    plans = plans_of(symmetry, symmetry.spaces, part, name, x, gains)
    if plans is None or any(plan.mixed or plan.second for plan in plans):
        moved = act_tensor(symmetry, element, name, {**gains, name: x[:]})
        return _rows(moved, still, picks, tensors.dtype)
    return _rows(x, plans, picks, tensors.dtype)


def _rows(x, plans: list[AxisPlan], picks, dtype: torch.dtype) -> torch.Tensor:
    """Some entries of a tensor along each axis, after an order and a scale of each."""
    if not picks:
        return x[:].to(dtype)
    places = [
        _place(plan, pick, size) for plan, pick, size in zip(plans, picks, x.shape, strict=True)
    ]
    first = torch.arange(x.shape[0]) if places[0] is None else places[0]
    if len(first) * 4 < x.shape[0]:  # few rows: one by one
        read = torch.cat([x[int(i) : int(i) + 1] for i in first]) if len(first) else x[:0]
        made = _columns(read, places[1:]).to(dtype)
    else:
        panels = (x[low:high] for low, high in spans(x, _PANEL))
        made = torch.cat([_columns(panel, places[1:]).to(dtype) for panel in panels])
        made = made if places[0] is None else made[first]
    for k, (plan, pick) in enumerate(zip(plans, picks, strict=True)):
        if plan.scale is not None:
            scale = plan.scale if pick is None else plan.scale[pick]
            made = made * scale.to(dtype).reshape(-1, *[1] * (made.ndim - 1 - k))
    return made


def _place(plan: AxisPlan, pick: torch.Tensor | None, size: int) -> torch.Tensor | None:
    if plan.order is None:
        return None if pick is None or len(pick) == size else pick
    return plan.order if pick is None else plan.order[pick]


def _columns(x: torch.Tensor, places: list[torch.Tensor | None]) -> torch.Tensor:
    for axis, place in enumerate(places, 1):
        if place is not None:
            x = x.index_select(axis, place)
    return x


def _whole(
    tensors: Named, name: str, symmetry: ParameterSymmetry, element: GroupElement
) -> torch.Tensor:
    """A tensor after an element, in the dtype in which models are run."""
    needed = steps(symmetry, element, name).names
    return act_tensor(symmetry, element, name, {n: tensors.whole(n) for n in needed})

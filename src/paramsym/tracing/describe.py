"""Which space a shift speaks of: its origin moves, or directions of it are unread or absent.

The first term of a shift names a window of a parameter. A translation moves along the letters of
δ there; a direction that nobody reads, or that data never have, lies along a letter that δ lacks.
The space is what the type of the parameter carries at that letter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from paramsym.structure.axes import AxisType, Carried, Fixed, Product, Sum
from paramsym.structure.pieces import at_place
from paramsym.structure.shift import Shift, Window


def described(
    shift: Shift, signature: Mapping[str, tuple[AxisType, ...]], sizes: Mapping[str, int]
) -> Shift:
    """The shift with its space, where it can be told."""
    target = shift.terms[0].target
    along = [c for c in target.letters if (c in shift.letters) == (shift.kind == "origin")]
    if not along or target.parameter not in signature:
        return shift
    return replace(shift, space=_space_at(signature[target.parameter], sizes, target, along[-1]))


def _space_at(
    axes: tuple[AxisType, ...], sizes: Mapping[str, int], window: Window, letter: str
) -> str:
    """The space that the axis of a letter carries; empty if it is fixed."""
    stride = window.strides[window.letters.index(letter)]
    shape = [axis.size(sizes) for axis in axes]
    steps = [math.prod(shape[k + 1 :]) for k in range(len(shape))]
    places = [window.start // step % n for step, n in zip(steps, shape, strict=True)]
    for k, axis in enumerate(at_place(axes, places)):
        step = steps[k]
        if step <= stride < step * shape[k] or (stride == step and shape[k] == 1):
            return _carried(axis, sizes, places[k], stride // step)
    return ""


def _carried(axis: AxisType, sizes: Mapping[str, int], start: int, stride: int) -> str:
    """The innermost space of the units that stand `stride` apart, in the block at `start`."""
    if isinstance(axis, Sum):
        for term in axis.terms:
            size = term.size(sizes)
            if start < size:
                return _carried(term, sizes, start, stride)
            start -= size
        return ""
    found = ""
    factors = axis.factors if isinstance(axis, Product) else (axis,)
    inner = math.prod(f.size(sizes) for f in factors)
    for factor in factors:
        size = factor.size(sizes)
        inner //= size
        if isinstance(factor, (Sum, Fixed)):
            continue
        if inner == stride and isinstance(factor, Carried) and (size > 1 or found):
            found = factor.factors[-1][0]
    return found

"""Strides as numbers: which entries of a storage does a window select?

A layout is (shape, strides, offset), in entries. A window on a dense owner is a *box* if the
positions of the storage can be written with mixed-radix digits such that every axis of the owner
is a run of digits and the window keeps, for each digit, a range of its values. Slices, strided
slices that fit, single entries, transposed and reshaped windows are boxes; overlapping windows are
not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Layout(Protocol):
    """Whatever has a shape, strides and an offset."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def offset(self) -> int: ...


@dataclass(frozen=True)
class Window:
    """A layout by itself."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


def same_layout(a: Layout, b: Layout) -> bool:
    """Whether two tensors on one storage are the same entries in the same shape."""
    return (a.shape, a.strides, a.offset) == (b.shape, b.strides, b.offset)


def steps(layout: Layout) -> list[int]:
    """The strides of the axes that have several entries."""
    return [step for n, step in zip(layout.shape, layout.strides, strict=True) if n > 1]


def _outermost_first(layout: Layout) -> list[int]:
    """Axes of more than one entry by falling stride."""
    axes = [k for k, n in enumerate(layout.shape) if n > 1]
    return sorted(axes, key=lambda k: -layout.strides[k])


def is_dense(layout: Layout) -> bool:
    """Whether the entries fill one interval of the storage, each position once."""
    expected = 1
    for k in reversed(_outermost_first(layout)):
        if layout.strides[k] != expected:
            return False
        expected *= layout.shape[k]
    return True


def covers(window: Layout, owner: Layout) -> bool:
    """Whether a window holds every entry of a dense owner exactly once."""
    return (
        math.prod(window.shape) == math.prod(owner.shape)
        and window.offset == owner.offset
        and is_dense(window)
        and is_dense(owner)
    )


def lies_within(window: Layout, owner: Layout) -> bool:
    """Whether all entries of a window are among those of a dense owner."""
    last = window.offset + sum(
        (n - 1) * step for n, step in zip(window.shape, window.strides, strict=True)
    )
    return owner.offset <= window.offset and last < owner.offset + math.prod(owner.shape)


def compact_strides(layout: Layout) -> tuple[int, ...]:
    """Strides of a dense copy whose axes lie in the same order."""
    strides, step = [1] * len(layout.shape), 1
    for k in reversed(_outermost_first(layout)):
        strides[k] = step
        step *= layout.shape[k]
    return tuple(strides)


@dataclass(frozen=True)
class Box:
    """Digits of a storage, outermost first, and the range of each that a window keeps."""

    radices: tuple[int, ...]
    units: tuple[int, ...]  # the stride of one step of each digit in the owner
    starts: tuple[int, ...]
    counts: tuple[int, ...]
    inside: tuple[int, ...]  # the stride of one step of each digit in a compact copy of the window


def box_of(window: Layout, owner: Layout) -> Box | None:
    """The window as a box of its owner, or None where it is not one."""
    entries = math.prod(owner.shape)
    if not entries or not math.prod(window.shape) or not is_dense(owner):
        return None
    runs = _runs(window)
    units = _digits(runs, owner)
    if units is None:
        return None
    radices = [b // a for a, b in zip(units, units[1:], strict=False)]
    counts, inside = _taken(runs, units, radices)
    offset = window.offset - owner.offset
    if counts is None or not 0 <= offset < entries:
        return None
    starts = [offset // u % r for u, r in zip(units[:-1], radices, strict=True)]
    if any(s + c > r for s, c, r in zip(starts, counts, radices, strict=True)):
        return None
    return Box(*(tuple(reversed(x)) for x in (radices, units[:-1], starts, counts, inside)))


def _digits(runs: Sequence[tuple[int, int, int]], owner: Layout) -> list[int] | None:
    """Where digits of the storage begin, innermost first; None where that is no mixed radix."""
    marks = {1, math.prod(owner.shape), *(stride for _, stride, _ in runs)}
    for n, stride in zip(owner.shape, owner.strides, strict=True):
        if n > 1:
            marks |= {stride, stride * n}
    units = sorted(marks)
    mixed = units[0] >= 1 and not any(b % a for a, b in zip(units, units[1:], strict=False))
    return units if mixed else None


def _runs(window: Layout) -> list[tuple[int, int, int]]:
    """(length, stride, stride in a compact copy) of the axes, merged where they follow on."""
    compact = compact_strides(window)
    runs: list[tuple[int, int, int]] = []
    for k in reversed(_outermost_first(window)):
        length, stride = window.shape[k], window.strides[k]
        if runs and runs[-1][0] * runs[-1][1] == stride:
            runs[-1] = (runs[-1][0] * length, *runs[-1][1:])
        else:
            runs.append((length, stride, compact[k]))
    return runs


def _taken(
    runs: Sequence[tuple[int, int, int]], units: Sequence[int], radices: Sequence[int]
) -> tuple[list[int] | None, list[int]]:
    """How many values of each digit the runs go through, and in which steps of their own."""
    counts, inside = [1] * len(radices), [1] * len(radices)
    for length, stride, step in runs:
        at = units.index(stride)
        while length > 1:
            if at >= len(radices) or counts[at] > 1:
                return None, inside
            if length < radices[at]:
                counts[at], inside[at], length = length, step, 1
            elif length % radices[at]:
                return None, inside
            else:
                counts[at], inside[at] = radices[at], step
                length //= radices[at]
                step *= radices[at]
            at += 1
    return counts, inside

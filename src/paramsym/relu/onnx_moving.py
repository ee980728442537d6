"""ONNX operators that only move, repeat or drop entries, and padding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from paramsym.relu.choices import refused, varies
from paramsym.relu.onnx_call import Call, integers
from paramsym.relu.onnx_values import axis_of, check_room, lifted, moved, shape_of


def _reshape(call: Call) -> Any:
    x, wanted = call.input(0), call.ints("shape", 1)
    old = shape_of(x)
    if not call.number("allowzero", 0):
        wanted = [old[k] if n == 0 else n for k, n in enumerate(wanted)]
    return moved(lambda p: p.reshape(wanted), x)


def _flatten(call: Call) -> Any:
    x, axis = call.input(0), call.number("axis", 1)
    shape = shape_of(x)
    if not -len(shape) <= axis <= len(shape):
        refused(f"the axis {axis} of an array with {len(shape)} axes")
    axis = axis % len(shape) if axis < 0 else axis
    return moved(lambda p: p.reshape(math.prod(shape[:axis]), math.prod(shape[axis:])), x)


def _transpose(call: Call) -> Any:
    return moved(lambda p: p.transpose(call.ints("perm") or None), call.input(0))


def _squeeze(call: Call) -> Any:
    axes = call.ints("axes", 1)
    return moved(lambda p: np.squeeze(p, tuple(axes) if axes else None), call.input(0))


def _unsqueeze(call: Call) -> Any:
    axes = tuple(call.ints("axes", 1))
    return moved(lambda p: np.expand_dims(p, axes), call.input(0))


def _concat(call: Call) -> Any:
    axis = call.number("axis")
    check_room(sum(math.prod(shape_of(x)) for x in call.inputs), *call.inputs)
    return moved(lambda *p: np.concatenate(p, axis), *call.inputs)


def _slice(call: Call) -> Any:
    starts, ends = call.ints("starts", 1), call.ints("ends", 2)
    axes = call.ints("axes", 3) or list(range(len(starts)))
    steps = call.ints("steps", 4) or [1] * len(starts)
    x = call.input(0)
    kept = [slice(None)] * len(shape_of(x))
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        kept[axis_of(axis, len(kept))] = slice(start, end, step)
    return moved(lambda p: p[tuple(kept)], x)


def _split(call: Call) -> Any:
    x = call.input(0)
    axis = axis_of(call.number("axis", 0), len(shape_of(x)))
    length, sizes = shape_of(x)[axis], call.ints("split", 1)
    if not sizes:
        count = min(call.number("num_outputs", call.outputs), length)
        each = -(-length // max(1, count))
        sizes = [min(each, length - k * each) for k in range(count)]
    if sum(sizes) != length or min(sizes) < 0:
        refused(f"parts of sizes {sizes[:8]} of an axis of {length}")
    ends = np.cumsum([0, *sizes]).tolist()
    return [
        moved(lambda p, a=a, b=b: np.take(p, range(a, b), axis), x)
        for a, b in zip(ends, ends[1:], strict=False)
    ]


def _gather(call: Call) -> Any:
    x, where = call.inputs
    index = integers(where)
    axis = axis_of(call.number("axis", 0), len(shape_of(x)))
    check_room(index.size * (math.prod(shape_of(x)) // max(1, shape_of(x)[axis])), x)
    return moved(lambda p: np.take(p, index, axis), x)


def _expand(call: Call) -> Any:
    x = call.input(0)
    shape = np.broadcast_shapes(shape_of(x), tuple(call.ints("shape", 1)))
    check_room(math.prod(shape), x)
    return moved(lambda p: np.broadcast_to(p, shape), x)


def _tile(call: Call) -> Any:
    x, times = call.input(0), call.ints("repeats", 1)
    check_room(math.prod(shape_of(x)) * math.prod(times), x)
    return moved(lambda p: np.tile(p, times), x)


def _pad(call: Call) -> Any:
    x, widths = call.input(0), call.ints("pads", 1)
    rank = len(shape_of(x))
    axes = [axis_of(a, rank) for a in call.ints("axes", 3)] or list(range(rank))
    mode, value = call.text("mode", "constant"), call.input(2)
    if len(widths) != 2 * len(axes) or mode not in ("constant", "reflect", "edge"):
        refused(f"the padding {widths[:8]} of the mode {mode!r}")
    sides = [(0, 0)] * rank
    for k, axis in enumerate(axes):
        sides[axis] = widths[k], widths[k + len(axes)]
    sizes = [max(0, n + a + b) for n, (a, b) in zip(shape_of(x), sides, strict=True)]
    check_room(math.prod(sizes), x)
    inner = tuple(slice(max(0, -a), min(0, b) or None) for a, b in sides)
    x = moved(lambda p: p[inner], x)
    grown = [(max(0, a), max(0, b)) for a, b in sides]
    if mode != "constant":
        return moved(lambda p: np.pad(p, grown, mode=mode), x)
    if value is not None and (varies(value) or value.value.numel() != 1):
        refused("a padding that depends on the input, or of several numbers")
    fill = call.number("value", 0.0) if value is None else value.entries
    return lifted(x).pad(grown, fill)


TABLE = {
    "Reshape": _reshape, "Flatten": _flatten, "Transpose": _transpose, "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze, "Concat": _concat, "Slice": _slice, "Split": _split,
    "Gather": _gather, "Expand": _expand, "Tile": _tile, "Pad": _pad,
}  # fmt: skip

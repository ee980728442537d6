"""ONNX operators on channels and windows: convolution, batch norm and pooling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from paramsym.relu import operators
from paramsym.relu.choices import PLACES, constant, refused
from paramsym.relu.coefficients import check_size
from paramsym.relu.constants import Constant
from paramsym.relu.onnx_call import Call, single
from paramsym.relu.onnx_values import check_room, lifted
from paramsym.relu.piecewise import Piecewise


class Windows(NamedTuple):
    """Where the windows of a convolution or pooling lie, one number for each axis."""

    kernel: list[int]
    stride: list[int]
    sides: list[tuple[int, int]]
    dilation: list[int]
    ceil: bool


def convolution(call: Call) -> Piecewise:
    """Conv: (rows, channels, *sizes) with a weight (outputs, channels / groups, *kernel)."""
    x = lifted(call.input(0))
    weight = _entries(call.input(1), "a convolution")
    bias = _entries(call.input(2), "a sum")
    places = _windows(call, x, list(weight.values.shape[2:]))
    if list(weight.values.shape[2:]) != places.kernel or x.ndim != weight.values.ndim:
        refused(f"a kernel {places.kernel} for a weight of shape {weight.values.shape}")
    return x.convolve(
        weight, bias, places.stride, places.sides, places.dilation, call.number("group", 1)
    )


def batch_norm(call: Call) -> Piecewise:
    """BatchNormalization in evaluation."""
    if call.number("training_mode", 0) or call.outputs > 1:
        refused("batch norm in training mode, which mixes the rows of a batch",
                "Export the model in evaluation.")  # fmt: skip
    x = lifted(call.input(0))
    gain, bias, mean, variance = (_entries(v, "batch norm") for v in call.inputs[1:5])
    if x.ndim < 2 or any(v.values.shape != x.shape[1:2] for v in (gain, bias, mean, variance)):
        refused(f"statistics that do not fit an array of shape {x.shape}")
    target: Any = torch.ops.aten._native_batch_norm_legit_no_training.default
    epsilon = call.number("epsilon", single(1e-5))
    return operators.apply(target, (x, gain, bias, mean, variance, 0.0, epsilon), {})[0]


def max_pool(call: Call) -> list[Any]:
    """MaxPool: the largest entries, and their places, which jump."""
    x = lifted(call.input(0))
    places = _windows(call, x, [])
    return [
        x.max_pool(places.kernel, places.stride, places.sides, places.dilation, places.ceil), PLACES
    ]  # fmt: skip


def average_pool(call: Call) -> Piecewise:
    """AveragePool, over the padding only if it says so."""
    x = lifted(call.input(0))
    places = _windows(call, x, [])
    if any(n != 1 for n in places.dilation):
        refused("an average over places that are not neighbours")
    if any(max(side) >= k for side, k in zip(places.sides, places.kernel, strict=True)):
        refused("an average over padding alone")
    counted = bool(call.number("count_include_pad", 0))
    return x.avg_pool(places.kernel, places.stride, places.sides, places.ceil, counted)


def over_space(target: Any) -> Callable[[Call], Piecewise]:
    """What a reduction makes of all axes after the channels."""

    def operator(call: Call) -> Piecewise:
        x = lifted(call.input(0))
        if x.ndim < 3:
            refused(f"an array of shape {x.shape}, which has nothing after its channels")
        return operators.apply(target, (x, list(range(2, x.ndim)), True), {})

    return operator


def _entries(value: Any, what: str) -> Any:
    value = constant(value, what)
    return value.entries if isinstance(value, Constant) else value


def _windows(call: Call, x: Piecewise, kernel: list[int]) -> Windows:
    """The windows that the attributes of a node describe, within bounds."""
    kernel = call.ints("kernel_shape") or kernel
    n = len(kernel)
    if not n or x.ndim != n + 2:
        refused(f"windows of {kernel} on an array of shape {x.shape}")
    stride, gaps = call.ints("strides") or [1] * n, call.ints("dilations") or [1] * n
    if len(stride) != n or len(gaps) != n:
        refused(f"strides {stride[:8]} and dilations {gaps[:8]} for {n} axes")
    if min([*kernel, *stride, *gaps]) < 1:
        refused("sizes of windows below one")
    reach = [g * (k - 1) + 1 for g, k in zip(gaps, kernel, strict=True)]
    sides, same = _sides(call, x.shape[2:], stride, reach)
    rooms = zip(x.shape[2:], sides, stride, strict=True)
    room = [size + sum(side) + step for size, side, step in rooms]
    check_room(math.prod(x.shape[:2]) * math.prod(room), x)
    check_size(math.prod(x.shape[:2]) * math.prod(kernel) * math.prod(_counts(room, reach, stride)))
    return Windows(kernel, stride, sides, gaps, bool(call.number("ceil_mode", 0)) and not same)


def _sides(
    call: Call, sizes: Sequence[int], stride: Sequence[int], reach: Sequence[int]
) -> tuple[list[tuple[int, int]], bool]:
    """The padding before and after each axis, and whether it was made to fit."""
    auto, n = call.text("auto_pad", "NOTSET"), len(sizes)
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        return _same(sizes, stride, reach, auto == "SAME_UPPER"), True
    if auto == "VALID":
        return [(0, 0)] * n, False
    pads = call.ints("pads") or [0] * (2 * n)
    if auto != "NOTSET" or len(pads) != 2 * n or min(pads) < 0:
        refused(f"the padding {pads[:8]} of the kind {auto!r} for {n} axes")
    return list(zip(pads[:n], pads[n:], strict=True)), False


def _same(
    sizes: Sequence[int], stride: Sequence[int], reach: Sequence[int], upper: bool
) -> list[tuple[int, int]]:
    """The padding with which ⌈size / stride⌉ windows fit; an odd one more after, or before."""
    sides = []
    for size, step, span in zip(sizes, stride, reach, strict=True):
        total = max(0, (-(-size // step) - 1) * step + span - size)
        less, more = total // 2, total - total // 2
        sides.append((less, more) if upper else (more, less))
    return sides


def _counts(room: Sequence[int], reach: Sequence[int], stride: Sequence[int]) -> list[int]:
    """At most so many windows lie along each axis."""
    return [
        max(0, size - span) // step + 1
        for size, span, step in zip(room, reach, stride, strict=True)
    ]  # fmt: skip

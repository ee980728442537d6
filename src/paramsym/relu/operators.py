"""ATen operators as methods of piecewise linear arrays: one table.

Varying values are `Piecewise` arrays; a comparison of two makes a `Side`, the set where a function
is positive; whatever is computed from constants alone never comes here (`constants`). Refusals say
what came and what to do; the reader adds the place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from paramsym.relu.choices import (
    PLACES,
    Side,
    constant,
    greater,
    refused,
    smaller,
    varies,
    where,
)
from paramsym.relu.constants import MOVING, name_of, over_arguments
from paramsym.relu.entries import Entries
from paramsym.relu.piecewise import Piecewise, rearranged

# ------------------------------------------------------------ arithmetic


def _add(a: Any, b: Any, alpha: Any = 1) -> Piecewise:
    return a + (b if alpha == 1 else Piecewise.of(b) * alpha if not varies(b) else b * alpha)


def _sub(a: Any, b: Any, alpha: Any = 1) -> Piecewise:
    return _add(a, -(b if varies(b) else Piecewise.of(b)), alpha)


def _mul(a: Any, b: Any) -> Piecewise:
    if isinstance(b, Side):
        a, b = b, a
    if isinstance(a, Side):
        return where(a, b, 0)
    return b * a if varies(b) and not varies(a) else a * constant(b, "a product")


def _div(a: Any, b: Any, rounding_mode: str | None = None) -> Piecewise:
    if rounding_mode is not None or not varies(a):
        refused("a quotient that is rounded, or whose divisor depends on the input")
    return a / constant(b, "a quotient")


def _transposed(weight: Entries) -> Entries:
    return Entries(weight.values.T, weight.slack.T, weight.formats)


def _linear(x: Piecewise, weight: Any, bias: Any = None) -> Piecewise:
    return x.linear(constant(weight, "a product"), constant(bias, "a sum"))


def _matmul(a: Any, b: Any) -> Piecewise:
    if not varies(a):
        if a.values.ndim != 2 or b.ndim < 2:
            refused("a product of stacks of matrices")
        axes = [*range(b.ndim - 2), b.ndim - 1, b.ndim - 2]
        return b.transpose(axes).linear(a).transpose(axes)
    weight = constant(b, "a product")
    if weight.values.ndim == 1:
        return a.linear(weight.at((np.newaxis, slice(None)))).reshape(a.shape[:-1])
    if weight.values.ndim != 2:
        refused("a product of stacks of matrices")
    return a.linear(_transposed(weight))


def _addmm(bias: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Piecewise:
    product = _matmul(a, b)
    shift = bias if varies(bias) else Piecewise.of(bias)
    return (product if alpha == 1 else product * alpha) + (shift if beta == 1 else shift * beta)


# ------------------------------------------------------------ convolution, norm, pooling


def _each(value: Any, count: int) -> tuple[int, ...]:
    """One number, or one for all, as one for each axis."""
    if isinstance(value, str):
        refused(f"the padding {value!r}")
    numbers = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    return numbers * count if len(numbers) == 1 else numbers


def _convolution(
    x: Piecewise, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Piecewise:  # fmt: skip
    n = constant(weight, "a convolution").values.ndim - 2
    return x.convolve(weight, constant(bias, "a sum"), _each(stride, n), _each(padding, n),
                      _each(dilation, n), groups)  # fmt: skip


def _general_convolution(
    x: Piecewise, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int,
) -> Piecewise:  # fmt: skip
    if transposed:
        refused("a transposed convolution", "Write it as a linear layer.")
    return _convolution(x, weight, bias, stride, padding, dilation, groups)


def _batch_norm(
    x: Piecewise, gain: Any, bias: Any, mean: Any, variance: Any, training: bool,
    momentum: float, epsilon: float, cudnn: bool = False,
) -> Piecewise:  # fmt: skip
    if training or mean is None or variance is None:
        refused("batch norm in training mode, which mixes the rows of a batch", "Call .eval().")

    def channels(value: Any, default: int) -> Any:
        if value is None:
            return default
        return value.at((slice(None), *(None,) * (x.ndim - 2)))

    return x.normalised(channels(mean, 0), channels(variance, 1), channels(gain, 1),
                        channels(bias, 0), epsilon)  # fmt: skip


def _evaluated_norm(x, gain, bias, mean, variance, momentum, epsilon) -> tuple[Piecewise, ...]:
    return (_batch_norm(x, gain, bias, mean, variance, False, momentum, epsilon),)


def _max_pool(axes: int) -> Callable[..., Piecewise]:
    def pool(x, kernel, stride=(), padding=0, dilation=1, ceil_mode=False) -> Piecewise:
        return x.max_pool(
            _each(kernel, axes), _each(stride, axes) if stride else None, _each(padding, axes),
            _each(dilation, axes), ceil_mode,
        )  # fmt: skip

    return pool


def _avg_pool(axes: int) -> Callable[..., Piecewise]:
    def pool(
        x, kernel, stride=(), padding=0, ceil_mode=False, count_include_pad=True,
        divisor_override=None,
    ) -> Piecewise:  # fmt: skip
        return x.avg_pool(
            _each(kernel, axes), _each(stride, axes) if stride else None, _each(padding, axes),
            ceil_mode, count_include_pad, divisor_override,
        )  # fmt: skip

    return pool


def _adaptive_pool(x: Piecewise, sizes: Any) -> Piecewise:
    last = x.shape[x.ndim - len(sizes) :]
    return x.adaptive_avg_pool([n if s is None else s for s, n in zip(sizes, last, strict=True)])


def _over(method: str) -> Callable[..., Piecewise]:
    def reduced(x: Piecewise, dims: Any = None, keepdim: bool = False, dtype: Any = None):
        axes = None if dims is None or dims == [] else _each(dims, 1)
        return getattr(x, method)(axes, keepdim)

    return reduced


def _largest(x: Piecewise, dims: Any = (), keepdim: bool = False) -> Piecewise:
    axes = [d % x.ndim for d in _each(dims, 1)] if dims != () and dims != [] else range(x.ndim)
    for axis in axes:
        x = x.max(axis, True)
    kept = tuple(n for k, n in enumerate(x.shape) if k not in axes)
    return x if keepdim else x.reshape(kept)


def _max(x: Piecewise, other: Any = None, keepdim: bool = False) -> Any:
    if other is None:
        return _largest(x)
    if isinstance(other, int):  # a dimension
        return _largest(x, [other], keepdim), PLACES
    return x.maximum(other) if varies(x) else other.maximum(x)


def _min(x: Any, other: Any = None, keepdim: bool = False) -> Any:
    if other is None:
        return -_largest(-x)
    if isinstance(other, int):
        return -_largest(-x, [other], keepdim), PLACES
    return x.minimum(other) if varies(x) else other.minimum(x)


# ------------------------------------------------------------ bends


def _prelu(x: Piecewise, slope: Any) -> Piecewise:
    slope = constant(slope, "a product")
    if slope.values.ndim == 1 and x.ndim > 1:
        slope = slope.at((slice(None), *(None,) * (x.ndim - 2)))
    return x.leaky_relu(slope)


def _threshold(x: Piecewise, at: float, value: float) -> Piecewise:
    if at != value:
        refused("a threshold with a jump")
    return x.maximum(at)


def _softshrink(x: Piecewise, width: float = 0.5) -> Piecewise:
    return (x - width).relu() - (-x - width).relu()


def _dropout(x: Piecewise, p: float, train: bool) -> Piecewise:
    if train and p:
        refused("Dropout in training mode", "Call .eval() first.")
    return x


def _randomised_leaky(
    x: Piecewise,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> Piecewise:
    if training:
        refused("a randomised leaky ReLU in training mode", "Call .eval() first.")
    return x.leaky_relu(Fraction(lower) / 2 + Fraction(upper) / 2)


# ------------------------------------------------------------ moving entries


def moved(target: Any, args: Any, kwargs: Any) -> Any:
    """What an operator that only moves entries makes of arrays, some of which may be constants."""
    arrays: list[Any] = []

    def collect(value: Any) -> Any:
        if isinstance(value, (Piecewise, Entries)):
            arrays.append(value)
        return value

    over_arguments((args, kwargs), collect)

    def run(*places: np.ndarray) -> Any:
        # Places count from 1, so that zeros, which operators pad with, are no place.
        rest = iter(torch.from_numpy(np.ascontiguousarray(p)).double() + 1 for p in places)
        given, named = over_arguments(
            (args, kwargs),
            lambda v: next(rest) if isinstance(v, (Piecewise, Entries)) else v,
        )
        return target(*given, **named)

    shapes = [a.shape if isinstance(a, Piecewise) else a.values.shape for a in arrays]
    found = run(*(np.zeros(shape) for shape in shapes))
    if not isinstance(found, (list, tuple)):
        return rearranged(lambda *p: run(*p).long().numpy() - 1, arrays)
    return [
        rearranged(lambda *p, k=k: run(*p)[k].long().numpy() - 1, arrays) for k in range(len(found))
    ]


def _padded(x: Piecewise, widths: Sequence[int], value: Any = 0) -> Piecewise:
    sides = [(widths[k], widths[k + 1]) for k in range(0, len(widths), 2)][::-1]
    cut = tuple(slice(max(0, -a), min(0, b) or None) for a, b in sides)
    lead = x.ndim - len(sides)
    grown = [(max(0, a), max(0, b)) for a, b in sides]
    return x[(*(slice(None),) * lead, *cut)].pad([(0, 0)] * lead + grown, value or 0)


def _indexed(x: Any, indices: Sequence[Any]) -> Piecewise:
    """x[indices], each constant integers or None."""
    index = tuple(
        slice(None) if i is None else constant(i, "an index").values.astype(np.int64)
        for i in indices
    )
    return x[index]


def _same(x: Any, *args: Any, **kwargs: Any) -> Any:
    return x


def _cast(x: Any, *args: Any, **kwargs: Any) -> Any:
    wanted = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.dtype)]
    if varies(x) and any(not d.is_floating_point for d in wanted):
        refused("a conversion of varying values to integers")
    return x


TABLE: dict[str, Callable[..., Any]] = {
    "add": _add, "sub": _sub, "rsub": lambda a, b, alpha=1: _sub(b, a, 1) if alpha == 1
    else _add(b, a, -alpha), "mul": _mul, "div": _div, "neg": lambda x: -x,
    "linear": _linear, "matmul": _matmul, "mm": _matmul, "mv": _matmul, "addmm": _addmm,
    "conv1d": _convolution, "conv2d": _convolution, "conv3d": _convolution,
    "convolution": _general_convolution,
    "batch_norm": _batch_norm, "_native_batch_norm_legit_no_training": _evaluated_norm,
    "max_pool1d": _max_pool(1), "max_pool2d": _max_pool(2), "max_pool3d": _max_pool(3),
    "max_pool2d_with_indices": lambda *a, **k: (_max_pool(2)(*a, **k), PLACES),
    "max_pool3d_with_indices": lambda *a, **k: (_max_pool(3)(*a, **k), PLACES),
    "avg_pool1d": _avg_pool(1), "avg_pool2d": _avg_pool(2), "avg_pool3d": _avg_pool(3),
    "adaptive_avg_pool1d": _adaptive_pool, "adaptive_avg_pool2d": _adaptive_pool,
    "adaptive_avg_pool3d": _adaptive_pool, "_adaptive_avg_pool2d": _adaptive_pool,
    "_adaptive_avg_pool3d": _adaptive_pool,
    "sum": _over("sum"), "mean": _over("mean"), "amax": _largest,
    "amin": lambda x, *a, **k: -_largest(-x, *a, **k), "max": _max, "min": _min,
    "relu": lambda x: x.relu(), "abs": abs, "maximum": _max, "minimum": _min,
    "relu6": lambda x: x.clip(0, 6), "hardtanh": lambda x, low=-1, high=1: x.clip(low, high),
    "leaky_relu": lambda x, slope=0.01: x.leaky_relu(slope), "prelu": _prelu,
    "_prelu_kernel": _prelu, "rrelu": _randomised_leaky,
    "clamp": lambda x, min=None, max=None: x.clip(min, max),
    "clamp_min": lambda x, low: x.clip(low), "clamp_max": lambda x, high: x.clip(None, high),
    "hardsigmoid": lambda x: (x + 3).clip(0, 6) / 6, "threshold": _threshold,
    "softshrink": _softshrink, "gt": greater, "ge": greater, "lt": smaller, "le": smaller,
    "logical_not": lambda side: Side(-side.of), "bitwise_not": lambda side: Side(-side.of),
    "where": where, "dropout": _dropout, "feature_dropout": _dropout, "index": _indexed,
    "constant_pad_nd": _padded, "to": _cast, "_to_copy": _cast, "type_as": _same, "clone": _same,
}  # fmt: skip


def apply(target: Any, args: Any, kwargs: Any) -> Any:
    """The result of an operator at least one of whose arguments varies; tuples as sequences.

    Raises `ReLUError`, with the operator's name where nothing is known about it.
    """
    name = name_of(target)
    try:
        if name in TABLE:
            return TABLE[name](*args, **kwargs)
        if name in MOVING:
            return moved(target, args, kwargs)
    except (TypeError, AttributeError, IndexError) as error:
        refused(f"the operator {target} in a form that is not known ({error})")
    refused(f"the operator {target}")

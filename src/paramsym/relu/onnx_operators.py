"""ONNX operators on arrays of piecewise linear functions and on constants: one table.

Here are arithmetic, bends, reductions, constants and the table itself; what only moves entries is
in `onnx_moving`, windows in `onnx_windows`. Differences between versions are few: axes and bounds
that were attributes became inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import torch
from onnx import TensorProto

from paramsym.relu import onnx_moving, onnx_windows
from paramsym.relu.choices import Jumping, Side, refused, varies
from paramsym.relu.coefficients import check_size
from paramsym.relu.constants import Constant, fold
from paramsym.relu.errors import ReLUError
from paramsym.relu.onnx_call import Call, integers, single
from paramsym.relu.onnx_tensors import constant_of, dequantised, exactly, of_array, quantised
from paramsym.relu.onnx_values import axis_of, check_room, computed, lifted, moved, shape_of
from paramsym.relu.piecewise import Piecewise

_ATEN = torch.ops.aten
_CASTS: dict[Any, torch.dtype] = {
    TensorProto.FLOAT: torch.float32, TensorProto.DOUBLE: torch.float64,
    TensorProto.FLOAT16: torch.float16, TensorProto.BFLOAT16: torch.bfloat16,
    TensorProto.INT64: torch.int64, TensorProto.INT32: torch.int32, TensorProto.INT8: torch.int8,
    TensorProto.UINT8: torch.uint8, TensorProto.INT16: torch.int16, TensorProto.BOOL: torch.bool,
}  # fmt: skip

Operator = Callable[[Call], Any]

# ------------------------------------------------------------ arithmetic


def _entrywise(target: Any) -> Operator:
    def operator(call: Call) -> Any:
        shapes = [shape_of(a.of if isinstance(a, Side) else a) for a in call.inputs]
        check_room(math.prod(np.broadcast_shapes(*shapes)), *call.inputs)
        return computed(target, *call.inputs)

    return operator


def _folding(target: Any) -> Operator:
    """An operator that is known of constants alone."""

    def operator(call: Call) -> Any:
        if any(isinstance(a, (Piecewise, Side)) for a in call.inputs):
            refused(f"the operator {call.op} of values that depend on the input")
        return _entrywise(target)(call)

    return operator


def _variadic(target: Any) -> Operator:
    def operator(call: Call) -> Any:
        each = _entrywise(target)
        return reduce(lambda a, b: each(call.having([a, b])), call.inputs)

    return operator


def _div(call: Call) -> Any:
    a, b = call.inputs
    if not varies(a) and not varies(b) and not a.value.is_floating_point():
        if not bool((b.value != 0).all()):
            refused("a division of integers by zero")
        return fold(_ATEN.div.Tensor_mode, (a, b), {"rounding_mode": "trunc"})
    return _entrywise(_ATEN.div.Tensor)(call)


def _mean(call: Call) -> Any:
    return computed(_ATEN.div.Scalar, _variadic(_ATEN.add.Tensor)(call), len(call.inputs))


def _matmul(a: Any, b: Any) -> Any:
    if not varies(a) and not varies(b):
        check_size(math.prod(shape_of(a)) * max(1, *shape_of(b), 1))
    return computed(_ATEN.matmul.default, a, b)


def _gemm(call: Call) -> Any:
    a, b, shift = call.input(0), call.input(1), call.input(2)
    a = moved(np.transpose, a) if call.number("transA", 0) else a
    b = moved(np.transpose, b) if call.number("transB", 0) else b
    if len(shape_of(a)) != 2 or len(shape_of(b)) != 2:
        refused(f"a product of arrays of shapes {shape_of(a)} and {shape_of(b)}")
    made = _scaled(_matmul(a, b), call.number("alpha", 1.0))
    if shift is None:
        return made
    check_room(math.prod(np.broadcast_shapes(shape_of(made), shape_of(shift))), made)
    return computed(_ATEN.add.Tensor, made, _scaled(shift, call.number("beta", 1.0)))


def _scaled(x: Any, factor: float) -> Any:
    return x if factor == 1 else x * factor if varies(x) else computed(_ATEN.mul.Scalar, x, factor)


# ------------------------------------------------------------ bends


def _clip(call: Call) -> Any:
    x = call.input(0)
    low = _bound(call.input(1), call.attributes.get("min"), -1)
    high = _bound(call.input(2), call.attributes.get("max"), 1)
    if not varies(x):
        low, high = (b if b is None else b.value for b in (low, high))
        return fold(_ATEN.clamp.Tensor, (x, low, high), {}) if (low, high) != (None, None) else x
    low, high = (b if b is None else b.entries for b in (low, high))
    return x.clip(low, high)


def _bound(given: Any, attribute: float | None, side: int) -> Constant | None:
    """One bound of a clip; None where no number of its type is beyond it."""
    if given is None:
        if attribute is None:
            return None
        given = of_array(np.asarray(attribute, dtype=np.float32))
    if not isinstance(given, Constant) or given.value.numel() != 1:
        refused("a bound that depends on the input, or of several numbers")
    held = next((f.name for f in given.formats if "float" in f.name), None)
    most = torch.finfo(getattr(torch, held)).max if held else math.inf
    return None if side * float(given.value) >= most else given


def _leaky(call: Call) -> Any:
    return lifted(call.input(0)).leaky_relu(call.number("alpha", single(0.01)))


def _prelu(call: Call) -> Any:
    x, slope = lifted(call.input(0)), call.input(1)
    if varies(slope):
        refused("a slope that depends on the input")
    if np.broadcast_shapes(x.shape, shape_of(slope)) != x.shape:
        refused(f"slopes of shape {shape_of(slope)} for an array of shape {x.shape}")
    return x.leaky_relu(slope.entries)


def _hard_sigmoid(call: Call) -> Any:
    x = lifted(call.input(0)) * call.number("alpha", single(0.2))
    return (x + call.number("beta", 0.5)).clip(0, 1)


def _dropout(call: Call) -> Any:
    training = call.input(2)
    if training is not None and (varies(training) or bool(training.value.any())):
        refused("Dropout in training mode", "Export the model in evaluation.")
    return [call.input(0), Jumping("the mask of a dropout")]


def _cast(call: Call) -> Any:
    x, wanted = call.input(0), _CASTS.get(call.attributes.get("to"))
    if wanted is None:
        refused(f"a conversion to the type {call.attributes.get('to')}")
    return computed(_ATEN.to.dtype, x, wanted)


# ------------------------------------------------------------ reductions


def _reduced(target: Any, axes_needed: bool = False) -> Operator:
    def operator(call: Call) -> Any:
        x, axes = call.input(0), call.ints("axes", 1)
        rank = len(shape_of(x))
        if not axes and call.number("noop_with_empty_axes", 0):
            return x
        chosen = [axis_of(a, rank) for a in axes] if axes else list(range(rank))
        return computed(target, x, chosen, bool(call.number("keepdims", 1)))

    return operator


def _smallest(call: Call) -> Any:
    negated = call.having([computed(_ATEN.neg.default, call.input(0)), *call.inputs[1:]])
    return computed(_ATEN.neg.default, _reduced(_ATEN.amax.default)(negated))


# ------------------------------------------------------------ constants and shapes


def _constant(call: Call) -> Any:
    for key, held in call.attributes.items():
        if key == "value":
            return constant_of(held, call.folder)
        if key in ("value_float", "value_floats"):
            return of_array(np.asarray(held, dtype=np.float32))
        if key in ("value_int", "value_ints"):
            return of_array(np.asarray(held, dtype=np.int64))
    refused(f"a constant by {', '.join(call.attributes) or 'nothing'}")


def _shape(call: Call) -> Any:
    shape = shape_of(call.input(0))
    return exactly(torch.tensor(shape[call.number("start", 0) : call.attributes.get("end")]).long())


def _filled(call: Call) -> Any:
    shape = call.ints("shape", 0)
    check_room(math.prod(shape))
    held = call.attributes.get("value")
    one = exactly(torch.zeros(1).double()) if held is None else constant_of(held, call.folder)
    return moved(lambda p: np.broadcast_to(p.reshape(()), shape), one)


def _range(call: Call) -> Any:
    start, stop, step = (int(integers(v)) for v in call.inputs)
    check_room(len(range(start, stop, step)))
    return exactly(torch.arange(start, stop, step))


def _dequantise(call: Call) -> Any:
    if any(varies(v) for v in call.inputs):
        refused("DequantizeLinear of values that depend on the input")
    codes, scale, zero = call.input(0), call.input(1), call.input(2)
    axis = call.number("axis", 1) if scale.value.numel() > 1 else 0
    axis = axis_of(axis, codes.value.ndim) if codes.value.ndim else 0
    return dequantised(codes, scale, zero, axis, call.number("block_size", 0))


def _quantise(call: Call) -> Any:
    if any(varies(v) for v in call.inputs):
        refused(
            "QuantizeLinear of values that depend on the input: rounding jumps",
            "Quantise the weights alone, or decide the network without it.",
        )
    x, scale = call.input(0), call.input(1)
    axis = call.number("axis", 1) if scale.value.numel() > 1 else 0
    axis = axis_of(axis, x.value.ndim) if x.value.ndim else 0
    return quantised(x, scale, call.input(2), axis)


TABLE: dict[str, Operator] = {
    "Add": _entrywise(_ATEN.add.Tensor), "Sub": _entrywise(_ATEN.sub.Tensor),
    "Mul": _entrywise(_ATEN.mul.Tensor), "Div": _div, "Neg": _entrywise(_ATEN.neg.default),
    "Sum": _variadic(_ATEN.add.Tensor), "Mean": _mean, "Gemm": _gemm,
    "MatMul": lambda call: _matmul(*call.inputs),
    "Relu": _entrywise(_ATEN.relu.default), "Abs": _entrywise(_ATEN.abs.default),
    "Max": _variadic(_ATEN.maximum.default), "Min": _variadic(_ATEN.minimum.default),
    "LeakyRelu": _leaky, "PRelu": _prelu, "Clip": _clip, "HardSigmoid": _hard_sigmoid,
    "Greater": _entrywise(_ATEN.gt.Tensor), "GreaterOrEqual": _entrywise(_ATEN.ge.Tensor),
    "Less": _entrywise(_ATEN.lt.Tensor), "LessOrEqual": _entrywise(_ATEN.le.Tensor),
    "Not": _entrywise(_ATEN.logical_not.default), "Where": _entrywise(_ATEN.where.self),
    "Conv": onnx_windows.convolution, "BatchNormalization": onnx_windows.batch_norm,
    "AveragePool": onnx_windows.average_pool, "MaxPool": onnx_windows.max_pool,
    "GlobalAveragePool": onnx_windows.over_space(_ATEN.mean.dim),
    "GlobalMaxPool": onnx_windows.over_space(_ATEN.amax.default),
    "ReduceMean": _reduced(_ATEN.mean.dim), "ReduceSum": _reduced(_ATEN.sum.dim_IntList),
    "ReduceMax": _reduced(_ATEN.amax.default), "ReduceMin": _smallest,
    "Identity": lambda call: call.input(0), "Dropout": _dropout, "Cast": _cast,
    **onnx_moving.TABLE,
    "Constant": _constant, "ConstantOfShape": _filled, "Shape": _shape, "Range": _range,
    "DequantizeLinear": _dequantise, "QuantizeLinear": _quantise,
    "Sqrt": _folding(_ATEN.sqrt.default), "Reciprocal": _folding(_ATEN.reciprocal.default),
    "Exp": _folding(_ATEN.exp.default), "Pow": _folding(_ATEN.pow.Tensor_Tensor),
    "Equal": _folding(_ATEN.eq.Tensor), "Floor": _folding(_ATEN.floor.default),
    "Ceil": _folding(_ATEN.ceil.default),
}  # fmt: skip


def apply(call: Call) -> Any:
    """The result of a node; several results as a list.

    Raises `ReLUError`, with the operator's name where nothing is known about it.
    """
    jumping = next((v for v in call.inputs if isinstance(v, Jumping)), None)
    if jumping is not None:
        refused(jumping.what, "They jump; use the first result alone.")
    if call.op not in TABLE:
        refused(f"the operator {call.op}")
    call.check()
    try:
        return TABLE[call.op](call)
    except ReLUError:
        raise
    except (TypeError, AttributeError, IndexError, KeyError, ValueError, RuntimeError,
            OverflowError, ZeroDivisionError) as error:  # fmt: skip
        said = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
        refused(f"the operator {call.op} in a form that is not known ({said})",
                "Check the file with onnx.checker.check_model(path, full_check=True).")  # fmt: skip

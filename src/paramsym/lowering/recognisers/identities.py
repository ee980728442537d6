"""Products with the identity matrix, which are copies: B(A(I)) is B A.

So a layer without a bias is asked for its weight.
"""

from __future__ import annotations

import torch

from paramsym.lowering.recognisers.context import Context, argument, is_real
from paramsym.recording.graph import Call, Value


def product_with_identity(context: Context, call: Call) -> list[Call] | None:
    """The product of a matrix with the identity as the matrix, or its transpose."""
    x = argument(call, 0, "input", "self")
    y = argument(call, 1, "weight", "other", "mat2")
    out = call.outputs[0]
    if argument(call, 2, "bias") is not None or "out" in call.kwargs or not is_real(x, y, out):
        return None
    if not len(x.shape) == len(y.shape) == 2:
        return None
    calls: list[Call] = []
    if _is_identity(context, x):
        kept = _transposed(context, y, calls) if call.name == "linear" else y
    elif _is_identity(context, y):
        kept = x
    else:
        return None
    return [*calls, context.call(torch.clone, (kept,), out)]


def _is_identity(context: Context, value: Value) -> bool:
    """Whether a matrix is square with ones on its diagonal and zeros beside it."""
    value = context.uncopied(value)
    if len({*value.shape}) != 1 or value.storage != value.id:
        return False
    call = context.writer(value)
    return call is not None and call.name == "eye" and "out" not in call.kwargs


def _transposed(context: Context, value: Value, calls: list[Call]) -> Value:
    """A matrix, its axes exchanged."""
    turned = context.value(
        value.shape[::-1], value, value, strides=value.strides[::-1], offset=value.offset
    )
    calls.append(context.call(torch.t, (value,), turned))
    return turned

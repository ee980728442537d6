"""Whether the entries along an axis may be equal for many inputs, as those of a ReLU are at zero.

A choice by rank follows the order of its units except where scores are equal, and then their places
decide. Scores that come from a linear map with parameters of its own are equal on a set of measure
zero only, as long as what it reads does not vanish for many inputs.
"""

from __future__ import annotations

from paramsym.lowering.recognisers.context import CASTS, COPIES, Context, argument
from paramsym.recording.graph import Call, Value

_STRICT = COPIES | CASTS | {
    "softmax", "log_softmax", "sigmoid", "tanh", "softplus", "exp", "neg", "gelu", "silu",
    "layer_norm", "rms_norm", "normalize", "embedding", "view", "reshape", "transpose", "permute",
    "flatten", "unsqueeze", "squeeze", "unflatten", "t", "expand", "getitem",
}  # fmt: skip
_LINEAR = {"linear": (1, 2), "addmm": (2, 0), "matmul": (1, None), "mm": (1, None),
           "einsum": (2, None), "bmm": (1, None)}  # fmt: skip
_STEPS = 64


def may_tie(context: Context, scores: Value) -> bool:
    """Whether scores may be equal on an open set of inputs, as far as can be told."""
    return not _is_generic(context, scores, False, _STEPS)


def _is_generic(context: Context, value: Value, mapped: bool, steps: int) -> bool:
    """Whether entries are different for almost all inputs.

    Once a linear map has been passed (`mapped`), it is enough that what it reads is not zero.
    """
    owner = context.owner(value)
    call = value.call or owner.call
    if steps == 0 or not value.dtype.is_floating_point:
        return False
    if owner.kind in ("input", "parameter"):
        return mapped
    if call is None or not call.operands:
        return False
    if call.name in _LINEAR:
        return _of_map(context, call, steps)
    first = call.operands[0]
    if call.name in _STRICT:
        if call.name == "embedding":
            return mapped
        return _is_generic(context, first, mapped, steps - 1)
    if call.name in ("add", "sub"):
        return any(_is_generic(context, v, mapped, steps - 1) for v in call.operands)
    if call.name in ("mul", "div"):
        return all(
            _is_generic(context, v, mapped, steps - 1) or _is_positive(context, v)
            for v in call.operands
        )
    return False


def _of_map(context: Context, call: Call, steps: int) -> bool:
    at_weight, at_bias = _LINEAR[call.name]
    weight = argument(call, at_weight, "weight", "other", "mat2")
    bias = None if at_bias is None else argument(call, at_bias, "bias", "input")
    if not isinstance(weight, Value) or context.owner(weight).kind != "parameter":
        return False
    if any(stride == 0 for n, stride in zip(weight.shape, weight.strides, strict=True) if n > 1):
        return False
    if isinstance(bias, Value):
        return context.owner(bias).kind == "parameter" and 0 not in bias.strides
    reads = argument(call, 1 if call.name in ("einsum", "addmm") else 0, "input", "self", "mat1")
    return isinstance(reads, Value) and _is_generic(context, reads, True, steps - 1)


def _is_positive(context: Context, value: Value) -> bool:
    """Whether a factor is a norm's, a root or a parameter, which vanish nowhere or nearly so."""
    owner = context.owner(value)
    if owner.kind == "parameter":
        return True
    return owner.call is not None and owner.call.name in ("rsqrt", "sqrt", "norm", "exp", "sum")

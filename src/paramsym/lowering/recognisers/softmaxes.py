"""Softmax, in its other spellings.

    e / e.sum(-1, keepdim=True)    (z - z.logsumexp(-1, True)).exp()    log_softmax(z, -1).exp()

with e = exp(z), or exp(z − m) for any m that is constant along the axis: so overflow is avoided,
and a softmax sees no common shift.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from paramsym.lowering.recognisers.context import Context, argument, is_real
from paramsym.recording.graph import Call, Value
from paramsym.recording.layout import steps


def softmax_of_quotient(context: Context, call: Call) -> list[Call] | None:
    """An exponential divided by its own sum along one axis."""
    whole, total = argument(call, 0, "input", "self"), argument(call, 1, "other")
    out = call.outputs[0]
    if call.kwargs or not is_real(whole, total, out) or whole.shape != out.shape:
        return None
    powers, dim = _writer(context, whole, "exp"), _reduced(context, whole, total, "sum")
    if powers is None or dim is None:
        return None
    return _softmax(context, _unshifted(context, powers.operands[0], dim), dim, out)


def softmax_of_logarithm(context: Context, call: Call) -> list[Call] | None:
    """The exponential of a softmax's logarithm."""
    out = call.outputs[0]
    if len(call.operands) != 1 or call.kwargs or not is_real(call.operands[0], out):
        return None
    z = call.operands[0]
    if (log := _writer(context, z, "log_softmax")) is not None:
        x, dim = log.operands[0], argument(log, 1, "dim")
        plain = isinstance(dim, int) and is_real(x, z)
        return _softmax(context, x, dim % len(x.shape), out) if plain else None
    if (less := _difference(context, z)) is None:
        return None
    dim = _reduced(context, less[0], less[1], "logsumexp")
    return None if dim is None else _softmax(context, _unshifted(context, less[0], dim), dim, out)


def softmax_in_a_loss(context: Context, call: Call) -> list[Call] | None:
    """Cross entropy sees its scores by the logarithm of their softmax alone, which it takes."""
    scores, out = argument(call, 0, "input"), call.outputs[0]
    if not is_real(scores, out):
        return None
    seen = context.value(scores.shape, scores)
    log = context.call(F.log_softmax, (scores, min(1, len(scores.shape) - 1)), seen)
    given, named = (seen, *call.args[1:]), call.kwargs
    if not call.args:
        given, named = (), {**call.kwargs, "input": seen}
    return [log, context.call(F.cross_entropy, given, out, **named)]


def _softmax(context: Context, x: Value, dim: int, out: Value) -> list[Call] | None:
    if not is_real(x, out) or x.shape != out.shape:
        return None
    return [context.call(torch.softmax, (x, dim), out)]


def _unshifted(context: Context, x: Value, dim: int) -> Value:
    """x without what is subtracted from it and is constant along an axis."""
    less = _difference(context, x)
    if less is None or less[0].shape != x.shape:
        return x
    reach = len(less[1].shape) - len(x.shape) + dim
    return less[0] if reach < 0 or less[1].shape[reach] == 1 < x.shape[dim] else x


def _difference(context: Context, x: Value) -> tuple[Value, Value] | None:
    call = _writer(context, x, "sub")
    if call is None or call.kwargs or len(call.args) != 2 or not is_real(*call.args, x):
        return None
    return call.args


def _reduced(context: Context, x: Value, made: Value, name: str) -> int | None:
    """The axis of x along which another tensor is its reduction, kept as one entry."""
    found = [k for k, n in enumerate(x.shape) if n != 1]
    found = [k for k in found if made.shape == (*x.shape[:k], 1, *x.shape[k + 1 :])]
    owner = context.owner(made)
    call = _writer(context, owner, name)
    if len(found) != 1 or call is None or call.kwargs.get("dtype") is not None:
        return None
    given = argument(call, 1, "dim")
    dims = [given] if isinstance(given, int) else given
    if not isinstance(dims, (tuple, list)) or len(dims) != 1 or dims[0] % len(x.shape) != found[0]:
        return None
    whole = made.offset == owner.offset and steps(made) == steps(owner)
    same = context.content(call.operands[0]) == context.content(x)
    return found[0] if whole and same else None


def _writer(context: Context, value: Any, name: str) -> Call | None:
    """The call of a name that computes a tensor as a whole."""
    call = context.written_by(name, context.uncopied(value))
    return call if call is not None and "out" not in call.kwargs else None

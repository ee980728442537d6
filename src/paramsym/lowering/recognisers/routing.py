"""Routing: what is chosen by rank, and then placed, compared or counted by position, as a mask.

    v, i = p.topk(k);  v = v / v.sum(-1, keepdim=True);  g = zeros.scatter(-1, i, v)

says at k *positions* what a mask says at all *units*: with m = [p is among the k largest],

    v̂ = where(m, p, 0);  g = v̂ / v̂.sum(-1, keepdim=True).

Positions are data, so that what passes through them is frozen; the right side follows the order of
the units, and a softmax sees no common shift of them. What happens to the k values in between is
translated step by step. It may not depend on the order of the positions: entrywise functions with
what is the same for all of them, sums over all of them, a softmax over all of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from paramsym.lowering.recognisers.context import Context, argument, axes, is_real
from paramsym.lowering.recognisers.contractions import spelled
from paramsym.lowering.recognisers.dense import Dense
from paramsym.lowering.recognisers.rankings import Ranking, ranking
from paramsym.recording.graph import Call, Value, values_in

_EQUAL = ("eq", "__eq__")


def routing(context: Context, call: Call) -> list[Call] | None:
    """What is placed, compared or counted by the positions of a ranking, by its mask."""
    if len(call.outputs) != 1 or any(v.id not in context.moving for v in call.outputs):
        return None
    return _READINGS[call.name](context, call)


def _scattered(context: Context, call: Call) -> list[Call] | None:
    """Values at the chosen units, and a constant at the others."""
    base, out = argument(call, 0, "input", "self"), call.outputs[0]
    dim, positions = argument(call, 1, "dim"), argument(call, 2, "index")
    source, fill = argument(call, 3, "src", "value"), context.number(base)
    of = ranking(context, positions)
    if of is None or not of.keeps or fill is None or not isinstance(dim, int):
        return None
    if dim % len(out.shape) != of.dim or out.shape != of.scores.shape:
        return None
    if call.kwargs.keys() - {"dim", "index", "src", "value", "input"} or len(call.args) > 4:
        return None
    if call.name == "scatter_add" and fill:
        return None
    dense = Dense(context, of)
    if (source, fill) == (1, 0):
        dense.calls.append(context.call(torch.Tensor.to, (dense.mask, out.dtype), out))
        return dense.calls
    value = dense.value(source)
    if value is None or value.dtype != out.dtype:
        return None
    dense.calls.append(context.call(torch.where, (dense.mask, value, fill), out))
    return dense.calls


def _counted(context: Context, call: Call) -> list[Call] | None:
    """`one_hot` of the position of the largest entry."""
    out = call.outputs[0]
    of = ranking(context, argument(call, 0, "input", "tensor", "self"))
    if of is None or of.keeps or of.dim != len(of.scores.shape) - 1:
        return None
    if out.shape != of.scores.shape:
        return None
    dense = Dense(context, of)
    dense.calls.append(context.call(torch.Tensor.to, (dense.mask, out.dtype), out))
    return dense.calls


def _summed(context: Context, call: Call) -> list[Call] | None:
    """`one_hot(i).sum(-2)`, `(one_hot(i) * v[..., None]).sum(-2)`, and `((i == e) * v).sum(-1)`."""
    out, summed = call.outputs[0], call.operands[0]
    dims = axes(argument(call, 1, "dim", "axis"), len(summed.shape))
    if call.name == "amax" or _is_one_hot(context.uncast(summed)):
        return _counts(context, context.uncast(summed), out, dims)
    if (counted := _counts_of_one(context, call)) is not None:
        return counted
    for mask, value in _masked(context, summed):
        first = context.uncast(mask)
        if not is_real(value, out) or first.call is None:
            continue
        if _is_one_hot(first):
            inner = _squeezed(context, value)
            found = inner and _placed(context, first, inner, out)
            if found and dims == [len(summed.shape) - 2] and len(out.shape) < len(summed.shape):
                return found
        elif first.call.name in _EQUAL and value.shape == first.shape:
            found = _of_one_unit(context, first.call, value, out, dims)
            if found:
                return found
    return None


def _is_one_hot(value: Value) -> bool:
    return value.call is not None and value.call.name == "one_hot" and value.storage == value.id


def _masked(context: Context, product: Value) -> list[tuple[Value, Value]]:
    """Readings of a tensor as a mask times values: a product, or a choice between them and zero."""
    made = product.call if product.storage == product.id else None
    if made is None or made.kwargs or not all(isinstance(x, Value) for x in made.args[:2]):
        return []
    if made.name == "mul" and len(made.args) == 2:
        return [made.args, made.args[::-1]]  # type: ignore[list-item]
    if made.name == "where" and len(made.args) == 3 and context.number(made.args[2]) == 0:
        return [made.args[:2]] if made.target is torch.where else []  # type: ignore[list-item]
    return []


def _counts(context: Context, one_hot: Value, out: Value, dims: list[int]) -> list[Call] | None:
    """How often each unit is chosen: once or never, since positions are different."""
    if not _is_one_hot(one_hot) or one_hot.call is None:
        return None
    of = ranking(context, argument(one_hot.call, 0, "input", "tensor", "self"))
    last = None if of is None else len(of.scores.shape) - 1
    if of is None or not of.keeps or of.dim != last or dims != [last]:
        return None
    if out.shape != of.scores.shape or one_hot.shape[-1] != of.scores.shape[-1]:
        return None
    dense = Dense(context, of)
    dense.calls.append(context.call(torch.Tensor.to, (dense.mask, out.dtype), out))
    return dense.calls


def _squeezed(context: Context, value: Value) -> Value | None:
    """The tensor of which another is a view with one more axis, of one entry, at the end."""
    owner = context.owner(value)
    if owner.shape != value.shape[:-1] or value.shape[-1:] != (1,) or owner.offset != value.offset:
        return None
    return owner if owner.strides == value.strides[:-1] else None


def _placed(context: Context, one_hot: Value, value: Value, out: Value) -> list[Call] | None:
    """Values at the units that a `one_hot` of positions says, summed over the positions."""
    call = one_hot.call
    of = ranking(context, argument(call, 0, "input", "tensor", "self")) if call else None
    if of is None or not of.keeps or of.dim != len(of.scores.shape) - 1:
        return None
    if one_hot.shape != (*value.shape, of.scores.shape[-1]) or out.shape != of.scores.shape:
        return None
    dense = Dense(context, of)
    found = dense.value(value)
    if found is None or found.dtype != out.dtype:
        return None
    dense.calls.append(context.call(torch.where, (dense.mask, found, 0), out))
    return dense.calls


def _of_one_unit(
    context: Context, eq: Call, value: Value | None, out: Value, dims: list[int]
) -> list[Call] | None:
    """Σ over positions of the values at one unit, or how often it is chosen without values."""
    unit = argument(eq, 1, "other")
    of = ranking(context, argument(eq, 0, "input", "self"))
    if of is None or dims != ([of.dim] if of.keeps else []) or type(unit) is not int:
        return None
    if not 0 <= unit < of.scores.shape[of.dim]:
        return None
    dense = Dense(context, of)
    if value is None:
        gates = dense.mask
    else:
        found = dense.value(value)
        if found is None or found.dtype != out.dtype:
            return None
        gates = dense.filled(found, 0)
    dense.calls += _slice(context, gates, of.dim, unit, out)
    return dense.calls


def _slice(context: Context, gates: Value, dim: int, unit: int, out: Value) -> list[Call]:
    """One unit of an axis, which stays with one entry or goes."""
    kept = len(out.shape) == len(gates.shape)
    window = (slice(None),) * dim + (slice(unit, unit + 1) if kept else unit,)
    strides = gates.strides if kept else gates.strides[:dim] + gates.strides[dim + 1 :]
    view = context.value(
        out.shape, gates, view=gates, strides=strides,
        offset=gates.offset + unit * gates.strides[dim],
    )  # fmt: skip
    read = context.call(torch.Tensor.__getitem__, (gates, window), view, name="getitem")
    return [read, context.call(torch.Tensor.to, (view, out.dtype), out)]


def _equal(context: Context, call: Call) -> list[Call] | None:
    """`i == e` for the position of the one largest entry."""
    return _of_one_unit(context, call, None, call.outputs[0], [])


def _any(context: Context, call: Call) -> list[Call] | None:
    """`(i == e).any(-1)`."""
    dim = argument(call, 1, "dim", "axis")
    return None if dim is None else _counts_of_one(context, call)


def _counts_of_one(context: Context, call: Call) -> list[Call] | None:
    """How often one unit is chosen: once or never."""
    summed = context.uncast(call.operands[0])
    if summed.call is None or summed.call.name not in _EQUAL or summed.storage != summed.id:
        return None
    dims = axes(argument(call, 1, "dim", "axis"), len(summed.shape))
    return _of_one_unit(context, summed.call, None, call.outputs[0], dims)


def _contracted(context: Context, call: Call) -> list[Call] | None:
    """An einsum of `one_hot` positions with their values, summed over the positions."""
    found = spelled(call)
    if found is None or len(found[0]) != 2:
        return None
    labels, operands, wanted = found
    for k in (0, 1):
        mask, ms, vs = context.uncast(operands[k]), labels[k], labels[1 - k]
        value = operands[1 - k]
        if not _is_one_hot(mask) or ms[:-1] != vs:
            continue
        if wanted == vs[:-1] + ms[-1] and is_real(value, call.outputs[0]):
            return _placed(context, mask, value, call.outputs[0])
    return None


def _compared(context: Context, call: Call) -> list[Call] | None:
    """`s < t` and `s >= t` for the k-th largest entry t of s."""
    scores, least = argument(call, 0, "input", "self"), argument(call, 1, "other")
    if not isinstance(scores, Value) or not isinstance(least, Value) or len(call.args) != 2:
        return None
    values = context.owner(least)
    made = values.call
    if made is None or made.name != "topk" or scores.storage != scores.id:
        return None
    results = [*values_in(made.result)]
    of = ranking(context, results[1]) if results[0] is values else None
    if of is None or not of.largest or context.content(of.scores) != context.content(scores):
        return None
    if not argument(made, 4, "sorted", default=True) or not _is_last(least, values, of):
        return None
    dense = Dense(context, of)
    target = torch.logical_not if call.name == "lt" else torch.clone
    dense.calls.append(context.call(target, (dense.mask,), call.outputs[0]))
    return dense.calls


def _is_last(least: Value, values: Value, of: Ranking) -> bool:
    """Whether a view shows the last of the k values, along an axis of one entry."""
    shape = tuple(1 if d == of.dim else n for d, n in enumerate(values.shape))
    offset = values.offset + (of.k - 1) * values.strides[of.dim]
    strides = zip(shape, least.strides, values.strides, strict=False)
    return (
        least.shape == shape and least.offset == offset
        and all(a == b for n, a, b in strides if n > 1)
    )  # fmt: skip


_READINGS: dict[str, Callable[[Context, Call], list[Call] | None]] = {
    **dict.fromkeys(("scatter", "scatter_add"), _scattered),
    **dict.fromkeys(("sum", "amax"), _summed),
    **dict.fromkeys(("lt", "ge"), _compared),
    **dict.fromkeys(_EQUAL, _equal),
    "any": _any, "one_hot": _counted, "einsum": _contracted,
}  # fmt: skip
ROUTED = tuple(name for name in _READINGS if name not in ("sum", "einsum"))

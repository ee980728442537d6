"""Squared distances: |a|² − 2 a·b + |b|², written out.

So the distances of all rows to all codes or prototypes are written:

    z.pow(2).sum(1, keepdim=True) - 2 * z @ codes.T + codes.pow(2).sum(1)

As the square of what `cdist` gives, it is seen that a common translation has no effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from paramsym.lowering.recognisers.context import Content, Context, argument, axes, is_real
from paramsym.lowering.recognisers.contractions import spelled
from paramsym.recording.graph import Call, Value

_SIGNS = {"add": 1.0, "sub": -1.0}
Term = tuple[Value, float]
Axis = tuple[int, int]  # length and stride


@dataclass(frozen=True)
class _Pair:
    """The rows of a, and those of b as rows or as columns, which a product compares."""

    a: Value
    b: Value
    columns: bool
    factor: float

    def rows(self, context: Context) -> tuple[Content, Content]:
        """Both as rows: the last axis is what is summed."""
        a, b = context.content(self.a), context.content(self.b)
        if not self.columns:
            return a, b
        storage, shape, strides, offset = b
        return a, (storage, _turned(shape), _turned(strides), offset)


def _turned(axes_of: tuple[int, ...]) -> tuple[int, ...]:
    return (*axes_of[:-2], axes_of[-1], axes_of[-2])


def distances(context: Context, call: Call) -> list[Call] | None:
    """The three terms of squared distances, in any order and with any common factor."""
    out = call.outputs[0]
    found = _terms(context, call)
    if found is None or len(found) != 3 or not is_real(out, *(value for value, _ in found)):
        return None
    for k, (value, factor) in enumerate(found):
        pair = _pair(context, value)
        norms = found[:k] + found[k + 1 :]
        if pair is None or any(-2 * weight != factor * pair.factor for _, weight in norms):
            continue
        if value.shape == out.shape and _are_norms(context, pair, [v for v, _ in norms], out):
            return _written(context, pair, norms[0][1], out)
    return None


def _terms(context: Context, call: Call) -> list[Term] | None:
    """The terms of a sum with their factors; None where they are added otherwise, or are more than
    a distance has, as along a stream that is added up to through all layers."""
    found: list[Term] = []
    queue = _summands(context, call) or []
    while queue and len(found) + len(queue) <= 3:
        value, factor = queue.pop()
        inner = context.writer(value) if value.storage == value.id else None
        parts = _summands(context, inner) if inner is not None and inner.name in _SIGNS else None
        if parts is None:
            found.append((value, factor))
        else:
            queue += [(part, factor * own) for part, own in parts]
    return None if queue or not found else found


def _summands(context: Context, call: Call) -> list[Term] | None:
    """What a plain sum adds."""
    if len(call.args) != 2 or call.kwargs.get("alpha", 1) != 1 or "out" in call.kwargs:
        return None
    found: list[Term] = []
    for item, sign in zip(call.args, (1.0, _SIGNS[call.name]), strict=True):
        term = context.multiple(item)
        if term is None:
            return None
        found.append((term[0], term[1] * sign))
    return found


def _pair(context: Context, value: Value) -> _Pair | None:
    """What is compared by a matrix product, or by an einsum that is one."""
    call = context.writer(value) if value.storage == value.id else None
    found = _product(call) if call is not None and "out" not in call.kwargs else None
    if found is None or len(found[0]) != 2 or not is_real(*found[0], value):
        return None
    a, b = (context.multiple(operand) for operand in found[0])
    assert a is not None
    assert b is not None
    if len(a[0].shape) < 2 or len(b[0].shape) not in (2, len(a[0].shape)):
        return None
    return _Pair(a[0], b[0], found[1], a[1] * b[1])


def _product(call: Call) -> tuple[Sequence[Value], bool] | None:
    """The operands of a matrix product, and whether the columns of the second are what is met."""
    if call.name in ("matmul", "mm", "bmm"):
        return call.operands, True
    if call.name == "linear" and argument(call, 2, "bias") is None:
        return call.operands, False
    found = spelled(call) if call.name == "einsum" else None
    if found is None or len(found[0]) != 2:
        return None
    (xs, ys), operands, wanted = found
    along, own = xs[-1:], "".join(c for c in ys if c not in xs)
    if len(xs) < 2 or len(own) != 1 or wanted != xs[:-1] + own:
        return None
    if ys[:-2] not in ("", xs[:-2]) or {*ys[-2:]} != {along, own}:
        return None
    return operands, ys.endswith(along + own)


def _are_norms(context: Context, pair: _Pair, norms: list[Value], out: Value) -> bool:
    """Whether two tensors are the squared lengths of the rows of both sides, each in its place."""
    a, b = pair.rows(context)
    last = len(out.shape) - 1
    batch = (*range(last - 1),) if len(b[1]) > 2 else ()
    for one, other in (norms, norms[::-1]):
        first = _is_norm(context, one, a, dict.fromkeys(range(last)), out)
        if first and _is_norm(context, other, b, {**dict.fromkeys(batch), last: None}, out):
            return True
    return False


def _is_norm(
    context: Context, value: Value, rows: Content, places: dict[int, None], out: Value
) -> bool:
    """Whether a tensor is Σ rows², where each axis of the rows is at its place in the output."""
    total = context.owner(value)
    found = _lengths(context, total, rows)
    if found is None or value.offset != 0:
        return False
    wanted = dict(zip(places, zip(rows[1][:-1], rows[2][:-1], strict=True), strict=True))
    seen: dict[int, Axis] = dict.fromkeys(range(len(out.shape)), (1, 0))
    for k, (n, step) in enumerate(zip(value.shape, value.strides, strict=True)):
        if n > 1:
            seen[k + len(out.shape) - len(value.shape)] = found.get(step, (-1, -1))
    return all(
        axis == wanted[place] if place in wanted and wanted[place][0] > 1 else axis[0] == 1
        for place, axis in seen.items()
    )


def _lengths(context: Context, total: Value, rows: Content) -> dict[int, Axis] | None:
    """Where a tensor is Σ rows² as a whole: the axes of the rows by those strides that it has."""
    call = context.writer(total)
    square = argument(call, 0, "input", "self") if call is not None else None
    if call is None or call.name != "sum" or not isinstance(square, Value):
        return None
    dims = axes(argument(call, 1, "dim", "axis"), len(square.shape))
    source = _root(context, square)
    if source is None or len(dims) != 1 or not is_real(total, square):
        return None
    storage, shape, strides, offset = context.content(source)
    each = [*zip(shape, strides, strict=True)]
    if (storage, offset, each.pop(dims[0])) != (rows[0], rows[3], (rows[1][-1], rows[2][-1])):
        return None
    steps = list(total.strides)
    if len(steps) > len(each):
        del steps[dims[0]]
    return {step: axis for step, axis in zip(steps, each, strict=True) if axis[0] > 1}


def _root(context: Context, square: Value) -> Value | None:
    """What a tensor is the square of."""
    call = context.writer(square) if square.storage == square.id else None
    if call is None or "out" in call.kwargs or not call.operands:
        return None
    two = call.name == "pow" and len(call.args) == 2 and context.number(call.args[1]) == 2
    if call.name == "mul" and len(call.operands) == 2:
        x, y = call.operands
        two = context.content(x) == context.content(y)
    return call.operands[0] if two or call.name == "square" else None


def _written(context: Context, pair: _Pair, factor: float, out: Value) -> list[Call]:
    """The distances, squared, times the common factor."""
    calls: list[Call] = []
    rows = pair.b
    if pair.columns:
        strides = _turned(rows.strides)
        rows = context.value(_turned(rows.shape), rows, rows, strides=strides, offset=rows.offset)
        calls.append(context.call(torch.transpose, (pair.b, -1, -2), rows))
    apart, squared = context.value(out.shape, out), context.value(out.shape, out)
    return [
        *calls,
        context.call(torch.cdist, (pair.a, rows), apart),
        context.call(torch.square, (apart,), squared),
        context.call(torch.mul, (squared, factor), out),
    ]

"""A linear skip around a linear map: x + W x is the linear map W + I.

The basis of x and that of the sum have nothing to do with each other once the identity is part of
the weight: the group acts on W + I from both sides, and the parameter keeps its own origin.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from paramsym.lowering.builder import Builder, Tensor
from paramsym.lowering.recognisers.context import Context, argument, is_real
from paramsym.lowering.registry import rule
from paramsym.primitives import ShiftedDiagonal
from paramsym.primitives.tensor import contiguous
from paramsym.recording.graph import Call, Value
from paramsym.recording.layout import covers

# where a linear map may take its input and its weight from
_PLACES = {
    "linear": ((0, 1),), "matmul": ((0, 1), (1, 0)), "mm": ((0, 1), (1, 0)), "addmm": ((1, 2),),
}  # fmt: skip


def plus_identity(weight: torch.Tensor, number: float) -> torch.Tensor:
    """W + c·I for a square W."""
    return weight + number * torch.eye(len(weight), dtype=weight.dtype, device=weight.device)


@rule(plus_identity)
def _plus_identity(build: Builder, call: Call) -> Tensor:
    x, number = build.arguments(call, "weight", "number")
    out = build.new(x.shape, x.axes)
    return build.emit(ShiftedDiagonal, out, [x], constant=number)


def linear_skip(context: Context, call: Call) -> list[Call] | None:
    """`c·x + a·f(x, W)` with f linear in x as `a·f(x, W + (c/a)·I)`, if W is read here alone."""
    terms = _terms(context, call)
    out = call.outputs[0]
    if terms is None:
        return None
    for (x, c), (y, a) in (terms, terms[::-1]):
        made = context.writer(y) if y.storage == y.id else None
        if made is None or made.name not in _PLACES or not c or not a:
            continue
        if not is_real(x, y, out) or not x.shape == y.shape == out.shape:
            continue
        if not _read_only_by(context, y, call) or made.kwargs.keys() - {"input", "weight", "bias"}:
            continue
        for at_weight, weight in _weights(context, made, x):
            owner = _own_square(context, weight, made)
            if owner is not None:
                return _with_identity(context, call, made, at_weight, (weight, owner), c / a, a)
    return None


def _weights(context: Context, made: Call, x: Value) -> Iterator[tuple[int, Value]]:
    """The arguments of a linear map that may be its weight where x is its input, by position."""
    for at_input, at_weight in _PLACES[made.name]:
        source = argument(made, at_input, "input")
        weight = argument(made, at_weight, "weight")
        if not isinstance(source, Value) or not isinstance(weight, Value):
            continue
        if context.content(source) == context.content(x):
            yield at_weight, weight


def _terms(context: Context, call: Call) -> tuple[tuple[Value, float], ...] | None:
    """The two summands, each a number times a tensor."""
    if call.kwargs.keys() - {"alpha", "input", "other"} or len(call.args) > 3:
        return None
    alpha = argument(call, 2, "alpha", default=1)
    x = context.multiple(argument(call, 0, "input", "self"))
    y = context.multiple(argument(call, 1, "other"))
    if x is None or y is None or not isinstance(alpha, (int, float)):
        return None
    return (x, (y[0], y[1] * alpha))


def _read_only_by(context: Context, value: Value, call: Call) -> bool:
    """Whether a tensor, its copies and multiples lead to nothing but one call."""
    if context.is_output(value):
        return False
    return all(
        other is call
        or (
            len(other.outputs) == 1
            and context.multiple(other.outputs[0]) not in (None, (other.outputs[0], 1.0))
            and _read_only_by(context, other.outputs[0], call)
        )
        for other in context.readers_of(value)
    )


def _own_square(context: Context, weight: Value, made: Call) -> Value | None:
    """The square parameter of which a weight is the whole, or the transpose, read by one call."""
    owner = context.owner(weight)
    held = owner.name in context.graph.held
    if owner.kind != "parameter" or held or context.is_output(owner):
        return None
    square = len(owner.shape) == 2 == len(weight.shape) and owner.shape[0] == owner.shape[1] > 1
    if not square or owner.strides != contiguous(owner.shape) or not covers(weight, owner):
        return None
    alone = context.readers_of(owner)
    operands = [v for v in made.operands if v.storage == owner.id]
    return owner if alone == [made] and len(operands) == 1 else None


def _with_identity(
    context: Context, call: Call, made: Call, at: int, weights: tuple[Value, Value],
    number: float, by: float,
) -> list[Call]:  # fmt: skip
    weight, owner = weights
    out = call.outputs[0]
    moved = context.value(owner.shape, owner, offset=owner.offset)
    calls = [context.call(plus_identity, (owner, number), moved)]
    if weight.strides != owner.strides:
        turned = context.value(
            weight.shape, weight, view=moved, strides=weight.strides, offset=weight.offset
        )
        calls.append(context.call(torch.t, (moved,), turned))
        moved = turned
    args, kwargs = list(made.args), dict(made.kwargs)
    if at < len(args):
        args[at] = moved
    else:
        kwargs["weight"] = moved
    last = out if by == 1 else context.value(out.shape, out)
    calls.append(context.call(made.target, tuple(args), last, name=made.name, **kwargs))
    if by != 1:
        calls.append(context.call(torch.mul, (last, by), out))
    return calls

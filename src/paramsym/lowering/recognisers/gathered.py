"""Weights that are gathered for the chosen experts, as those of all experts with a gate.

    h = relu(einsum("td,tkhd->tkh", x, W[i]));  y = einsum("tkh,tkoh,tk->to", h, V[i], v)

reads W and V at the positions i of a ranking and sums over the k places. Place by place, the same
function stands at all units, and the sum over the chosen units is the sum over all with a mask. All
that lies between is translated from the sum backwards; each step must treat the places one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from paramsym.lowering.recognisers.context import Context, argument, axes, is_real
from paramsym.lowering.recognisers.contractions import pairwise, spelled
from paramsym.lowering.recognisers.dense import Dense
from paramsym.lowering.recognisers.rankings import Ranking, ranking
from paramsym.recording.graph import Call, Value, values_in
from paramsym.recording.in_place import Written

_ENTRYWISE = {
    "add", "sub", "mul", "div", "relu", "silu", "gelu", "sigmoid", "tanh", "leaky_relu", "square",
    "neg", "abs", "exp", "pow", "clamp", "softplus", "elu", "to", "float", "double", "clone",
    "contiguous", "relu6", "hardtanh", "mish",
}  # fmt: skip
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Places(Dense):
    """Tensors with an axis for the places of a ranking, with one for all units instead."""

    def along(self, x: Value, axis: int) -> Value | None:
        """A tensor whose axis counts places, at all units."""
        if len(x.shape) == len(self.of.scores.shape) and axis == self.of.dim:
            found = self.value(x)
            if found is not None:
                return found
        call = x.call
        if x.storage != x.id:
            return self._lengthened(x, axis)
        if call is None or len(call.outputs) != 1 or not is_real(x):
            return None
        if call.name in ("getitem", "index", "embedding"):
            return self._table(call, x, axis)
        if call.name in _ENTRYWISE:
            return self._each(call, x, axis)
        return self._product(call, x, axis) if call.name == "einsum" else None

    def _lengthened(self, x: Value, axis: int) -> Value | None:
        """A view with further axes of one entry."""
        owner = self.context.owner(x)
        long = [k for k, n in enumerate(x.shape) if n > 1]
        if axis not in long or 1 in owner.shape or x.offset != owner.offset:
            return None
        steps = tuple(x.shape[k] for k in long), tuple(x.strides[k] for k in long)
        if steps != (owner.shape, owner.strides):
            return None
        inner = self.along(owner, long.index(axis))
        if inner is None:
            return None
        shape = [1] * len(x.shape)
        for k, n in zip(long, inner.shape, strict=True):
            shape[k] = n
        return self.made(torch.reshape, (inner, tuple(shape)), tuple(shape), x)

    def _table(self, call: Call, x: Value, axis: int) -> Value | None:
        """Rows of a tensor at the chosen positions: all rows, the same for all tokens."""
        table, positions = call.args[:2] if len(call.args) == 2 else (None, None)
        if call.name == "embedding":
            table, positions = positions, table
        if isinstance(positions, (tuple, list)):
            positions = positions[0] if len(positions) == 1 else None
        if not isinstance(table, Value) or not isinstance(positions, Value) or call.kwargs:
            return None
        found, of = ranking(self.context, positions), self.of
        if found is None or found.positions != of.positions or axis != of.dim:
            return None
        before = (1,) * of.dim
        if of.dim != len(of.scores.shape) - 1 or table.shape[0] != of.scores.shape[-1]:
            return None
        shape, steps = before + table.shape, (table.shape[0] * table.strides[0],) * of.dim
        view = self.context.value(
            shape, table, view=table, strides=steps + table.strides, offset=table.offset
        )
        self.calls.append(self.context.call(torch.reshape, (table, shape), view))
        return view

    def _each(self, call: Call, x: Value, axis: int) -> Value | None:
        changed: dict[int, Value] = {}
        for item in call.operands:
            at = axis - len(x.shape) + len(item.shape)
            if at >= 0 and item.shape[at] > 1:
                found = self.along(item, at)
                if found is None:
                    return None
                changed[item.id] = found
        if not changed or any(isinstance(a, (tuple, list)) for a in call.args):
            return None
        shape = torch.broadcast_shapes(*(changed.get(v.id, v).shape for v in call.operands))
        args = tuple(changed.get(a.id, a) if isinstance(a, Value) else a for a in call.args)
        target = call.target
        if isinstance(target, Written):  # what is written may be the same for all tokens
            target = getattr(torch, call.name)
        return self.made(target, args, tuple(shape), x, name=call.name, **call.kwargs)

    def _product(self, call: Call, x: Value, axis: int) -> Value | None:
        """An einsum that keeps the axis of places."""
        found = spelled(call)
        if found is None:
            return None
        labels, operands, wanted = found
        made = self.operands(labels, operands, wanted[axis])
        if made is None:
            return None
        shape = _shape(labels, made, wanted)
        return self.made(torch.einsum, (f"{','.join(labels)}->{wanted}", *made), shape, x)

    def operands(self, labels: list[str], operands: Any, c: str) -> list[Value] | None:
        """The operands of an einsum, those with the letter of the places at all units."""
        made = []
        for ls, value in zip(labels, operands, strict=True):
            found = self.along(value, ls.index(c)) if c in ls else value
            if found is None:
                return None
            made.append(found)
        return made

    def masked(self, x: Value, axis: int) -> Value | None:
        """A tensor at all units that is zero where they are not chosen."""
        mask, of = self.mask, self.of
        if axis != of.dim or any(x.shape[d] not in (1, mask.shape[d]) for d in range(of.dim + 1)):
            return None
        if of.dim != len(mask.shape) - 1 or x.shape[axis] != mask.shape[axis]:
            return None
        shape = mask.shape + (1,) * (len(x.shape) - len(mask.shape))
        if len(shape) > len(mask.shape):
            mask = self.made(torch.reshape, (mask, shape), shape, dtype=torch.bool)
        whole = tuple(torch.broadcast_shapes(shape, x.shape))
        return self.made(torch.where, (mask, x, 0), whole, x)


def _shape(labels: list[str], operands: Sequence[Value], wanted: str) -> tuple[int, ...]:
    sizes: dict[str, int] = {}
    for ls, value in zip(labels, operands, strict=True):
        for c, n in zip(ls, value.shape, strict=True):
            sizes[c] = max(n, sizes.get(c, 1))
    return tuple(sizes[c] for c in wanted)


def gathered(context: Context, call: Call) -> list[Call] | None:
    """A sum over the places of a ranking at which weights were gathered."""
    read = _factors(call)
    if read is None or not is_real(*read[1], call.outputs[0]):
        return None
    labels, operands, wanted = read
    sizes = {c: n for ls, v in zip(labels, operands, strict=True)
             for c, n in zip(ls, v.shape, strict=True)}  # fmt: skip
    for of in _rankings(context):
        for c in sorted(sizes.keys() - set(wanted)):
            if sizes[c] == of.k > 1 and _reads_table(operands, of):
                made = _summed(context, of, (labels, operands, wanted), c, call)
                if made is not None:
                    return made
    return None


Factors = tuple[list[str], Sequence[Value], str]


def _factors(call: Call) -> Factors | None:
    """A contraction as an einsum: one that was written so, or a product that is summed."""
    if call.name == "einsum":
        return spelled(call)
    product, out = call.operands[0], call.outputs[0]
    made = product.call if product.storage == product.id else None
    if made is None or made.name != "mul" or made.kwargs or len(made.operands) != 2:
        return None
    letters = _LETTERS[: len(product.shape)]
    dims = axes(argument(call, 1, "dim", "axis"), len(product.shape))
    wanted = "".join(c for d, c in enumerate(letters) if d not in dims)
    if len(out.shape) != len(wanted):
        return None
    return [letters[len(letters) - len(v.shape) :] for v in made.operands], made.operands, wanted


def _rankings(context: Context) -> list[Ranking]:
    """The choices of several entries by rank along the last axis, by `topk`."""
    found = []
    for call in context.named["topk"]:
        of = ranking(context, [*values_in(call.result)][-1])
        if of is not None and of.dim == len(of.scores.shape) - 1:
            found.append(of)
    return found


_STEPS = 24


def _reads_table(operands: Sequence[Value], of: Ranking) -> bool:
    """Whether something was gathered at the positions of a ranking, not far upstream."""
    stack, seen = [*operands], set()
    while stack and len(seen) < _STEPS:
        value = stack.pop()
        if value.id in seen or value.call is None:
            continue
        seen.add(value.id)
        if value.call.name in ("getitem", "index", "embedding"):
            if any(v.storage == of.positions[0] for v in value.call.operands):
                return True
        stack.extend(value.call.operands)
    return False


def _summed(
    context: Context, of: Ranking, factors: Factors, c: str, call: Call
) -> list[Call] | None:
    labels, operands, wanted = factors
    places = Places(context, of)
    made = places.operands(labels, operands, c)
    if made is None:
        return None
    for k in sorted(range(len(made)), key=lambda k: math.prod(made[k].shape)):
        if c in labels[k] and (found := places.masked(made[k], labels[k].index(c))) is not None:
            made[k] = found
            break
    else:
        return None
    out = call.outputs[0]
    if _shape(labels, made, wanted) != out.shape:
        return None
    rest = list(zip(labels, made, strict=True))
    if len(rest) > 2:
        return [*places.calls, *pairwise(context, rest, wanted, out)]
    equation = f"{','.join(labels)}->{wanted}"
    return [*places.calls, context.call(torch.einsum, (equation, *made), out)]

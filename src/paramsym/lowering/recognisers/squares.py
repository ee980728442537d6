"""Sums of squares and products, term by term: Σ_f (a_f² − b_f²) is Σ_f a_f² − Σ_f b_f².

So factorisation machines are written, whose pairwise products are a square of a sum less a sum of
squares:

    ((x @ v) ** 2 - x**2 @ v**2).sum(1)     ((e.sum(1)) ** 2 - (e**2).sum(1)).sum(1)

Each term by itself is an inner product along f, in which the basis may change; where f is summed
after a matrix product or another sum, it is summed in the factor that carries it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from paramsym.lowering.recognisers.context import Context, argument, axes, is_real
from paramsym.lowering.recognisers.contractions import contraction
from paramsym.recording.graph import Call, Value


def squares(context: Context, call: Call) -> list[Call] | None:
    """A sum over sums and differences of squares and products, each summed by itself."""
    value, out = argument(call, 0, "input", "self"), call.outputs[0]
    if not isinstance(value, Value) or not is_real(value, out):
        return None
    terms = _Terms(context, out)
    total = terms.summed(value, axes(argument(call, 1, "dim", "axis"), len(value.shape)))
    if total is None or not terms.split:
        return None
    return [*terms.calls, context.call(torch.reshape, (total, out.shape), out)]


class _Terms:
    """The calls that sum each term by itself, and whether there were several in one sum."""

    def __init__(self, context: Context, like: Value):
        self.context = context
        self.like = like
        self.calls: list[Call] = []
        self.split = False

    def summed(self, value: Value, dims: Sequence[int]) -> Value | None:
        """A value summed over axes, which stay with one entry; None for other than squares."""
        found = self.context.multiple(value)
        assert found is not None
        term, factor = found
        call = self.context.writer(term) if term.storage == term.id else None
        if call is None or not is_real(term, self.like):
            return None
        total = self._written(call, term, dims)
        if total is None or factor == 1:
            return total
        return self._made(torch.mul, (total, factor), total.shape)

    def _written(self, call: Call, term: Value, dims: Sequence[int]) -> Value | None:
        """What a call wrote, summed."""
        if call.kwargs.get("alpha", 1) != 1 or {"out", "dtype"} & call.kwargs.keys():
            return None
        if call.name in ("add", "sub"):
            return self._sum(call, term, dims)
        if call.name == "sum":
            return self._other_order(call, term, dims)
        if call.name in ("matmul", "mm"):
            return self._product(call, term, dims)
        if call.name in ("pow", "square", "mul"):
            return self._square(call, term, dims)
        return None

    def _sum(self, call: Call, term: Value, dims: Sequence[int]) -> Value | None:
        """Both terms, where both vary along all that is summed."""
        if len(call.args) != 2 or not all(_covers(x, term, dims) for x in call.args):
            return None
        self.split = True
        found = [self.summed(x, dims) for x in call.args]
        if found[0] is None or found[1] is None:
            return None
        shape = torch.broadcast_shapes(found[0].shape, found[1].shape)
        return self._made(torch.add if call.name == "add" else torch.sub, tuple(found), shape)

    def _other_order(self, call: Call, term: Value, dims: Sequence[int]) -> Value | None:
        """A sum of sums, in the other order."""
        source = argument(call, 0, "input", "self")
        if not isinstance(source, Value):
            return None
        first = axes(argument(call, 1, "dim", "axis"), len(source.shape))
        kept = len(source.shape) == len(term.shape)
        places = [k for k in range(len(source.shape)) if kept or k not in first]
        inner = self.summed(source, [places[d] for d in dims])
        if inner is None:
            return None
        shape = [1 if d in dims else n for d, n in enumerate(term.shape)]
        return self._made(torch.sum, (inner, first, kept), shape)

    def _product(self, call: Call, term: Value, dims: Sequence[int]) -> Value | None:
        """x @ y, where the columns of y are summed: x @ (y summed)."""
        x, y = (*call.args, None, None)[:2]
        if not isinstance(x, Value) or not isinstance(y, Value) or len(y.shape) < 2:
            return None
        if len(x.shape) < 2 or [*dims] != [len(term.shape) - 1]:
            return None
        right = self.summed(y, [len(y.shape) - 1])
        if right is None:
            return None
        return self._made(torch.matmul, (x, right), (*term.shape[:-1], 1))

    def _square(self, call: Call, term: Value, dims: Sequence[int]) -> Value | None:
        """A square, or a product as a contraction."""
        if call.name == "pow" and (len(call.args) != 2 or self.context.number(call.args[1]) != 2):
            return None
        shape = [1 if d in dims else n for d, n in enumerate(term.shape)]
        total = self.context.value(shape, self.like)
        made = self.context.call(torch.sum, (term, [*dims], True), total)
        calls = contraction(self.context, made) or [made]
        total.call = calls[-1]  # the one that is kept, from which liveness goes on
        self.calls += calls
        return total

    def _made(
        self, target: Callable[..., Any], args: tuple[Any, ...], shape: Sequence[int]
    ) -> Value:
        out = self.context.value(shape, self.like)
        self.calls.append(self.context.call(target, args, out))
        return out


def _covers(x: object, whole: Value, dims: Sequence[int]) -> bool:
    """Whether a term has an own entry at each place along the axes of a sum."""
    if not isinstance(x, Value) or len(x.shape) != len(whole.shape):
        return False
    return all(x.shape[d] == whole.shape[d] and (x.strides[d] or x.shape[d] == 1) for d in dims)

"""What a graph does with the k values of a ranking, at all units, with a mask of the chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from paramsym.lowering.recognisers.context import CASTS, COPIES, Context, argument, axes
from paramsym.lowering.recognisers.rankings import Ranking, ranking
from paramsym.lowering.recognisers.ties import may_tie
from paramsym.recording.graph import Call, Value


def chosen(scores: torch.Tensor, k: int, dim: int, ties: bool = False) -> torch.Tensor:
    """Where the k largest entries along an axis are; of equal ones those that `topk` gives.

    `ties` says that entries may be equal for many inputs.
    """
    mask = torch.zeros_like(scores, dtype=torch.bool)
    return mask.scatter(dim, scores.topk(k, dim).indices, True)


class Dense:
    """Writes, at all units, what a graph does with the values of one ranking."""

    def __init__(self, context: Context, of: Ranking):
        self.context, self.of = context, of
        self.calls: list[Call] = []
        ranked = of.scores
        if not of.largest:
            ranked = self.made(torch.neg, (ranked,), ranked.shape)
        self.mask = self.made(
            chosen, (ranked, of.k, of.dim, may_tie(context, of.scores)), ranked.shape,
            dtype=torch.bool,
        )  # fmt: skip

    def made(
        self, target: Callable[..., Any], args: tuple[Any, ...], shape: tuple[int, ...],
        like: Value | None = None, dtype: torch.dtype | None = None, **kwargs: Any,
    ) -> Value:  # fmt: skip
        """The result of one more call."""
        out = self.context.value(shape, like or self.of.scores)
        out.dtype = dtype or out.dtype
        self.calls.append(self.context.call(target, args, out, **kwargs))
        return out

    def filled(self, x: Value, fill: float) -> Value:
        """A tensor where the units are chosen, and a number elsewhere."""
        return self.made(torch.where, (self.mask, x, fill), x.shape, x)

    def value(self, x: Any) -> Value | None:
        """A function of the chosen values, at all units; None where it is none that is known."""
        of, context = self.of, self.context
        if not isinstance(x, Value) or len(x.shape) != len(of.scores.shape):
            return None
        dim, shape = of.dim, of.scores.shape
        if (x.shape[:dim], x.shape[dim + 1 :]) != (shape[:dim], shape[dim + 1 :]):
            return None
        if context.content(x) == of.values:
            return of.scores if of.keeps else None
        if x.storage != x.id:
            return None
        call = x.call  # as it was recorded
        if call is None or len(call.outputs) != 1 or not call.operands:
            return None
        read = _STEPS.get(call.name)
        return None if read is None else read(self, call, x)

    def _cast(self, call: Call, x: Value) -> Value | None:
        if call.operands[0].shape != x.shape:
            return None
        source = self.value(call.operands[0])
        return None if source is None else self._as(source, x)

    def _as(self, source: Value, x: Value) -> Value:
        """A tensor in the precision of another."""
        if source.dtype == x.dtype:
            return source
        return self.made(torch.Tensor.to, (source, x.dtype), source.shape, x)

    def _entrywise(self, call: Call, x: Value) -> Value | None:
        source = self.value(call.operands[0])
        if source is None:
            return None
        return self.made(getattr(torch, call.name), (source,), source.shape, x)

    def _gathered(self, call: Call, x: Value) -> Value | None:
        """Another tensor of the same units, read at the chosen positions."""
        places = (1, 2) if call.name == "take_along_dim" else (2, 1)
        positions = argument(call, places[0], "indices", "index")
        dim = argument(call, places[1], "dim")
        source, of = call.operands[0], self.of
        found = ranking(self.context, positions)
        if found is None or found.positions != of.positions or not isinstance(dim, int):
            return None
        same = dim % len(of.scores.shape) == of.dim and source.shape == of.scores.shape
        return source if same else None

    def _softmax(self, call: Call, x: Value) -> Value | None:
        dim = argument(call, 1, "dim")
        source = self.value(call.operands[0])
        if source is None or not isinstance(dim, int) or dim % len(x.shape) != self.of.dim:
            return None
        hidden = self.filled(self._as(source, x), -torch.inf)
        return self.made(torch.softmax, (hidden, self.of.dim), hidden.shape, x)

    def _combined(self, call: Call, x: Value) -> Value | None:
        """A product, quotient or sum with what is the same for all positions."""
        if call.kwargs or len(call.args) != 2:
            return None
        first, second = call.args
        target = getattr(torch, call.name)
        source = self.value(first)
        if source is None and call.name != "div":
            first, second = second, first
            source = self.value(first)
        if source is None:
            return None
        other = second if isinstance(second, (int, float)) else self._common(second)
        if other is None:
            return None
        return self.made(target, (source, other), source.shape, x)

    def _common(self, x: Any) -> Value | None:
        """A tensor that is the same for all positions: a sum over them, for one."""
        along = self.of.dim - len(self.of.scores.shape)
        if not isinstance(x, Value) or (len(x.shape) >= -along and x.shape[along] != 1):
            return None
        call = x.call
        if x.storage != x.id or call is None or len(call.outputs) != 1 or not call.operands:
            return x
        if call.name == "sum" and (source := self.value(call.operands[0])) is not None:
            return self._total(call, source, x)
        numbers = (*call.args[1:], *call.kwargs.values())
        if call.name not in ("add", "clamp", "clamp_min") or len(call.operands) > 1:
            return x
        inner = self._common(call.operands[0])
        if inner is None or not all(isinstance(n, (int, float)) for n in numbers):
            return x
        return self.made(
            getattr(torch, call.name), (inner, *call.args[1:]), x.shape, x, **call.kwargs
        )

    def _total(self, call: Call, source: Value, x: Value) -> Value | None:
        """The sum over all positions."""
        dims = axes(argument(call, 1, "dim", "axis"), len(source.shape))
        keeps = argument(call, 2, "keepdim", default=False) is True
        if dims != [self.of.dim] or not keeps or call.kwargs.get("dtype") is not None:
            return None
        return self.made(torch.sum, (self.filled(source, 0), self.of.dim, True), x.shape, x)


_Step = Callable[[Dense, Call, Value], Value | None]
_STEPS: dict[str, _Step] = {
    **dict.fromkeys(COPIES | CASTS, Dense._cast),
    **dict.fromkeys(("sigmoid", "tanh", "exp", "relu", "neg"), Dense._entrywise),
    **dict.fromkeys(("gather", "take_along_dim"), Dense._gathered),
    **dict.fromkeys(("mul", "div", "add"), Dense._combined),
    "softmax": Dense._softmax,
}

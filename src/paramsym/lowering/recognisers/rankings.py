"""Choices by rank: which positions a graph computes by `topk`, `sort`, `max` and their like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paramsym.lowering.recognisers.context import Content, Context, argument, is_real
from paramsym.recording.graph import Call, Value, values_in

Read = tuple[Any, Any, bool]  # how many, along which axis, and whether the largest


@dataclass(frozen=True)
class Ranking:
    """The k largest (or least) `scores` along an axis, and where their values and positions stand.

    Both lose the axis if they are those of the one largest entry (`keeps`).
    """

    scores: Value
    k: int
    dim: int
    values: Content | None
    positions: Content
    keeps: bool = True
    largest: bool = True


def ranking(context: Context, positions: Any) -> Ranking | None:
    """The choice by rank that a tensor of positions is, copies aside."""
    if not isinstance(positions, Value):
        return None
    found = context.uncast(positions)
    owner = context.owner(found)
    call = owner.call
    results = [] if call is None else [*values_in(call.result)]
    if call is None or call.name not in _RANKS or owner is not results[-1]:
        return None
    scores, read = call.operands[0], _RANKS[call.name](call)
    if scores.id not in context.moving or not is_real(scores) or not scores.shape or not read:
        return None
    of = _window(scores, read, found, results)
    return of if of is not None and context.content(found) == of.positions else None


def _window(scores: Value, read: Read, found: Value, results: list[Value]) -> Ranking | None:
    k, dim, largest = read
    if not isinstance(dim, int):
        return None
    dim, keeps = dim % len(scores.shape), len(found.shape) == len(scores.shape)
    k = found.shape[dim] if k is None and keeps else k
    if not isinstance(k, int):
        return None
    contents = [_first(value, k, dim, scores) for value in results]
    values = contents[0] if len(results) == 2 else None
    return Ranking(scores, k, dim, values, contents[-1], keeps, largest)


def _first(value: Value, k: int, dim: int, scores: Value) -> Content:
    """The window on the first k entries along an axis, if there is one."""
    shape = value.shape
    if len(shape) == len(scores.shape):
        shape = (*shape[:dim], k, *shape[dim + 1 :])
    return value.storage, shape, value.strides, value.offset


def _of_topk(call: Call) -> Read | None:
    largest = argument(call, 3, "largest", default=True)
    return argument(call, 1, "k"), argument(call, 2, "dim", default=-1), bool(largest)


def _of_sort(call: Call) -> Read | None:
    if call.args[3:] or call.kwargs.keys() - {"input", "dim", "descending"}:
        return None
    down = argument(call, 2, "descending", default=False)
    return None, argument(call, 1, "dim", default=-1), bool(down)


def _of_largest(call: Call) -> Read | None:
    return 1, argument(call, 1, "dim", "axis"), True


_RANKS: dict[str, Callable[[Call], Read | None]] = {
    "topk": _of_topk, "sort": _of_sort, "argsort": _of_sort, "max": _of_largest,
    "argmax": _of_largest,
}  # fmt: skip

"""Marks: positions that are read where and only where an input has one number, such as the padding.

Networks that count their tokens without the padding read one row of a table of positions wherever
they read one row of the table of words, and nowhere else. That follows from how the positions are
computed, whatever the numbers are: each step is known where the input has that number, and bounded
where it has another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from paramsym.primitives.windows import Mark
from paramsym.recording.graph import Call, Graph, Value

_CASTS = {"int", "long", "to", "clone", "contiguous", "detach"}
_WIDE = (torch.int32, torch.int64)  # narrower integers may come round again


@dataclass(frozen=True)
class _Told:
    """What integers are where an input has the number of a mark, and where it has another one.

    `there` is their number in the first case; `low` and `high` are their bounds in the other. What
    is None is not known.
    """

    mark: Mark
    there: int | None
    low: int | None
    high: int | None


def number_read(graph: Graph, index: Value | None) -> int | None:
    """The integers that are positions, entry by entry: an input, or what was made of inputs, such
    as a text that was padded; None if they are others."""
    root = None if index is None else _owner(graph, index)
    while root is not None and root.dtype in _WIDE:
        call = root.call
        if call is None or call.name not in _CASTS:
            return root.id if root.kind in ("input", "activation") else None
        root = _owner(graph, call.operands[0])
    return None


def told_apart(graph: Graph, index: Value | None) -> tuple[int, Mark] | None:
    """A position and its mark: it is read where the input has that number, and nowhere else."""
    told = None if index is None else _told(graph, index)
    if told is None or told.there is None:
        return None
    above = told.low is not None and told.low > told.there
    below = told.high is not None and told.high < told.there
    return (told.there, told.mark) if above or below else None


def _owner(graph: Graph, value: Value) -> Value | None:
    """The value whose entries these are, one by one; None for another view of it."""
    owner = graph.values[value.storage]
    same = (owner.shape, owner.strides, owner.offset) == (value.shape, value.strides, value.offset)
    return owner if same else None


def _told(graph: Graph, value: Value) -> _Told | None:
    owner = _owner(graph, value)
    call = None if owner is None else owner.call
    if owner is None or call is None or any(v.shape != owner.shape for v in call.operands):
        return None
    if owner.dtype not in (torch.bool, *_WIDE):
        return None
    step = _STEPS.get(call.name)
    return None if step is None else step(graph, call)


def _compared(graph: Graph, call: Call) -> _Told | None:
    """x ≠ n, or x = n, as a mask."""
    if len(call.args) != 2 or call.kwargs or not isinstance(call.args[0], Value):
        return None
    number, root = call.args[1], number_read(graph, call.args[0])
    if root is None or isinstance(number, bool) or not isinstance(number, int):
        return None
    inside, outside = (1, 0) if call.name == "eq" else (0, 1)
    return _Told(Mark(root, number), inside, outside, outside)


def _cast(graph: Graph, call: Call) -> _Told | None:
    """The same integers in another type: as truth values only those that were some."""
    first = call.args[0] if call.args else None
    if not isinstance(first, Value):
        return None
    cut = call.outputs[0].dtype == torch.bool != first.dtype
    return None if cut else _told(graph, first)


def _accumulated(graph: Graph, call: Call) -> _Told | None:
    """Sums of what came before, each with its own entry: at least that, if none is negative."""
    told = _cast(graph, call)
    known = len(call.args) + len(call.kwargs) == 2 and call.kwargs.keys() <= {"dim"}
    if told is None or not known or told.there != 0 or told.low is None or told.low < 0:
        return None
    return replace(told, there=None, high=None)


def _added(graph: Graph, call: Call) -> _Told | None:
    return _combined(graph, call, lambda a, b: a + b)


def _multiplied(graph: Graph, call: Call) -> _Told | None:
    """Products of numbers that are nowhere negative; with nothing they are nothing."""
    pair = _pair(graph, call)
    if pair is None or any(t.low is None or t.low < 0 for t in pair):
        return None
    a, b = pair
    there = 0 if 0 in (a.there, b.there) else _both(a.there, b.there, lambda x, y: x * y)
    return _Told(
        a.mark, there, _both(a.low, b.low, lambda x, y: x * y),
        _both(a.high, b.high, lambda x, y: x * y),
    )  # fmt: skip


def _combined(graph: Graph, call: Call, combine: Callable[[int, int], int]) -> _Told | None:
    pair = _pair(graph, call)
    if pair is None:
        return None
    a, b = pair
    return _Told(
        a.mark, _both(a.there, b.there, combine), _both(a.low, b.low, combine),
        _both(a.high, b.high, combine),
    )  # fmt: skip


def _both(a: int | None, b: int | None, combine: Callable[[int, int], int]) -> int | None:
    return None if a is None or b is None else combine(a, b)


def _pair(graph: Graph, call: Call) -> tuple[_Told, _Told] | None:
    """What is told of two operands with one mark; a number is the same everywhere."""
    if len(call.args) != 2 or call.kwargs:
        return None
    told = [_told(graph, x) if isinstance(x, Value) else None for x in call.args]
    known = next((t for t in told if t is not None), None)
    if known is None:
        return None
    for k, x in enumerate(call.args):
        if isinstance(x, int) and not isinstance(x, bool):
            told[k] = _Told(known.mark, x, x, x)
    a, b = told
    return (a, b) if a is not None and b is not None and a.mark == b.mark else None


_STEPS: dict[str, Callable[[Graph, Call], _Told | None]] = {
    "ne": _compared, "eq": _compared, "cumsum": _accumulated, "add": _added, "mul": _multiplied,
} | dict.fromkeys(_CASTS, _cast)  # fmt: skip

"""What a recogniser may ask about a recorded graph, and how it makes calls and values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch

from paramsym.lowering.data import fed_values, moving_values
from paramsym.primitives.tensor import contiguous
from paramsym.recording.graph import Call, Graph, Value

COPIES = {"contiguous", "clone", "alias", "detach", "lift_fresh", "lift_fresh_copy", "positive"}
CASTS = {"to", "type", "type_as", "float", "double", "half", "bfloat16"}
_ZEROS = {"zeros", "zeros_like", "new_zeros"}
_ONES = {"ones", "ones_like", "new_ones"}
_FILLS = {"full": 1, "full_like": 1, "new_full": 2, "tensor": 0, "scalar_tensor": 0}

Content = tuple[int, tuple[int, ...], tuple[int, ...], int]  # storage, and the window on it


class Context:
    """A recorded graph, and what recognisers have made of its calls so far."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.values: list[Value] = []  # new ones
        self.rewritten: dict[int, list[Call]] = {}  # by the id of the recorded call
        self.readings: dict[int, Any] = {}  # values as homogeneous functions, by their ids
        self._writers: dict[int, Call] = {}  # by value, where a call was rewritten

    # -- writing -----------------------------------------------------------------------------
    def rewrite(self, call: Call, made: list[Call]) -> None:
        """Let calls stand for a recorded one; the last of them has its outputs."""
        self.rewritten[id(call)] = made
        for new in made:
            for value in new.outputs:
                self._writers[value.id] = new

    def value(self, shape: Sequence[int], like: Value, view: Value | None = None, **layout: Any):
        """A new tensor of the dtype of another; with `view` a window on the storage of that one."""
        number = len(self.graph.values) + len(self.values)
        made = Value(
            number, tuple(shape), layout.get("strides", contiguous(shape)),
            layout.get("offset", 0), number if view is None else view.storage, like.dtype,
            "activation",
        )  # fmt: skip
        self.values.append(made)
        return made

    def call(
        self, target: Callable[..., Any], args: tuple[Any, ...], out: Value, name: str = "",
        **kwargs: Any,
    ) -> Call:  # fmt: skip
        """The application of a function that gives one tensor."""
        made = Call(-1, name or target.__name__, target, args, kwargs, [out], out)
        out.call = out.call or made
        return made

    # -- reading -----------------------------------------------------------------------------
    @cached_property
    def moving(self) -> set[int]:
        """Ids of the values that depend on a parameter or on a buffer of the state dict."""
        return moving_values(self.graph)

    @cached_property
    def fed(self) -> set[int]:
        """Ids of the recorded values that depend on an input, or on numbers that are drawn."""
        return fed_values(self.graph)

    @cached_property
    def named(self) -> dict[str, list[Call]]:
        """The recorded calls by the name of their operator."""
        found: dict[str, list[Call]] = defaultdict(list)
        for call in self.graph.calls:
            found[call.name].append(call)
        return found

    @cached_property
    def readers(self) -> dict[int, list[Call]]:
        """The recorded calls that read a storage and are no view of it, by its owner."""
        found: dict[int, list[Call]] = defaultdict(list)
        for call in self.graph.calls:
            for storage in {value.storage for value in call.operands}:
                if any(out.storage != storage for out in call.outputs):
                    found[storage].append(call)
        return found

    def readers_of(self, value: Value) -> list[Call]:
        """The recorded calls that read any entry of the storage of a value."""
        return self.readers[value.storage]

    def owner(self, value: Value) -> Value:
        """The tensor whose storage a value looks at."""
        number = value.storage - len(self.graph.values)
        return self.graph.values[value.storage] if number < 0 else self.values[number]

    def is_output(self, value: Value) -> bool:
        """Whether the model returns something of the storage of a value."""
        return any(out.storage == value.storage for out in self.graph.outputs)

    def writer(self, value: Value) -> Call | None:
        """The call that computes a value as a whole, in its newest form."""
        call = self._writers.get(value.id, value.call)
        return call if call is not None and len(call.outputs) == 1 else None

    def written_by(self, name: str, value: Value) -> Call | None:
        """The call of a name that computes a value as a whole, which is no view."""
        call = self.writer(value) if value.storage == value.id else None
        return call if call is not None and call.name == name else None

    def content(self, value: Value) -> Content:
        """What tells whether two tensors are the same numbers in the same shape."""
        seen = self.uncopied(value)
        return seen.storage, seen.shape, seen.strides, seen.offset

    def uncopied(self, value: Value) -> Value:
        """The tensor of which a value is a copy of the same dtype."""
        while value.storage == value.id and (call := self.writer(value)) is not None:
            source = call.operands[0] if call.operands else None
            if source is None or call.name not in COPIES | CASTS:
                break
            if (source.shape, source.dtype) != (value.shape, value.dtype):
                break
            value = source
        return value

    def uncast(self, value: Value) -> Value:
        """The tensor of which a value is a copy, whatever its dtype."""
        while (call := self.writer(value)) is not None and call.name in COPIES | CASTS:
            if not call.operands or call.operands[0].shape != value.shape:
                break
            value = call.operands[0]
        return value

    def number(self, item: Any) -> float | None:
        """The number that all entries of a constant are."""
        if isinstance(item, (int, float)):
            return float(item)
        if not isinstance(item, Value):
            return None
        if item.storage != item.id:
            return self.number(self.owner(item))
        if item.data is not None and item.kind == "constant":
            return _common(item.data)
        call = self.writer(item)
        if call is None:
            return None
        if call.name in _ZEROS:
            return 0.0
        if call.name in _ONES:
            return 1.0
        if call.name in _FILLS:
            given = (*call.args, None, None, None)[_FILLS[call.name]]
            found = call.kwargs.get("fill_value", given)
            return float(found) if isinstance(found, (int, float)) else None
        if call.name in COPIES | CASTS:
            return self.number(call.operands[0])
        found = self._scaled(call)
        whole = None if found is None else self.number(found[0])
        return None if found is None or whole is None else whole * found[1]

    def multiple(self, item: Any) -> tuple[Value, float] | None:
        """A tensor as a number times a tensor that is no such product itself."""
        if not isinstance(item, Value):
            return None
        factor, value = 1.0, self.uncopied(item)
        while value.storage == value.id and (call := self.writer(value)) is not None:
            found = self._scaled(call)
            if found is None or (found[0].shape, found[0].dtype) != (value.shape, value.dtype):
                break
            value, factor = self.uncopied(found[0]), factor * found[1]
        return value, factor

    def _scaled(self, call: Call) -> tuple[Value, float] | None:
        if call.name == "neg":
            return call.operands[0], -1.0
        if call.name not in ("mul", "div") or call.kwargs or len(call.args) != 2:
            return None
        x, y = call.args
        if call.name == "mul" and not isinstance(x, Value):
            x, y = y, x
        by = self.number(y)
        if by is None and call.name == "mul":
            x, y = y, x
            by = self.number(y)
        if by is None or not isinstance(x, Value):
            return None
        if call.name == "div":
            return (x, 1.0 / by) if by else None
        return x, by


def _common(data: torch.Tensor) -> float | None:
    if not data.numel() or data.is_complex() or data.device.type == "meta":
        return None
    first = data.reshape(-1)[0]
    return float(first) if bool((data == first).all()) else None


def argument(call: Call, position: int, *names: str, default: Any = None) -> Any:
    """An argument by position or by one of its names."""
    if position < len(call.args):
        return call.args[position]
    return next((call.kwargs[n] for n in names if n in call.kwargs), default)


def axes(dim: Any, ndim: int) -> list[int]:
    """The axes that an argument of an operator speaks of: all of them if it names none."""
    dims = dim if isinstance(dim, (tuple, list)) else [] if dim is None else [dim]
    return [d % ndim for d in dims if ndim] or list(range(ndim))


def is_real(*values: Any) -> bool:
    """Whether all are tensors of one floating dtype."""
    if not all(isinstance(v, Value) and v.dtype.is_floating_point for v in values):
        return False
    return len({v.dtype for v in values}) == 1

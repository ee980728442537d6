"""The same call on the same tensors gives the same tensor: a graph without repeated calls.

Code calls a layer twice where it needs its output twice, `self.a(x) - self.a(x).mean()`, or an
activation of the conditioning in each of two branches. What is found of two tensors is less than
of one: a shift that both readers share is none if they read twins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from paramsym.recording.graph import Call, Graph, Value
from paramsym.recording.in_place import Written
from paramsym.recording.selecting import draws

_DRAWING = ("dropout", "rrelu", "attention", "lstm", "gru", "rnn", "batch_norm")  # in some modes


def without_repeats(graph: Graph) -> Graph:
    """An equivalent graph in which no call stands twice; the graph itself where none does.

    Args:
        graph: a recorded forward pass, which is not changed.

    Returns:
        A graph with as many values, of which some are not read any more.
    """
    first: dict[Any, Call] = {}
    same: dict[int, int] = {}
    repeated: dict[int, list[Call]] = {}
    features = {value.id for value in graph.values if _is_given(value)}
    for call in graph.calls:
        if not any(value.storage in features for value in call.operands):
            continue  # masks and positions, whose copies for each head need not be tied
        features.update(value.id for value in call.outputs)
        key = _key(call, same)
        if key is None or (known := first.setdefault(key, call)) is call:
            continue
        if list(map(_layout, known.outputs)) == list(map(_layout, call.outputs)):
            same |= {
                new.id: same.get(old.id, old.id)
                for old, new in zip(known.outputs, call.outputs, strict=True)
            }
            repeated[id(call)] = []
    return rewritten(graph, repeated, (), same) if repeated else graph


def _is_given(value: Value) -> bool:
    return value.kind in ("parameter", "buffer", "input") and value.dtype.is_floating_point


def _layout(value: Value) -> tuple[Any, ...]:
    return value.shape, value.strides, value.offset, value.dtype


def _key(call: Call, same: Mapping[int, int]) -> Any:
    """What a call computes, if it gives tensors of its own and always the same."""
    fresh = call.outputs and all(v.storage == v.id and v.kind == "activation" for v in call.outputs)
    if not fresh or isinstance(call.target, Written) or call.target is None:
        return None
    if draws(call) or "::" in call.name or any(part in call.name for part in _DRAWING):
        return None
    try:
        key = call.name, call.target, _plain(call.args, same), _plain(call.kwargs, same)
        hash(key)
    except TypeError:  # an argument that is no number, tensor or structure of them
        return None
    return key


def _plain(item: Any, same: Mapping[int, int]) -> Any:
    """An argument with what tells tensors apart in their place."""
    if isinstance(item, Value):
        return "tensor", same.get(item.storage, item.storage), *_layout(item)
    if isinstance(item, (tuple, list)):
        return type(item), *(_plain(part, same) for part in item)
    if isinstance(item, dict):
        return "dict", *((key, _plain(part, same)) for key, part in item.items())
    if isinstance(item, slice):
        return "slice", *(_plain(part, same) for part in (item.start, item.stop, item.step))
    return type(item), item


def rewritten(
    graph: Graph,
    instead: Mapping[int, list[Call]],
    values: Sequence[Value] = (),
    same: Mapping[int, int] = MappingProxyType({}),
) -> Graph:
    """A graph with other calls in the place of some, on values and calls of its own.

    Args:
        graph: a recorded forward pass, which is not changed.
        instead: calls by the id of the recorded one that they stand for.
        values: new values, whose ids come after those of the graph.
        same: values that are read in the place of others, by their ids; all own their storage.
    """
    made = [
        replace(value, storage=same.get(value.storage, value.storage))
        for value in (*graph.values, *values)
    ]
    read = [made[same.get(value.id, value.id)] for value in made]

    def own(item: Any) -> Any:
        if isinstance(item, Value):
            return read[item.id]
        if isinstance(item, (tuple, list)):
            parts = [own(part) for part in item]
            same = all(a is b for a, b in zip(item, parts, strict=True))
            return item if same else tuple(parts) if isinstance(item, tuple) else parts
        if isinstance(item, dict):
            return {key: own(part) for key, part in item.items()}
        return item

    calls: list[Call] = []
    latest: dict[int, Call] = {}  # by the call that was recorded, or made instead
    for recorded in graph.calls:
        for call in instead.get(id(recorded), [recorded]):
            new = Call(
                len(calls), call.name, call.target, own(call.args), own(call.kwargs),
                own(call.outputs), own(call.result), recorded.where,
            )  # fmt: skip
            calls.append(new)
            latest[id(call)] = latest[id(recorded)] = new
    for value in made:
        if value.call is not None:
            value.call = latest.get(id(value.call))
    return replace(
        graph, values=made, calls=calls,
        parameters={name: read[v.id] for name, v in graph.parameters.items()},
        buffers={name: read[v.id] for name, v in graph.buffers.items()},
        outputs=[read[v.id] for v in graph.outputs],
        written={name: read[v.id] for name, v in graph.written.items()},
    )  # fmt: skip

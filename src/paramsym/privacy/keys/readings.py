"""What a model does with integers: the tables that it reads at them, and nothing else allowed.

The integers may be moved about (viewed, cut, joined among themselves, cast to other integers), they
may be compared with numbers that are held, and their shape may be used. A table that is read at
them is a `Reading`. Anything else is a computation with numbers that stand for tokens, which an
order of the tokens does not commute with.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from paramsym.lowering.builder import Builder
from paramsym.recording.graph import Call, Value, values_in
from paramsym.recording.refusals import TraceError

_MOVES = {
    "to", "long", "int", "type", "clone", "contiguous", "detach", "alias", "view", "reshape",
    "getitem", "narrow", "select", "chunk", "split", "unbind", "expand", "expand_as", "unsqueeze",
    "squeeze", "flatten", "unflatten", "transpose", "permute", "t", "movedim", "repeat", "roll",
    "flip", "index_select", "cat", "stack",
}  # fmt: skip
_JOINS = {"cat", "stack"}
_COMPARES = {"eq", "ne", "__eq__", "__ne__"}
_SHAPES = {
    "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "new_zeros",
    "new_ones", "new_full", "new_empty",
}  # fmt: skip
_PADDING = {"embedding": 2, "embedding_bag": 10}  # the place of padding_idx


@dataclass(frozen=True)
class Reading:
    """A table that is read along one of its axes at the integers in question.

    Attributes:
        table: the value that is read.
        dim: the axis whose units the integers number.
        padding: the number of the row that gets no gradient, if there is one.
        where: the place in the model.
    """

    table: Value
    dim: int
    padding: int | None
    where: str


def readings_of(
    build: Builder, inputs: Collection[Value], held: Collection[int], caller: str
) -> list[Reading]:
    """Every table that the outputs depend on and that is read at some integer inputs.

    Args:
        build: the lowered network.
        inputs: the integers, as values of its graph.
        held: numbers that the integers may be compared with.
        caller: how the call is named in an error.

    Raises:
        TraceError: the network computes with the integers.
    """
    known, found, asked = {value.id for value in inputs}, [], []
    for call in build.graph.calls:
        ids = {v.id for v in call.operands if not known.isdisjoint((v.id, v.storage))}
        if not ids or build.alive.isdisjoint([v.id for v in call.outputs]):
            continue
        if (reading := _reading(call, ids)) is not None:
            found.append(reading)
        elif _moves(call, ids):
            known |= {v.id for v in call.outputs}
        elif call.name not in _SHAPES:
            asked.append(call)
    _require_comparisons(caller, asked, {*held, *(reading.padding for reading in found)})
    return found


def _require_comparisons(caller: str, asked: list[Call], held: Collection[int | None]) -> None:
    """Raise a `TraceError` unless calls only ask which of the integers are one that is held."""
    for call in asked:
        numbers = [item for item in call.args if isinstance(item, int)]
        if call.name in _COMPARES and len(numbers) == 1 and numbers[0] in held:
            continue
        raise TraceError(
            f"{caller}: the model computes with the integers by {call.name!r} at {call.where}, so "
            "that their numbers have a meaning beyond which row of a table is read. A model that "
            "only reads tables at them was expected. Where it compares them with special tokens, "
            "hold these by held=(…); where it makes positions or masks of them, pass positions and "
            "masks as inputs."
        )


def _reading(call: Call, ids: set[int]) -> Reading | None:
    """The table that a call reads at the integers."""
    looked = _LOOKUPS.get(call.name)
    found = looked({**dict(enumerate(call.args)), **call.kwargs}) if looked else None
    if found is None or found[2].id not in ids or sum(v.id in ids for v in call.operands) > 1:
        return None
    table, dim, _ = found
    place = _PADDING.get(call.name, -1)
    padding = call.args[place] if -1 < place < len(call.args) else call.kwargs.get("padding_idx")
    if not isinstance(padding, int) or isinstance(padding, bool):
        return Reading(table, dim, None, call.where)
    return Reading(table, dim, padding % table.shape[dim], call.where)


Given = dict[Any, Any]  # the arguments of a call by position and by name
Lookup = tuple[Value, int, Value]  # table, axis, index


def _of_embedding(given: Given) -> Lookup | None:
    """The table is the floating one of the two, whichever comes first."""
    first, second = given.get(0, given.get("input")), given.get(1, given.get("weight"))
    if not isinstance(first, Value) or not isinstance(second, Value):
        return None
    index, table = sorted((first, second), key=lambda value: value.dtype.is_floating_point)
    return (table, 0, index) if table.dtype.is_floating_point else None


def _of_index_select(given: Given) -> Lookup | None:
    table = given.get(0, given.get("input"))
    dim, index = given.get(1, given.get("dim")), given.get(2, given.get("index"))
    if not (isinstance(table, Value) and isinstance(index, Value) and isinstance(dim, int)):
        return None
    return table, dim % len(table.shape), index


def _of_brackets(given: Given) -> Lookup | None:
    """One tensor in brackets, behind slices alone."""
    table, items = given.get(0, given.get("input")), given.get(1)
    items = items if isinstance(items, (tuple, list)) else (items,)
    found = [(k, item) for k, item in enumerate(items) if isinstance(item, Value)]
    if not isinstance(table, Value) or len(found) != 1:
        return None
    ((at, index),) = found
    return (table, at, index) if all(isinstance(item, slice) for item in items[:at]) else None


_LOOKUPS: dict[str, Callable[[Given], Lookup | None]] = {
    "embedding": _of_embedding, "embedding_bag": _of_embedding, "getitem": _of_brackets,
    "index": _of_brackets, "index_select": _of_index_select,
}  # fmt: skip


def _moves(call: Call, ids: set[int]) -> bool:
    """Whether a call moves the integers about and leaves their numbers."""
    if call.name not in _MOVES or any(v.dtype.is_floating_point for v in call.outputs):
        return False
    joined = list(values_in(call.args[0])) if call.args else []
    inside = [v for v in joined if v.id in ids]
    others = [v for v in values_in((call.args[1:], call.kwargs)) if v.id in ids]
    return not others and (len(inside) == len(joined) if call.name in _JOINS else bool(inside))

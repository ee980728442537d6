"""Tables read at positions that are data: embeddings, indexing, gathering."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from paramsym.lowering.builder import Builder, Tensor
from paramsym.lowering.registry import rule
from paramsym.recording.graph import Call


@rule("embedding")
def embedding(build: Builder, call: Call) -> Tensor | None:
    first, second, _, largest = build.arguments(
        call, "input|weight", "weight|indices", "padding_idx?", "max_norm?"
    )
    if isinstance(largest, (int, float)) and not isinstance(largest, bool):
        return None  # rows that are too long are cut
    integers = first.value is not None and not first.value.dtype.is_floating_point
    table, index = (second, first) if integers else (first, second)
    return build.lookup(table, [0], call.outputs[0].shape, 0, index)


_WHOLE = slice(None)


@rule("getitem")
def getitem(build: Builder, call: Call) -> Tensor | None:
    items = call.args[1]
    return _read(build, call, items if isinstance(items, tuple) else (items,))


@rule("index")
def index(build: Builder, call: Call) -> Tensor | None:
    return _read(build, call, [_WHOLE if item is None else item for item in call.args[1]])


def _read(build: Builder, call: Call, items: Sequence[Any]) -> Tensor | None:
    """x[items], where it is no view."""
    x = build.lift(call.args[0])
    if not x.moves:
        reason = f"data is chosen by what the network computes at {call.where}"
        return build.opaque_call(call, call.outputs, reason)[0]
    picks = _picks([build.lift(item) for item in items], x.ndim)
    if picks is None:
        return None
    dims, indices = [dim for dim, _ in picks], [item for _, item in picks]
    if len(picks) == 1 and (runs := _runs(indices[0], x.shape[dims[0]])):
        return _pieces(build, x, dims[0], runs)
    indices = [build.constant(torch.tensor(i)) if isinstance(i, list) else i for i in indices]
    return build.lookup(x, dims, call.outputs[0].shape, dims[0], *indices)


def _picks(items: Sequence[Any], ndim: int) -> list[tuple[int, Any]] | None:
    """The axes that are read at given positions, with these.

    None unless they are next to each other and all others stay as they are.
    """
    rest = [_WHOLE] * (ndim - len(items) + (Ellipsis in items))
    at = items.index(Ellipsis) if Ellipsis in items else len(items)
    each = [*items[:at], *rest, *items[at + 1 :]]
    picks = [(dim, item) for dim, item in enumerate(each) if item != _WHOLE]
    if not picks or not all(_is_index(item) for _, item in picks):
        return None
    return picks if picks[-1][0] - picks[0][0] == len(picks) - 1 else None


def _is_index(item: Any) -> bool:
    """Whether an item is positions along one axis: a mask covers several."""
    if isinstance(item, Tensor):
        return item.value is None or item.value.dtype not in (torch.bool, torch.uint8)
    return isinstance(item, list)


_PIECES = 64  # rows in a new order are joined from so many runs at most


def _runs(item: Tensor | list[int], size: int) -> list[range]:
    """Runs of positions next to each other on an axis, where the trace captured their numbers.

    Empty if there are many, or if a position is read twice.
    """
    if isinstance(item, Tensor):
        data = item.value.data if item.value and item.value.kind == "constant" else None
        item = data.tolist() if data is not None and data.ndim == 1 else []
    found: list[range] = []
    for i in (i % size for i in item):
        if found and i == found[-1].stop:
            found[-1] = range(found[-1].start, i + 1)
        else:
            found.append(range(i, i + 1))
    once = sum(map(len, found)) == len({i for run in found for i in run})
    return found if once and len(found) <= _PIECES else []


def _pieces(build: Builder, x: Tensor, dim: int, runs: list[range]) -> Tensor:
    """Runs of an axis, one after the other."""
    found = [build.narrow(x, dim, run.start, len(run)) for run in runs]
    return build.concatenate(found, dim) if len(found) > 1 else build.alias(found[0])


@rule("embedding_bag")
def embedding_bag(build: Builder, call: Call) -> Tensor | None:
    """Sums, means or maxima of rows of a table."""
    index, table, _, longest, _, _, mode, _, weights = build.arguments(
        call, "input", "weight", "offsets?", "max_norm?", "norm_type?", "scale_grad_by_freq?",
        "mode", "sparse?", "per_sample_weights?", mode="mean",
    )  # fmt: skip
    if longest is not None or index.moves or not isinstance(mode, str):
        return None
    if weights is not None and weights.moves:
        return None
    table_value = next(v for v in call.operands if build.tensor(v) is table)
    return build.mix(table, [0], call.outputs[0].shape, how="max" if mode == "max" else "linear",
                     **build.again(call, table_value))  # fmt: skip


@rule("index_select", "gather", "take_along_dim")
def gather(build: Builder, call: Call) -> Tensor | None:
    if call.name == "take_along_dim":
        x, index, dim = build.arguments(call, "input|self", "indices", "dim?")
    else:
        x, dim, index = build.arguments(call, "input|self", "dim", "index")
    if call.name == "index_select":
        if x.moves and (runs := _runs(index, x.shape[dim])):
            return _pieces(build, x, dim % x.ndim, runs)
        return build.lookup(x, [dim], call.outputs[0].shape, dim % x.ndim, index)
    if index.moves:
        build.choose(index)
    if not x.moves:
        return build.opaque_call(call, call.outputs, f"it is chosen at {call.where}")[0]
    facts = build.again(call, call.operands[0])
    return build.mix(x, list(range(x.ndim)), call.outputs[0].shape, **facts)


@rule("topk", "sort", "argsort", "argmax", "argmin", "multinomial", "kthvalue")
def rank(build: Builder, call: Call) -> Any:
    """Choices by rank: nothing that they see may change its order or scale."""
    reason = f"choices are made by rank ({call.name}) at {call.where}"
    return build.opaque_call(call, call.outputs, reason)

"""Tables read at positions that are data: embeddings, indexing, gathering."""

from __future__ import annotations

from typing import Any

import torch

from paramsym.recording.graph import Call
from paramsym.tracing.builder import Builder, Tensor
from paramsym.tracing.registry import rule


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


@rule("getitem", "index")
def getitem(build: Builder, call: Call) -> Tensor | None:
    x = build.lift(call.args[0])
    items = call.args[1] if isinstance(call.args[1], (tuple, list)) else (call.args[1],)
    items = [build.lift(item) for item in items]
    if not x.moves:
        reason = f"data is chosen by what the network computes at {call.where}"
        return build.opaque_call(call, call.outputs, reason)[0]
    items = [_constant_positions(item) for item in items]
    if call.name == "index":
        items = [slice(None) if item is None else item for item in items]
    if any(isinstance(item, list) for item in items):
        return _by_list(build, x, items, call)
    used = sum(item is not None and item is not Ellipsis for item in items)
    if call.name == "index":
        used = len(items)
    dims, place, dim = [], None, 0
    simple = True
    for item in items:
        if item is Ellipsis:
            dim += x.ndim - used
        elif item is None and call.name != "index":
            simple = False
        elif item is None or (isinstance(item, slice) and item == slice(None)):
            dim += 1
        elif isinstance(item, Tensor):
            if item.value is not None and not item.value.dtype.is_floating_point and (
                str(item.value.dtype) in ("torch.bool", "torch.uint8")  # a mask
            ):  # fmt: skip
                return None
            place = dim if place is None else place
            dims.append(dim)
            dim += 1
        else:
            simple = False
            dim += 1
    if not simple or not dims or dims != list(range(dims[0], dims[0] + len(dims))):
        return None
    indices = [item for item in items if isinstance(item, Tensor)]
    return build.lookup(x, dims, call.outputs[0].shape, dims[0], *indices)


@rule("embedding_bag")
def embedding_bag(build: Builder, call: Call) -> Tensor | None:
    """Sums, means or maxima of rows of a table."""
    index, table, offsets, longest, _, _, mode = build.arguments(
        call, "input", "weight", "offsets?", "max_norm?", "norm_type?", "scale_grad_by_freq?",
        "mode", mode="mean",
    )  # fmt: skip
    weights = call.kwargs.get("per_sample_weights", call.args[8] if len(call.args) > 8 else None)
    weights = build.lift(weights)
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
        return build.lookup(x, [dim], call.outputs[0].shape, dim % x.ndim, index)
    if index.moves:
        build.choose(index)
    if not x.moves:
        return build.opaque_call(call, call.outputs, f"it is chosen at {call.where}")[0]
    facts = build.again(call, call.operands[0])
    return build.mix(x, list(range(x.ndim)), call.outputs[0].shape, **facts)


def _constant_positions(item: Any) -> Any:
    """A constant vector of positions, where the trace captured its numbers, as a list."""
    value = item.value if isinstance(item, Tensor) else None
    if value is None or value.kind != "constant" or value.data is None:
        return item
    data = value.data
    if data.ndim != 1 or data.is_floating_point():
        return item
    found = [] if str(data.dtype) == "torch.bool" else data.tolist()
    consecutive = bool(found) and found == list(range(found[0], found[0] + len(found)))
    return found if consecutive else item


def _by_list(build: Builder, x: Tensor, items: list, call: Call) -> Tensor | None:
    """One list of consecutive positions is a slice."""
    lists = [(k, item) for k, item in enumerate(items) if isinstance(item, list)]
    if len(lists) != 1 or any(isinstance(i, Tensor) or i is None for i in items):
        return None
    (k, picked), = lists  # fmt: skip
    dim = k if Ellipsis not in items[:k] else x.ndim - (len(items) - k)
    plain = all(i is Ellipsis or i == slice(None) for i in items if not isinstance(i, list))
    picked = [i % x.shape[dim] for i in picked]
    if not plain:
        return None
    if picked != list(range(picked[0], picked[0] + len(picked))):
        index = build.constant(torch.tensor(picked))
        return build.lookup(x, [dim], call.outputs[0].shape, dim, index)
    return build.alias(build.narrow(x, dim, picked[0], len(picked)))


@rule("topk", "sort", "argsort", "argmax", "argmin", "multinomial", "kthvalue")
def rank(build: Builder, call: Call) -> Any:
    """Choices by rank: nothing that they see may change its order or scale."""
    reason = f"choices are made by rank ({call.name}) at {call.where}"
    return build.opaque_call(call, call.outputs, reason)

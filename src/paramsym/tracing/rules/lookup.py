"""Tables read at positions that are data: embeddings, indexing, gathering."""

from __future__ import annotations

from typing import Any

from paramsym.tracing.builder import Builder, Tensor, rule
from paramsym.tracing.graph import Call


@rule("embedding")
def embedding(build: Builder, call: Call) -> Tensor | None:
    first, second = build.arguments(call, "input|weight", "weight|indices")
    table, index = (second, first) if not first.moves else (first, second)
    if index.moves:
        return None
    return build.lookup(table, [0], call.outputs[0].shape, 0, index=index)


@rule("getitem", "index")
def getitem(build: Builder, call: Call) -> Tensor | None:
    x = build.lift(call.args[0])
    items = call.args[1] if isinstance(call.args[1], (tuple, list)) else (call.args[1],)
    items = [build.lift(item) for item in items]
    if any(isinstance(item, Tensor) and item.moves for item in items):
        return None
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
                str(item.value.dtype) == "torch.bool"
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
    index = items[-1] if isinstance(items[-1], Tensor) and len(dims) == 1 else None
    return build.lookup(x, dims, call.outputs[0].shape, dims[0], index=index)


@rule("index_select", "gather", "take_along_dim")
def gather(build: Builder, call: Call) -> Tensor | None:
    x, dim, index = build.arguments(call, "input|self", "dim", "index")
    if call.name == "take_along_dim":
        dim, index = index, dim
    if index.moves:
        return None
    if call.name == "index_select":
        return build.lookup(x, [dim], call.outputs[0].shape, dim % x.ndim, index=index)
    return build.mix(x, list(range(x.ndim)), call.outputs[0].shape)


@rule("one_hot", "bincount", "histc")
def data_only(build: Builder, call: Call) -> Any:
    return None

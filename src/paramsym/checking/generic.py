"""Generic inputs of the same kind as the given ones: what a nullity is measured over."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from paramsym.recording.graph import Call, Graph, Value
from paramsym.recording.record import split_inputs

_CASTS = {"to", "long", "int", "clone", "contiguous", "detach"}
_TABLES = {"embedding", "embedding_bag", "index_select", "getitem", "index", "one_hot"}


def table_lengths(graph: Graph) -> dict[int, int]:
    """The number of admissible values of each integer input that indexes a table, by position."""
    inputs = [value for value in graph.values if value.kind == "input"]
    found: dict[int, int] = {}
    for call in graph.calls:
        if call.name not in _TABLES:
            continue
        for index, length in _lookups(call):
            root = _root(graph, index)
            if root is not None and root.kind == "input" and not root.dtype.is_floating_point:
                at = inputs.index(root)
                found[at] = min(length, found.get(at, length))
    return found


def _lookups(call: Call) -> list[tuple[Value, int]]:
    """(index, length of the table) of one call."""
    given = {**dict(enumerate(call.args)), **call.kwargs}
    if call.name in ("embedding", "embedding_bag"):
        pair = [given.get(0, given.get("input")), given.get(1, given.get("weight"))]
        index = next((v for v in pair if v is not None and not v.dtype.is_floating_point), None)
        table = next((v for v in pair if v is not None and v.dtype.is_floating_point), None)
        return [] if index is None or table is None else [(index, table.shape[0])]
    if call.name == "one_hot":
        count = given.get(1, given.get("num_classes", -1))
        index = given.get(0, given.get("tensor"))
        usable = isinstance(index, Value) and isinstance(count, int) and count > 0
        return [(index, count)] if usable else []  # type: ignore[list-item]
    table = given.get(0, given.get("input"))
    if not isinstance(table, Value):
        return []
    if call.name == "index_select":
        dim, index = given.get(1, given.get("dim")), given.get(2, given.get("index"))
        usable = isinstance(index, Value) and isinstance(dim, int)
        return [(index, table.shape[dim])] if usable else []  # type: ignore[index, list-item]
    items = given.get(1)
    items = items if isinstance(items, (tuple, list)) else (items,)
    if any(item is None or item is Ellipsis for item in items):
        return []
    return [
        (item, table.shape[dim])
        for dim, item in enumerate(items)
        if isinstance(item, Value) and item.dtype in (torch.int64, torch.int32)
    ]


def _root(graph: Graph, value: Value) -> Value | None:
    """The input that a value is a view or a cast of."""
    while value.kind != "input":
        owner = graph.values[value.storage]
        if owner is not value:
            value = owner
        elif value.call is not None and value.call.name in _CASTS and value.call.operands:
            value = value.call.operands[0]
        else:
            return None
    return value


def generic_inputs(
    inputs: Any, lengths: dict[int, int], generator: torch.Generator, spread: float = 1.0
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Fresh inputs of the same shapes, as positional and keyword arguments.

    Floating inputs become normal (float64) with a random size, mean and density for each sample,
    so that units are reached on both sides whatever their biases: the size lies between 1/4 and 4,
    times at most `spread` or its inverse, and a share of the entries is cleared. Inputs that look
    like masks (constant, two values only, or not finite) are kept. Integer inputs that index
    a table become random places of it; whatever else there is stays as it was given.
    """
    counter, wide = iter(range(1 << 30)), torch.float64

    def fresh(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        at = next(counter)
        if leaf.is_floating_point():
            if _is_mask(leaf):
                return leaf.detach().double()
            samples = (*leaf.shape[:1], *[1] * (leaf.ndim - 1))
            size, side, density = torch.rand(3, *samples, generator=generator, dtype=wide)
            size = 4 ** (2 * size - 1) * spread ** (2 * side - 1)
            noise = torch.randn(leaf.shape, generator=generator, dtype=wide)
            mean = torch.randn(samples, generator=generator, dtype=wide)
            kept = torch.rand(leaf.shape, generator=generator, dtype=wide) < 2 * density
            return (size * (noise * kept + mean)).to(leaf.device)
        if at in lengths and leaf.dtype != torch.bool:
            drawn = torch.randint(lengths[at], leaf.shape, generator=generator, dtype=leaf.dtype)
            return drawn.to(leaf.device)
        return leaf

    return pytree.tree_map(fresh, split_inputs(inputs))


def _is_mask(tensor: torch.Tensor) -> bool:
    if not bool(tensor.isfinite().all()):
        return True
    return tensor.numel() > 2 and len(tensor.unique()) <= 2

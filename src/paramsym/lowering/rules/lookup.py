"""Tables read at positions that are data: embeddings, indexing, gathering."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from paramsym.lowering.builder import Builder, Tensor
from paramsym.lowering.marks import number_read, told_apart
from paramsym.lowering.registry import rule
from paramsym.lowering.rules.placement import along, varying
from paramsym.primitives import index as ix
from paramsym.recording.graph import Call


@rule("embedding")
def embedding(build: Builder, call: Call) -> Tensor | None:
    first, second, _, largest = build.arguments(
        call, "input|weight", "weight|indices", "padding_idx?", "max_norm?"
    )
    if isinstance(largest, (int, float)) and not isinstance(largest, bool):
        return None  # rows that are too long are cut
    # both orders are spelled; a tensor that was rearranged has no value that says its dtype
    floats = any(x.dtype.is_floating_point for x in call.operands[:1])
    table, index = (first, second) if floats else (second, first)
    made = read_once(build, table, 0, index)
    if made is not None:
        return made
    apart = told_apart(build.graph, index.value)
    read = None if apart is not None else number_read(build.graph, index.value)
    shape, row = call.outputs[0].shape, _row(build, table, index)
    return build.lookup(table, [0], shape, 0, index, read=read, apart=apart, row=row)


def _row(build: Builder, table: Tensor, index: Tensor) -> int | None:
    """The one row that is read everywhere, whatever the inputs are: at positions of the model.

    One position alone may be the first of a text of length one.
    """
    numbers = _held(build, table, index)
    if numbers is None or numbers.numel() < 2:
        return None
    first = int(numbers.reshape(-1)[0])
    return first % table.shape[0] if bool((numbers == first).all()) else None


def read_once(build: Builder, x: Tensor, dim: int, index: Tensor) -> Tensor | None:
    """A table whose every row is read once, at positions that are part of the model: itself.

    Positions may be the same along some of their axes, along which the table is repeated. Rows
    that these positions leave out may be what others read, so that nothing is said of such tables.
    """
    numbers = _held(build, x, index)
    if numbers is None:
        return None
    repeated = [k for k, n in enumerate(numbers.shape) if n > 1 and _is_constant(numbers, k)]
    for k in repeated:
        numbers = numbers.narrow(k, 0, 1)
    positions = [*range(x.shape[dim])]
    order = [i + len(positions) if i < 0 else i for i in numbers.reshape(-1).tolist()]
    if sorted(order) != positions:
        return None
    found = x if order == positions else rearranged(build, x, dim, order)
    if found is None:
        return None
    shape = [*x.shape[:dim], *numbers.shape, *x.shape[dim + 1 :]]
    found = build.reshape(found, shape)
    for k in repeated:
        found = build.expand(build.select(found, dim + k, 0), dim + k, index.shape[k])
    return found


def _held(build: Builder, x: Tensor, index: Tensor) -> torch.Tensor | None:
    """Positions along an axis of a table, if they are part of the model."""
    if not x.moves or x.integral or index.moves or not _is_index(index):
        return None
    return build.fixed.of(index)


def _is_constant(numbers: torch.Tensor, axis: int) -> bool:
    return bool((numbers == numbers.narrow(axis, 0, 1)).all())


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
    if (made := _at_known_places(build, x, dims, indices)) is not None:
        return made
    indices = [build.constant(torch.tensor(i)) if isinstance(i, list) else i for i in indices]
    return build.lookup(x, dims, call.outputs[0].shape, dims[0], *indices)


def _at_known_places(
    build: Builder, x: Tensor, dims: list[int], indices: list[Any]
) -> Tensor | None:
    """What is read at positions of the model, by one index or two, where that is no choice."""
    if len(dims) == 2:
        return _entries(build, x, dims, indices)
    if len(dims) != 1:
        return None
    known = _known(build, indices[0])
    found = None if known is None else rearranged(build, x, dims[0], known)
    if found is None and isinstance(indices[0], Tensor):
        found = read_once(build, x, dims[0], indices[0])
    return found


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


def _known(build: Builder, item: Tensor | list[int]) -> list[int] | None:
    """Positions along one axis, if they are part of the model."""
    if isinstance(item, Tensor):
        numbers = None if item.moves or item.ndim != 1 else build.fixed.of(item)
        return None if numbers is None else numbers.tolist()
    return item if all(isinstance(i, int) for i in item) else None


def rearranged(build: Builder, x: Tensor, dim: int, positions: Sequence[int]) -> Tensor | None:
    """The entries of an axis at known positions, each as the unit that it was.

    They are runs of the axis, one after the other; None if there are too many of them, or none.
    """
    size = x.shape[dim]
    if x.integral:
        return None  # what serves as positions later on keeps its order
    runs: list[range] = []
    for i in (i % size for i in positions):
        if runs and i == runs[-1].stop:
            runs[-1] = range(runs[-1].start, i + 1)
        else:
            runs.append(range(i, i + 1))
    found = [build.narrow(x, dim, run.start, len(run)) for run in runs[:_PIECES]]
    if len(runs) == 1:
        return found[0]
    if not 0 < len(runs) <= _PIECES or all(leaf.frozen for leaf in ix.leaves(x.axes[dim])):
        return None
    return build.concatenate(found, dim)


def _entries(build: Builder, x: Tensor, dims: list[int], indices: list[Any]) -> Tensor | None:
    """Entries of the matrices along two axes at known places, such as those below the diagonal.

    They are runs of rows, one after the other, in which each entry is the unit that it was; this
    says something where rows and columns are units of different kinds, joined one by one.
    """
    rows, columns = (_known(build, index) for index in indices)
    if rows is None or columns is None or len(rows) != len(columns) or x.integral:
        return None
    if any(ix.resolve(x.axes[d]).kind != "sum" for d in dims):
        return None
    runs: list[tuple[int, range]] = []
    for i, j in zip(rows, columns, strict=True):
        i, j = i % x.shape[dims[0]], j % x.shape[dims[1]]
        if runs and runs[-1][0] == i and runs[-1][1].stop == j:
            runs[-1] = i, range(runs[-1][1].start, j + 1)
        else:
            runs.append((i, range(j, j + 1)))
    if not 1 < len(runs) <= _PIECES:
        return None
    chosen = [(build.select(x, dims[0], i), run) for i, run in runs]
    found = [build.narrow(row, dims[0], run.start, len(run)) for row, run in chosen]
    return build.concatenate(found, dims[0])


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


@rule("index_select")
def index_select(build: Builder, call: Call) -> Tensor | None:
    x, dim, index = build.arguments(call, "input|self", "dim", "index")
    dim %= x.ndim
    if x.moves and (known := _known(build, index)) is not None:
        if (made := rearranged(build, x, dim, known)) is not None:
            return made
    return build.lookup(x, [dim], call.outputs[0].shape, dim, index)


@rule("gather", "take_along_dim")
def gather(build: Builder, call: Call) -> Tensor | None:
    """Entries at positions along one axis, which may differ along the others."""
    if call.name == "take_along_dim":
        x, index, dim = build.arguments(call, "input|self", "indices", "dim?")
    else:
        x, dim, index = build.arguments(call, "input|self", "dim", "index")
    shape = call.outputs[0].shape
    facts = build.again(call, call.operands[0])
    aligned = dim is not None and index.ndim == x.ndim and index.value is not None and facts
    if index.moves and not (x.moves and aligned):
        build.choose(index)
    if not x.moves:
        return build.opaque_call(call, call.outputs, f"it is chosen at {call.where}")[0]
    if not aligned:
        return build.mix(x, list(range(x.ndim)), shape, **facts)
    return _gathered(build, x, dim % x.ndim, index, shape, facts)


def _gathered(
    build: Builder, x: Tensor, dim: int, index: Tensor, shape: Sequence[int], facts: dict[str, Any]
) -> Tensor:
    """Entries at positions along one axis, mixed with the axes along which these vary."""
    assert index.value is not None
    dims = varying(build, index.value, dim)
    every = [k for k in range(x.ndim) if shape[k] != x.shape[k] or k in dims]
    numbers = None if index.moves else build.fixed.of(index)
    if dims == [dim] == every and numbers is not None and numbers.numel():
        places = numbers.movedim(dim, 0).reshape(shape[dim], -1)[:, 0].tolist()
        if (made := rearranged(build, x, dim, places)) is not None:
            return made
    kept = tuple(k for k in dims if k != dim and shape[k] == x.shape[k])
    return along(build, x, every, shape, {**facts, "stays": kept}, how="mean")


@rule("topk", "sort", "argsort", "argmax", "argmin", "multinomial", "kthvalue")
def rank(build: Builder, call: Call) -> Any:
    """Choices by rank: nothing that they see may change its order or scale."""
    reason = f"choices are made by rank ({call.name}) at {call.where}"
    return build.opaque_call(call, call.outputs, reason)

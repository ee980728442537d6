"""Selections from what moves, at places that data decides, as readings at given positions.

`x[mask]`, `masked_select`, `repeat_interleave` and the packing of sequences have shapes, or take
steps, that depend on numbers. Where no parameter leads to those, the positions are known, and the
same entries are read by `getitem` or `index_select`: the numbers are the same, bit by bit. What
asks for numbers that do not matter is `spelled` out.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from paramsym.recording.graph import Call
from paramsym.recording.selecting import Selector
from paramsym.recording.spelled import SPELLED

Translated = Callable[[], Any]  # runs under the recorder, so that its calls are recorded


def translated(
    selector: Selector, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Translated | None:
    """The function that stands for a call, or None where it stays as it is.

    Args:
        selector: knows the numbers of data.
        call: as it would be recorded.
        args: its arguments, fake tensors.
        kwargs: likewise by name.

    Raises `TraceError` where what is selected depends on a parameter.
    """
    if call.name in SPELLED:
        return _spelled(SPELLED[call.name], args, kwargs)
    function = _TRANSLATED.get(call.name)
    if function is None:
        return None
    with unset_fake_temporarily():  # positions are numbers
        return function(selector, call, list(args), dict(kwargs))


def _spelled(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Translated | None:
    """The function by what it computes, if it knows these arguments."""
    given = {name: item for name, item in kwargs.items() if item is not None}
    try:
        inspect.signature(function).bind(*args, **given)
    except TypeError:
        return None
    return lambda: function(*args, **given)


def _is_mask(item: Any) -> bool:
    if not isinstance(item, torch.Tensor) or item.dtype not in (torch.bool, torch.uint8):
        return False
    return item.ndim > 0


def _brackets(selector: Selector, call: Call, args: list[Any], kwargs: dict) -> Translated | None:
    """x[…, mask, …]: a mask over several axes is one index for each of them."""
    items = args[1] if isinstance(args[1], tuple) else (args[1],)
    if not any(map(_is_mask, items)):
        return None
    recorded = call.args[1] if isinstance(args[1], tuple) else (call.args[1],)
    found: list[Any] = []
    for item, value in zip(items, recorded, strict=True):
        if _is_mask(item):
            places = selector.numbers(call, value).bool().nonzero(as_tuple=True)
            found += map(selector.constant_of, places)
        else:
            found.append(item)
    return lambda: args[0][tuple(found)]


def _masked_select(
    selector: Selector, call: Call, args: list[Any], kwargs: dict
) -> Translated | None:
    given = {**dict(zip(("input", "mask"), args, strict=False)), **kwargs}
    values = {**dict(zip(("input", "mask"), call.args, strict=False)), **call.kwargs}
    if given.keys() != {"input", "mask"}:
        return None
    x, mask = given["input"], selector.numbers(call, values["mask"])
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    mask = _leading(mask.expand(shape))
    places = tuple(map(selector.constant_of, mask.nonzero(as_tuple=True)))
    return lambda: x.expand(shape)[places].reshape(-1)


def _leading(mask: torch.Tensor) -> torch.Tensor:
    """A mask without its last axes, as far as it is the same along them."""
    while mask.ndim > 1 and bool((mask == mask[..., :1]).all()):
        mask = mask[..., 0]
    return mask


def _masked_scatter(
    selector: Selector, call: Call, args: list[Any], kwargs: dict
) -> Translated | None:
    """Rows of a source in the place of rows of x, as rows of the two, one below the other."""
    names = ("input", "mask", "source")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    values = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
    x, source = given["input"], given["source"]
    if getattr(call.target, "__name__", "").endswith("_") or selector.moves(values["mask"]):
        return None
    mask = selector.numbers(call, values["mask"])
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    mask = _leading(mask.expand(shape))
    rest = shape[mask.ndim :]
    count, size = int(mask.sum()), math.prod(rest)
    if count * size > source.numel() or source.numel() % size or source.dtype != x.dtype:
        return None  # it does not fit, or ends within a row
    places = torch.arange(mask.numel())
    places[mask.reshape(-1)] = mask.numel() + torch.arange(count)
    index = selector.constant_of(places)

    def run() -> torch.Tensor:
        rows = torch.cat([x.expand(shape).reshape(-1, *rest), source.reshape(-1, *rest)])
        return torch.index_select(rows, 0, index).reshape(shape)

    return run


def _write(selector: Selector, call: Call, args: list[Any], kwargs: dict) -> Translated | None:
    """`x[mask] = value`: other numbers where the mask is set, in place."""
    x, index, value = args
    if isinstance(index, tuple) and len(index) == 1:
        index, at = index[0], call.args[1][0]
    else:
        at = call.args[1]
    if not _is_mask(index) or isinstance(index, tuple) or selector.moves(at):
        return None
    rest = x.shape[index.ndim :]
    if isinstance(value, (bool, int, float)) and x.is_floating_point():

        def fill() -> None:
            x.masked_fill_(index.bool().reshape(*index.shape, *[1] * len(rest)), value)

        return fill
    if not isinstance(value, torch.Tensor) or value.dtype != x.dtype:
        return None
    if tuple(value.shape[1:]) != tuple(rest) or value.ndim <= len(rest):
        return None
    mask = selector.numbers(call, at).bool()
    if value.shape[0] != int(mask.sum()):
        return None
    places = torch.arange(mask.numel())
    places[mask.reshape(-1)] = mask.numel() + torch.arange(value.shape[0])
    chosen = selector.constant_of(places)

    def run() -> None:
        rows = torch.cat([x.reshape(-1, *rest), value])
        x.copy_(torch.index_select(rows, 0, chosen).reshape(x.shape))

    return run


def _repeat_interleave(
    selector: Selector, call: Call, args: list[Any], kwargs: dict
) -> Translated | None:
    names = ("input", "repeats", "dim")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    values = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
    if not isinstance(given.get("repeats"), torch.Tensor):
        return None
    x: Any = given.get("input", given.get("self"))
    dim = given.get("dim")
    size = x.numel() if dim is None else x.shape[dim]
    repeats = selector.numbers(call, values["repeats"]).expand(size)
    places = selector.constant_of(torch.arange(size).repeat_interleave(repeats))

    def run() -> torch.Tensor:
        flat = x.reshape(-1) if dim is None else x
        return torch.index_select(flat, dim or 0, places)

    return run


def _pack(selector: Selector, call: Call, args: list[Any], kwargs: dict) -> Translated | None:
    """A padded batch as rows ordered by time: those of all sequences that still go on."""
    x, _, batch_first = args
    lengths = selector.numbers(call, call.args[1])
    times = torch.arange(x.shape[1 if batch_first else 0])
    time, sample = (times[:, None] < lengths[None]).nonzero(as_tuple=True)
    sizes = (times[:, None] < lengths[None]).sum(1)
    sizes = selector.constant_of(sizes[sizes > 0])
    places = [selector.constant_of(t) for t in ((sample, time) if batch_first else (time, sample))]
    return lambda: (x[tuple(places)], sizes)


def _unpack(selector: Selector, call: Call, args: list[Any], kwargs: dict) -> Translated | None:
    """Rows ordered by time as a padded batch; what is beyond a sequence reads one more row."""
    data, _, batch_first, padding, longest = args
    sizes = selector.numbers(call, call.args[1]).tolist()
    steps = max(longest, len(sizes))
    places = torch.full((steps, sizes[0]), data.shape[0])
    start = 0
    for time, size in enumerate(sizes):
        places[time, :size] = torch.arange(start, start + size)
        start += size
    lengths = selector.constant_of((places < data.shape[0]).sum(0))
    index = selector.constant_of(places.T.contiguous() if batch_first else places)

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        rest = data.new_full((1, *data.shape[1:]), padding)
        return torch.cat([data, rest])[index], lengths

    return run


_TRANSLATED: Mapping[str, Callable[..., Translated | None]] = {
    "getitem": _brackets, "masked_select": _masked_select,
    "masked_scatter": _masked_scatter, "setitem": _write, "repeat_interleave": _repeat_interleave,
    "_pack_padded_sequence": _pack, "_pad_packed_sequence": _unpack,
}  # fmt: skip

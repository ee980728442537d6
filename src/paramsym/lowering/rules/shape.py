"""Operators that move entries without changing them, where torch copies instead of viewing."""

from __future__ import annotations

import math
from typing import Any

import torch

from paramsym.lowering.builder import Builder, Tensor
from paramsym.lowering.recognisers.context import axes
from paramsym.lowering.registry import rule
from paramsym.lowering.rules.fourier import real_part
from paramsym.lowering.rules.lookup import rearranged
from paramsym.primitives import index as ix
from paramsym.recording.graph import Call
from paramsym.recording.layout import Box, Window, box_of, compact_strides


@rule(
    "reshape", "flatten", "view", "unflatten", "squeeze", "unsqueeze", "reshape_as", "view_as",
    "ravel",
)  # fmt: skip
def reshape(build: Builder, call: Call) -> Tensor | None:
    (x,) = build.arguments(call, "input|self")
    if call.operands[0].dtype != call.outputs[0].dtype:  # bits read as other numbers
        return None
    return build.reshape(x, call.outputs[0].shape)


@rule(
    "contiguous", "clone", "to", "float", "double", "half", "bfloat16", "alias", "detach", "cpu",
    "cuda", "type", "lift_fresh_copy", "copy", "data", "lift_fresh", "requires_grad", "type_as",
    "positive", "identity", "real", "resolve_neg", "lift",
)  # fmt: skip
def copy(build: Builder, call: Call) -> Tensor | None:
    written = call.args[1:] if call.name == "copy" else ()  # x.copy_(y): the numbers of y
    x = build.lift(written[0]) if written else build.arguments(call, "input|self")[0]
    kind = call.outputs[0].dtype
    if not isinstance(x, Tensor):
        return None
    if x.value is not None and x.value.dtype.is_complex != kind.is_complex:
        return real_part(build, call, x) if call.name == "real" else None
    if x.value is not None and x.value.dtype.is_floating_point and not kind.is_floating_point:
        x = build.unary(x, None, name="round", compute=lambda t: t.to(kind))
    if written:
        return build.same([x], call.outputs[0].shape)
    return x if x.base is not None and x.nodes is None else build.alias(x)  # a window, or a copy


@rule("expand", "expand_as", "broadcast_to")
def expand(build: Builder, call: Call) -> Tensor:
    """Copies along new axes and those of length one, where torch gives no view on typed memory."""
    (x,) = build.arguments(call, "input|self")
    return build.same([x], call.outputs[0].shape)


@rule("cat")
def concatenate(build: Builder, call: Call) -> Tensor:
    tensors, dim = build.arguments(call, "tensors", "dim|axis", dim=0)
    tensors = [t for t in tensors if math.prod(t.shape)]
    return build.concatenate(tensors, dim)


@rule("stack")
def stack(build: Builder, call: Call) -> Tensor:
    tensors, dim = build.arguments(call, "tensors", "dim", dim=0)
    dim %= tensors[0].ndim + 1
    shape = list(tensors[0].shape)
    shape.insert(dim, 1)
    return build.concatenate([build.reshape(t, shape) for t in tensors], dim)


@rule("repeat_interleave")
def repeat_interleave(build: Builder, call: Call) -> Tensor | None:
    x, repeats, dim = build.arguments(call, "input|self", "repeats", "dim?")
    if not isinstance(repeats, int) or dim is None:
        return None
    return repeat_entries(build, x, repeats, dim)


def repeat_entries(build: Builder, x: Tensor, repeats: int, dim: int) -> Tensor:
    """Each entry of an axis `repeats` times in a row."""
    dim %= x.ndim
    wide = build.alias(build.expand(x, dim + 1, repeats))
    shape = [n * repeats if k == dim else n for k, n in enumerate(x.shape)]
    return build.reshape(wide, shape)


@rule("repeat", "tile")
def repeat(build: Builder, call: Call) -> Tensor:
    (x,) = build.arguments(call, "input|self")
    shape = call.outputs[0].shape
    x = build.reshape(x, (1,) * (len(shape) - x.ndim) + x.shape)
    for k, n in enumerate(shape):
        if n != x.shape[k]:
            wide = build.alias(build.expand(x, k, n // x.shape[k]))
            x = build.reshape(wide, (*x.shape[:k], n, *x.shape[k + 1 :]))
    return x


@rule("pad", "constant_pad_nd", "zero_pad2d")
def pad(build: Builder, call: Call) -> Tensor:
    x, widths, *_ = build.arguments(call, "input|self", "pad", "mode?")
    mode = call.kwargs.get("mode", "constant")
    value = call.kwargs.get("value", 0.0)
    for item in call.args[2:]:
        mode, value = (item, value) if isinstance(item, str) else (mode, item)
    dims = [x.ndim - 1 - k // 2 for k in range(0, len(widths), 2) if any(widths[k : k + 2])]
    if mode == "constant":
        value = float(value or 0)
        if value:
            x = build.unary(x, None, name="pad", compute=torch.clone)
        return pad_with(build, x, list(widths), value)
    facts = build.again(call, call.operands[0])
    return build.mix(x, dims, call.outputs[0].shape, how="mean", **facts)


def pad_with(build: Builder, x: Tensor, widths: list[int], value: float = 0.0) -> Tensor:
    """Join a constant to both ends of the last axes, innermost first."""
    for k in range(0, len(widths), 2):
        dim = x.ndim - 1 - k // 2
        for width, front in ((widths[k], True), (widths[k + 1], False)):
            if width < 0:
                start = -width if front else 0
                x = build.narrow(x, dim, start, x.shape[dim] + width)
            elif width:
                shape = [width if j == dim else n for j, n in enumerate(x.shape)]
                nodes = [
                    ix.leaf(width, frozen="it is padding") if j == dim else node
                    for j, node in enumerate(x.axes)
                ]
                filled = build.constant(torch.full(shape, value, dtype=torch.float64), nodes)
                filled.zero = not value
                parts = [filled, x] if front else [x, filled]
                x = build.concatenate(parts, dim)
    return x


# where an operator is told its axes, and which they are if it is not
_ALONG: dict[str, tuple[tuple[str, ...], Any]] = {
    "roll": (("shifts", "dims?"), None), "flip": (("dims",), None), "cumsum": (("dim",), None),
    "rot90": (("k", "dims?"), (0, 1)), "diff": (("n?", "dim?"), -1),
    "fliplr": ((), 1), "flipud": ((), 0),
    "fft_fftshift": (("dim?",), ()), "fft_ifftshift": (("dim?",), ()),  # () are all
}  # fmt: skip
_ORDERS = ("roll", "flip", "fliplr", "flipud", "fft_fftshift", "fft_ifftshift")


@rule(*_ALONG)
def rearrange(build: Builder, call: Call) -> Tensor | None:
    """Entries of some axes put elsewhere, or added up."""
    names, otherwise = _ALONG[call.name]
    defaults = {"k": 1} if "k" in names else {}
    x, *told = build.arguments(call, "input|self", *names, **defaults)
    dims = told[-1] if told and told[-1] is not None else otherwise
    if call.name == "flip" and len(call.args) > 2:
        dims = call.args[1:]  # x.flip(0, 1)
    if dims is None or len(call.operands) > 1:
        return None  # all entries in a row; or something is put before or after them
    facts = build.again(call, call.operands[0])
    dims = [d % x.ndim for d in axes(dims, x.ndim)]
    half = call.name == "rot90" and told[0] % 2 == 0
    if (call.name in _ORDERS or half) and facts and not facts["given"] and 0 not in x.shape:
        return _reordered(build, x, dims, facts)
    return build.mix(x, dims, call.outputs[0].shape, **facts)


def _reordered(build: Builder, x: Tensor, dims: list[int], facts: dict[str, Any]) -> Tensor:
    """Each axis in a new order, by what the operator makes of positions along it."""
    kept = x
    for d in dict.fromkeys(dims):
        at = [-1 if k == d else 1 for k in range(x.ndim)]
        places = facts["compute"](torch.arange(x.shape[d]).reshape(at).expand(x.shape))
        order = places.movedim(d, 0).reshape(x.shape[d], -1)[:, 0].tolist()
        kept = rearranged(build, kept, d, order) or _fixed(build, kept, d, order)
    return kept


def _fixed(build: Builder, x: Tensor, dim: int, order: list[int]) -> Tensor:
    """Positions of one axis in a new order, where no unit of it is free or there are too many."""
    places = torch.tensor(order, dtype=torch.long)
    return build.mix(x, [dim], x.shape, "mean", compute=lambda t: t.index_select(dim, places))


@rule("cummax", "cummin")
def running_extremum(build: Builder, call: Call) -> list[Tensor]:
    """The largest or least entry so far along an axis, and where it was."""
    x, dim = build.arguments(call, "input|self", "dim")
    facts = build.again(call, call.operands[0])
    out = build.mix(x, [dim], x.shape, how="max", lifts=True, **facts)
    if call.outputs[1].id not in build.alive:
        return [out, build.frozen(x.shape, "it is a position", moves=False)]
    reason = f"{call.name} returns positions at {call.where}"
    return [out, *build.opaque_call(call, call.outputs[1:2], reason)]


@rule("tril", "triu")
def triangle(build: Builder, call: Call) -> Tensor | None:
    """What lies above or below a diagonal is hidden, as by a mask."""
    x, diagonal = build.arguments(call, "input|self", "diagonal", diagonal=0)
    keep = torch.tril if call.name == "tril" else torch.triu
    mask = build.constant(keep(torch.ones(x.shape[-2:], dtype=torch.bool), diagonal))
    inside = list(range(x.ndim))
    return build.contract(x, mask, inside, inside[-2:], inside, mask=True, keeps=True)


@rule("pixel_shuffle", "pixel_unshuffle", "channel_shuffle")
def pixel_shuffle(build: Builder, call: Call) -> Tensor | None:
    x, r = build.arguments(call, "input|self", "upscale_factor|downscale_factor|groups")
    if x.ndim != 4:
        return None
    batch, c, h, w = x.shape
    split, order = {
        "channel_shuffle": ((batch, r, c // r, h, w), [0, 2, 1, 3, 4]),
        "pixel_shuffle": ((batch, c // r**2, r, r, h, w), [0, 1, 4, 2, 5, 3]),
        "pixel_unshuffle": ((batch, c, h // r, r, w // r, r), [0, 1, 3, 5, 2, 4]),
    }[call.name]
    return build.reshape(build.permute(build.reshape(x, split), order), call.outputs[0].shape)


@rule("fill", "zero")
def fill(build: Builder, call: Call) -> Tensor:
    """Every entry becomes one number, or the entry of a scalar tensor."""
    item = build.lift(call.args[1]) if len(call.args) > 1 else call.kwargs.get("value", 0)
    shape = call.outputs[0].shape
    if isinstance(item, Tensor):
        return build.same([item], shape)
    nodes = [ix.leaf(n, frozen="it is a constant") for n in shape]
    made = build.constant(torch.tensor(item, dtype=torch.float64).expand(shape), nodes)
    made.zero = item == 0
    return made


@rule("partial_write")
def partial_write(build: Builder, call: Call) -> Tensor:
    """A window is replaced: what lies around it in each digit is joined with the new part."""
    owner, written, window = call.args
    box = box_of(Window(*window), owner)
    whole, part = build.tensor(owner), build.tensor(written)
    if box is None:
        reason = f"a write at {call.where} goes through a window that cuts across the units"
        return build.opaque_call(call, call.outputs, reason)[0]
    if sum(n < whole for n, whole in zip(box.counts, box.radices, strict=True)) > 1 and (
        _writes_like(build, call) > _WINDOWS
    ):
        reason = f"too many windows of a matrix are written one by one at {call.where}"
        return build.opaque_call(call, call.outputs, reason)[0]
    read = (whole.strides, whole.offset)
    if whole.base is not None or read != (owner.strides, owner.offset):  # a copy read as a view
        whole = build.alias(whole)
        whole.strides, whole.offset = compact_strides(owner), owner.offset
    grid = build.view(whole, box.radices, box.units, owner.offset)
    piece = build.view(part, box.counts, box.inside, part.offset)
    made = _put(build, grid, piece, box, 0)
    if made is piece:
        made = build.alias(piece)
    return build.view(made, owner.shape, compact_strides(owner), made.offset)


_WINDOWS = 24  # of two axes, which cut a matrix into so many blocks squared, at each write


def _writes_like(build: Builder, call: Call) -> int:
    """How many windows are written at a line of the model."""
    return sum(c.name == call.name and c.where == call.where for c in build.graph.calls)


def _put(build: Builder, grid: Tensor, piece: Tensor, box: Box, dim: int) -> Tensor:
    """Replace a box of a grid, one digit after the other."""
    while dim < grid.ndim and box.counts[dim] == grid.shape[dim]:
        dim += 1
    if dim == grid.ndim:
        return piece
    low, count = box.starts[dim], box.counts[dim]
    high = low + count
    made = _put(build, build.narrow(grid, dim, low, count), piece, box, dim + 1)
    pieces = []
    for start, stop in ((0, low), (high, grid.shape[dim])):
        if stop > start:
            other = build.narrow(grid, dim, start, stop - start)
            if grid.zero:
                shape = other.shape
                other = build.frozen(shape, "it is not written yet", moves=False, zero=True)
                for k in range(grid.ndim):
                    if k != dim:
                        other.axes[k] = made.axes[k]
            pieces.append(other)
    pieces.insert(1 if low else 0, made)
    return build.concatenate(pieces, dim)


@rule("torn")
def torn(build: Builder, call: Call) -> Tensor:
    """What is known of a tensor is only what it may depend on, and why."""
    operands, why = call.args
    build.unknown.setdefault(why, call.where or "an unknown place")
    return build.opaque_call(call, call.outputs, f"{why}, at {call.where}")[0]


@rule(
    "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full",
    "new_empty", "rand_like", "randn_like",
)  # fmt: skip
def constant_like(build: Builder, call: Call) -> Tensor:
    """Only the shape of the argument matters."""
    shape = call.outputs[0].shape
    if "rand" in call.name:
        return build.frozen(shape, "its order is drawn at random", moves=False)
    zero = "zeros" in call.name or "empty" in call.name
    facts = build.again(call)
    recipe = (facts["compute"], facts["given"]) if facts else None
    return build.new(shape, [ix.leaf(n) for n in shape], moves=False, zero=zero, recipe=recipe)


@rule("masked_scatter", "masked_select", "nonzero", "unique", "bincount", "histc", "one_hot",
      "searchsorted")  # fmt: skip
def scatter(build: Builder, call: Call) -> list[Tensor]:
    """Entries go to places that data chooses."""
    reason = f"entries are placed by data ({call.name}) at {call.where}"
    return build.opaque_call(call, call.outputs, reason)


@rule("cross_entropy", "nll_loss")
def loss(build: Builder, call: Call) -> list[Tensor]:
    """What labels choose from the logarithms of probabilities."""
    return build.opaque_call(call, call.outputs, f"labels say its order at {call.where}")

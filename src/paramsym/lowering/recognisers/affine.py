"""Factors of products, told apart by where they lie, and linear maps without their biases."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch

from paramsym.lowering.recognisers.context import Context
from paramsym.primitives.tensor import contiguous
from paramsym.recording.graph import Call, Value

_CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_MAPS = {
    "linear": ("input", "weight", "bias"),
    "addmm": ("bias", "input", "weight"),
    "mm": ("input", "weight"),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _CONVOLUTION),
}
_PRODUCTS = ("addmm", "mm")  # of matrices, whose rows may be counted by several axes
_DEFAULTS = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}


@dataclass(frozen=True)
class Form:
    """A tensor, or a linear map without the bias that a recorded call adds.

    `key` says which tensor it is, whatever axes of one entry it has in front; `operands` are the
    tensors that it is or of which it is computed.
    """

    key: Hashable
    shape: tuple[int, ...] = field(compare=False)
    dtype: torch.dtype = field(compare=False)
    operands: tuple[Value, ...] = field(compare=False)
    call: Call | None = field(default=None, compare=False)

    def written(self, context: Context, calls: list[Call]) -> Value:
        """The tensor; what it takes to compute it comes at the end of some calls."""
        if self.call is None:
            return self._seen(context, calls)
        if self.call.name == "addmm":
            return self._product(context, calls)
        args, kwargs = list(self.call.args), dict(self.call.kwargs)
        kwargs.pop("bias", None)
        args[2:3] = [None] * len(args[2:3])
        out = context.value(self.shape, self.operands[0])
        calls.append(context.call(self.call.target, tuple(args), out, self.call.name, **kwargs))
        return out

    def _product(self, context: Context, calls: list[Call]) -> Value:
        """A product of matrices, its rows counted by leading axes."""
        x, y = self.operands
        out = context.value((x.shape[0], y.shape[1]), x)
        calls.append(context.call(torch.mm, (x, y), out))
        if out.shape == self.shape:
            return out
        seen = context.value(self.shape, x, out, strides=contiguous(self.shape))
        calls.append(context.call(torch.reshape, (out, self.shape), seen))
        return seen

    def along(self, context: Context, shape: tuple[int, ...]) -> Form | None:
        """A vector looked at along the one axis of a shape that is as long; None for others."""
        whole = (math.prod(shape),)
        if self.call is not None or not self.shape == self.operands[0].shape == whole:
            return None
        key = _key(context, self.operands[0], shape)
        return Form(key, shape, self.dtype, self.operands)

    def _seen(self, context: Context, calls: list[Call]) -> Value:
        """A vector along an axis of a longer shape."""
        (value,) = self.operands
        if value.shape == self.shape:
            return value
        strides = _spread(value, self.shape)
        made = context.value(self.shape, value, value, strides=strides, offset=value.offset)
        calls.append(context.call(torch.reshape, (value, self.shape), made))
        return made


def forms(context: Context, value: Value, apart: bool) -> list[Form]:
    """A tensor, or the linear map and the bias that it is the sum of, where these are `apart`."""
    call = context.writer(_without_batch(context, value)) if apart else None
    given = _bound(call) if call is not None else None
    if call is None or given is None or (call.name not in _PRODUCTS and value.storage != value.id):
        return [Form(_key(context, value), value.shape, value.dtype, (value,))]
    bias, x, weight = given.pop("bias", None), given["input"], given["weight"]
    name = "mm" if call.name in _PRODUCTS else call.name
    key = (name, value.shape, *((n, _key(context, item)) for n, item in given.items()))
    if bias is None:
        return [Form(key, value.shape, value.dtype, (value,))]
    shape = (*bias.shape, *(1,) * max(0, len(weight.shape) - 2))
    return [
        Form(key, value.shape, value.dtype, (x, weight), call),
        Form(_key(context, bias, shape), shape, bias.dtype, (bias,)),
    ]


def _without_batch(context: Context, value: Value) -> Value:
    """The matrix whose rows a tensor of several leading axes counts, or the tensor itself."""
    owner = context.owner(value)
    rows = len(owner.shape) == 2 and owner.shape[-1:] == value.shape[-1:]
    lies = (value.strides, value.offset) == (contiguous(value.shape), owner.offset)
    whole = math.prod(value.shape) == math.prod(owner.shape)
    return owner if rows and lies and whole and owner.strides == contiguous(owner.shape) else value


def is_vector_seen(context: Context, value: Value) -> bool:
    """Whether a tensor is a view of a whole vector along one axis of a longer shape."""
    owner = context.owner(value)
    if value.storage == value.id or len(owner.shape) != 1 or value.offset != owner.offset:
        return False
    lies = [(n, step) for n, step in zip(value.shape, value.strides, strict=True) if n > 1]
    return lies == [(owner.shape[0], owner.strides[0])]


def _spread(vector: Value, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a vector along the one axis of a shape that has more than one entry."""
    return tuple(vector.strides[0] if n > 1 else 1 for n in shape)


def _bound(call: Call) -> dict[str, Any] | None:
    """The arguments of a linear map by name; None for what is none."""
    names = _MAPS.get(call.name, ())
    if not names or len(call.args) > len(names) or call.kwargs.keys() - {*names}:
        return None
    given = {**_DEFAULTS, **dict(zip(names, call.args, strict=False)), **call.kwargs}
    given = {name: given.get(name) for name in names}
    weight, bias = given["weight"], given.get("bias")
    if not isinstance(given["input"], Value) or not isinstance(weight, Value):
        return None
    if bias is not None and not (isinstance(bias, Value) and len(bias.shape) == 1):
        return None
    for name in ("stride", "padding", "dilation"):
        if isinstance(given.get(name), int):
            given[name] = (given[name],) * (len(weight.shape) - 2)
    return given


def _key(context: Context, item: Any, shape: tuple[int, ...] | None = None) -> Hashable:
    """What an argument of a call is; a tensor by its storage, and how it lies there.

    The axes are counted from the last one, without those of one entry: so tensors are broadcast.
    `shape` is that of a vector which is looked at along another axis.
    """
    if isinstance(item, (tuple, list)):
        return tuple(_key(context, part) for part in item)
    if not isinstance(item, Value):
        return type(item), repr(item)
    seen = context.uncopied(item)
    shape = shape or seen.shape
    strides = seen.strides if shape == seen.shape else _spread(seen, shape)
    lies = tuple(
        (k - len(shape), n, step)
        for k, (n, step) in enumerate(zip(shape, strides, strict=True)) if n > 1
    )  # fmt: skip
    return context.owner(seen).id, seen.offset, lies

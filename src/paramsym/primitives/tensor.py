"""Typed tensors: every axis knows what its entries count, and views read it off their strides."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from paramsym.primitives import index as ix
from paramsym.primitives.defects import report
from paramsym.primitives.index import Node
from paramsym.primitives.numbers import Layout
from paramsym.recording.graph import Value

Recipe = tuple[Callable[..., torch.Tensor], tuple["Tensor", ...]]  # how data is made of others


@dataclass(eq=False)
class Tensor:
    """A tensor whose axes are typed. A view shares the units of its base."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    base: Tensor | None = None  # the owner, for views
    nodes: list[Node] | None = None  # index type per axis; None until a view is read
    moves: bool = True  # depends on a parameter; otherwise it is data and stays as it is
    name: str = ""  # the first name of a parameter or buffer
    kind: str = "activation"
    zero: bool = False  # known to be all zeros
    total: tuple[int, float] | None = None  # an axis along which entries have this known sum
    producer: Any = None  # the primitive that wrote it
    value: Value | None = None
    recipe: Recipe | None = field(default=None, repr=False)  # of data that no traced call made
    builder: Any = field(default=None, repr=False)
    serial: int = field(default_factory=itertools.count().__next__)

    @property
    def owner(self) -> Tensor:
        return self.base if self.base is not None else self

    @property
    def axes(self) -> list[Node]:
        if self.nodes is None:
            _read_view(self)
        assert self.nodes is not None
        return self.nodes

    @property
    def integral(self) -> bool:
        """Whether the entries are integers or booleans, which may be permuted but not scaled."""
        value = self.value or self.owner.value
        return value is not None and not (value.dtype.is_floating_point or value.dtype.is_complex)

    @property
    def layout(self) -> Layout:
        """Where its entries lie in the storage of the owner."""
        return self.shape, self.strides, self.offset

    @property
    def ndim(self) -> int:
        return len(self.shape)


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides."""
    return tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))


def compose(window: Value, copy: Value, source: Tensor):
    """(shape, strides, offset) on the owner of `source` for a window on a copy of it."""
    order = sorted((k for k in range(len(copy.shape)) if copy.shape[k] > 1 and copy.strides[k]),
                   key=lambda k: -copy.strides[k])  # fmt: skip
    strides = []
    reach = dict.fromkeys(order, 1)  # entries of each axis from the first to the last of a window
    for size, stride in zip(window.shape, window.strides, strict=True):
        if size == 1 or stride == 0:
            strides.append(0 if size > 1 else 1)
            continue
        k = _crossed(stride, copy, order)
        if k is None or stride % copy.strides[k]:
            return None
        unit = stride // copy.strides[k]
        reach[k] += (size - 1) * unit
        strides.append(unit * source.strides[k])
    rest, offset = window.offset - copy.offset, source.offset
    for k in order:
        at, rest = divmod(rest, copy.strides[k])
        if at + reach[k] > copy.shape[k]:
            return None  # it runs into another axis, which lies elsewhere in the original
        offset += at * source.strides[k]
    return window.shape, tuple(strides), offset


def _read_view(view: Tensor) -> None:
    """Find the axes of a view from its strides: which units of the base does each axis count?"""
    base = view.owner
    try:
        view.nodes = _axes_of(view, base)
    except Exception as error:
        build = view.builder
        reason = f"a view at {build.where} cuts across the units"
        if not isinstance(error, _Unreadable):
            reason = report(build, "view", error)
        for node in base.axes:
            ix.freeze(node, reason)
        view.nodes = [ix.leaf(n, frozen=reason) for n in view.shape]
        view.base = None
        build.opaque_view(view, base, reason)


class _Unreadable(Exception):
    pass


def _axes_of(view: Tensor, base: Tensor) -> list[Node]:
    """The axes of a view of its base, or of those entries of it that its steps choose."""
    try:
        return _decode(view, base)
    except _Unreadable:
        return _decode(view, _stepped(view, base))


def _stepped(view: Tensor, base: Tensor) -> Tensor:
    """The entries of a base from which a view is cut whose steps do not fill their axis, as those
    of x[::2] do not fill five: they are chosen along it, and all other axes pass."""
    starts, steps = _walked(view, base)
    found = base
    for j, (k, step) in steps.items():
        if step > 1:
            places = torch.arange(view.shape[j]) * step + starts[k]
            shape = [*found.shape[:k], view.shape[j], *found.shape[k + 1 :]]
            found = view.builder.mix(
                found, [k], shape, "mean", compute=lambda t, k=k, at=places: t.index_select(k, at)
            )
            steps[j], starts[k] = (k, 1), 0
    if found is base:
        raise _Unreadable
    strides = {j: found.strides[k] * step for j, (k, step) in steps.items()}
    view.base, view.strides = found, tuple(strides.get(j, s) for j, s in enumerate(view.strides))
    view.offset = found.offset + sum(starts[k] * s for k, s in enumerate(found.strides))
    return found


def _walked(view: Tensor, base: Tensor) -> tuple[dict[int, int], dict[int, tuple[int, int]]]:
    """Where a view starts on each axis of its base, and along which one, and how far, each axis of
    the view steps; no two go along one, or beyond its end."""
    order = _outermost_first(base)
    starts, rest = dict.fromkeys(range(base.ndim), 0), view.offset - base.offset
    for k in order:
        starts[k], rest = divmod(rest, base.strides[k])
    steps: dict[int, tuple[int, int]] = {}  # of each axis of the view: the base's, and how far
    for j, (size, stride) in enumerate(zip(view.shape, view.strides, strict=True)):
        if size > 1 and stride > 0:
            k = _crossed(stride, base, order)
            if k is None or stride % base.strides[k] or k in [at for at, _ in steps.values()]:
                raise _Unreadable
            steps[j] = k, stride // base.strides[k]
            if starts[k] + (size - 1) * steps[j][1] >= base.shape[k]:
                raise _Unreadable
    return starts, steps


def _decode(view: Tensor, base: Tensor) -> list[Node]:
    """The axes of a view as products of pieces of the axes of its base."""
    order = _outermost_first(base)
    pieces: dict[int, list[tuple[int, int, int, int]]] = {k: [] for k in order}
    counts = [0] * view.ndim
    copies: dict[int, Node] = {}
    for j, (size, stride) in enumerate(zip(view.shape, view.strides, strict=True)):
        if size > 1 and stride == 0:
            copies[j] = ix.leaf(size)
            continue
        for k, unit, take in _pieces(size, stride, base, order):
            pieces[k].append((unit, take, j, counts[j]))
            counts[j] += 1
    offset = view.offset - base.offset
    found: dict[tuple[int, int], Node] = {}
    for k in order:
        start, offset = divmod(offset, base.strides[k])
        wanted = sorted(pieces[k], reverse=True)
        _extract(base.axes[k], base.shape[k], wanted, start, found)
    return [  # pieces were collected from the inside out
        copies[j] if j in copies else ix.product([found[j, i] for i in reversed(range(counts[j]))])
        for j in range(view.ndim)
    ]


def _outermost_first(base: Tensor) -> list[int]:
    """The axes of a base by falling stride; together they have to fill its storage without gaps."""
    order = sorted(
        (k for k in range(base.ndim) if base.shape[k] > 1), key=lambda k: -base.strides[k]
    )
    expected = 1
    for k in reversed(order):
        if base.strides[k] != expected:
            raise _Unreadable
        expected *= base.shape[k]
    return order


def _pieces(
    size: int, stride: int, base: Tensor, order: list[int]
) -> Iterator[tuple[int, int, int]]:
    """The pieces (axis of the base, step on it, length) that one axis of a view goes through.

    They come from the inside out.
    """
    while size > 1 and stride > 0:
        k = _crossed(stride, base, order)
        if k is None or stride % base.strides[k]:
            raise _Unreadable
        unit = stride // base.strides[k]
        take = min(size, max(1, base.shape[k] // unit))
        if take < 2 or size % take:
            raise _Unreadable
        yield k, unit, take
        size //= take
        stride *= take


def _crossed(stride: int, tensor: Tensor | Value, order: list[int]) -> int | None:
    """The axis inside which a step of this stride stays."""
    return next(
        (k for k in order if tensor.strides[k] <= stride < tensor.strides[k] * tensor.shape[k]),
        None,
    )


def _extract(node: Node, size: int, wanted: list, start: int, found: dict) -> None:
    """Refine one axis of a base so that the wanted (stride, length) pieces are units of it."""
    reason = "two readings of the axis cut across each other"
    if not wanted:
        if size > 1:
            ix.split_sum(node, [start, 1, size - start - 1], reason)
        return
    (stride, length, j, i), rest = wanted[0], wanted[1:]
    if rest and rest[0][0] * rest[0][1] > stride:
        raise _Unreadable
    # what fills its steps begins where it begins; what leaves gaps lies on the grid of its step
    filled = math.prod(length for _, length, _, _ in rest) == stride
    inner_start = 0 if filled else start % stride
    first = start - inner_start
    stop = first + length * stride
    if stop > size:
        raise _Unreadable
    if length * stride < size:
        pieces = ix.split_sum(node, [first, length * stride, size - stop], reason)
        node = pieces[1 if first else 0]
    if stride == 1:
        found[j, i] = node
        return
    outer, inner = ix.split_product(node, [length, stride], reason)
    found[j, i] = outer
    _extract(inner, stride, rest, inner_start, found)

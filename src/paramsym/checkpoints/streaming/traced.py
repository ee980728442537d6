"""Tensors without numbers that remember which entries of which files they are made of.

A loader that is given them says by what it makes of them how it renames, stacks, joins, transposes
and cuts the tensors of files: it is asked, and its rules are not written a second time. What it
computes has entries of no file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

aten = torch.ops.aten


class Unsaid(Exception):
    """What is done with a tensor is not said by boxes of entries."""


@dataclass(frozen=True)
class Patch:
    """A box of entries of a tensor in a file, and where it lies in another tensor.

    Along axis k of that tensor it takes `size[k]` entries from `corner[k]` on. They are those of
    the axis `axes[k]` of the file's tensor from `start[axes[k]]` on; None is an axis of one entry
    that the file's tensor has not.
    """

    name: str
    start: tuple[int, ...]
    corner: tuple[int, ...]
    size: tuple[int, ...]
    axes: tuple[int | None, ...]

    @staticmethod
    def whole(name: str, shape: Sequence[int]) -> Patch:
        """A tensor as it is in its file."""
        zero = (0,) * len(shape)
        return Patch(name, zero, zero, tuple(shape), tuple(range(len(shape))))

    @property
    def shape(self) -> tuple[int, ...]:
        """How many entries it has along each axis of the file's tensor."""
        along = {own: n for own, n in zip(self.axes, self.size, strict=True) if own is not None}
        return tuple(along.get(axis, 1) for axis in range(len(self.start)))

    def along(self, order: Sequence[int]) -> Patch:
        """With the axes of the other tensor in an order."""
        corner, size, axes = (
            [own[k] for k in order] for own in (self.corner, self.size, self.axes)
        )
        return replace(self, corner=tuple(corner), size=tuple(size), axes=tuple(axes))

    def moved(self, axis: int, by: int) -> Patch:
        """Farther along an axis."""
        corner = list(self.corner)
        corner[axis] += by
        return replace(self, corner=tuple(corner))

    def cut(self, axis: int, low: int, high: int) -> Patch | None:
        """What is left of it in a range of an axis, from whose first entry on it is counted."""
        first = max(low, self.corner[axis])
        last = min(high, self.corner[axis] + self.size[axis])
        if first >= last:
            return None
        start, size, own = list(self.start), list(self.size), self.axes[axis]
        if own is not None:
            start[own] += first - self.corner[axis]
        size[axis] = last - first
        corner = list(self.corner)
        corner[axis] = first - low
        return replace(self, start=tuple(start), corner=tuple(corner), size=tuple(size))

    def with_axis(self, axis: int) -> Patch:
        """With one more axis of one entry."""
        corner, size, axes = list(self.corner), list(self.size), list(self.axes)
        corner.insert(axis, 0)
        size.insert(axis, 1)
        axes.insert(axis, None)
        return replace(self, corner=tuple(corner), size=tuple(size), axes=tuple(axes))

    def without_axis(self, axis: int) -> Patch:
        """Without an axis of one entry."""
        return self.along([k for k in range(len(self.size)) if k != axis])


class Traced(torch.Tensor):
    """A tensor of a shape and a dtype whose entries are those of `patches`."""

    patches: tuple[Patch, ...]

    @staticmethod
    def __new__(cls, patches: Sequence[Patch], shape: Sequence[int], dtype: torch.dtype) -> Traced:
        device = torch.device("cpu")  # a loader then copies nothing to where it is
        made = torch.Tensor._make_wrapper_subclass(cls, tuple(shape), dtype=dtype, device=device)
        made.patches = tuple(patches)
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        try:
            if func in _RULES:
                return _RULES[func](*args, **kwargs)
        except Unsaid:
            pass
        return _computed(func, args, kwargs)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Traced({self.patches}, {tuple(self.shape)})"


def _computed(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What has entries of no file: its shape, and no patches. Who is written into has none, too."""

    def empty(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if isinstance(leaf, Traced) and func._schema.is_mutable:
            leaf.patches = ()
        return torch.empty(leaf.shape, dtype=leaf.dtype, device="meta")

    def filled(leaf: Any) -> Any:
        return Traced((), leaf.shape, leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf

    on_meta = {"device": torch.device("meta")} if "device" in kwargs else {}
    args, kwargs = pytree.tree_map(empty, (tuple(args), {**kwargs, **on_meta}))
    return pytree.tree_map(filled, func(*args, **kwargs))


def traced(name: str, shape: Sequence[int], dtype: torch.dtype) -> Traced:
    """A tensor as it is in its file."""
    return Traced([Patch.whole(name, shape)], shape, dtype)


def _same(x: Traced, *_: Any, dtype: torch.dtype | None = None, **__: Any) -> Traced:
    return Traced(x.patches, x.shape, dtype or x.dtype)


def _permute(x: Traced, order: Sequence[int]) -> Traced:
    order = [k % x.ndim for k in order]
    return Traced([p.along(order) for p in x.patches], [x.shape[k] for k in order], x.dtype)


def _transpose(x: Traced, one: int, two: int) -> Traced:
    order = list(range(x.ndim))
    order[one], order[two] = order[two], order[one]
    return _permute(x, order)


def _turned(x: Traced) -> Traced:
    return _permute(x, [*reversed(range(x.ndim))])


def _slice(
    x: Traced, axis: int = 0, low: int | None = None, high: int | None = None, step: int = 1
) -> Traced:
    axis %= x.ndim
    low, high, step = slice(low, high, step).indices(x.shape[axis])
    if step != 1:
        raise Unsaid("entries at a distance")
    high = max(low, high)
    cut = [p.cut(axis, low, high) for p in x.patches]
    shape = [high - low if k == axis else n for k, n in enumerate(x.shape)]
    return Traced([p for p in cut if p is not None], shape, x.dtype)


def _select(x: Traced, axis: int, index: int) -> Traced:
    axis, index = axis % x.ndim, index % x.shape[axis]
    return _squeeze(_slice(x, axis, index, index + 1), axis)


def _squeeze(x: Traced, axes: int | Sequence[int]) -> Traced:
    for axis in sorted({k % x.ndim for k in ([axes] if isinstance(axes, int) else axes)})[::-1]:
        if x.shape[axis] == 1:
            shape = [n for k, n in enumerate(x.shape) if k != axis]
            x = Traced([p.without_axis(axis) for p in x.patches], shape, x.dtype)
    return _same(x)  # a view is never what it is a view of


def _unsqueeze(x: Traced, axis: int) -> Traced:
    axis %= x.ndim + 1
    shape = [*x.shape[:axis], 1, *x.shape[axis:]]
    return Traced([p.with_axis(axis) for p in x.patches], shape, x.dtype)


def _padded(x: Traced, widths: Sequence[int], *_: Any) -> Traced:
    if any(widths):
        raise Unsaid("entries of no file")
    return _same(x)


def _split(x: Traced, sizes: int | Sequence[int], axis: int = 0) -> list[Traced]:
    count = x.shape[axis]
    if isinstance(sizes, int):
        sizes = [min(sizes, count - low) for low in range(0, count, sizes)]
    found, low = [], 0
    for size in sizes:
        found.append(_slice(x, axis, low, low + size))
        low += size
    return found


def _unbind(x: Traced, axis: int = 0) -> list[Traced]:
    return [_select(x, axis, index) for index in range(x.shape[axis])]


def _cat(several: Sequence[Traced], axis: int = 0) -> Traced:
    axis %= several[0].ndim
    patches, length = [], 0
    for x in several:
        patches += [p.moved(axis, length) for p in x.patches]
        length += x.shape[axis]
    shape = [length if k == axis else n for k, n in enumerate(several[0].shape)]
    return Traced(patches, shape, several[0].dtype)


def _stack(several: Sequence[Traced], axis: int = 0) -> Traced:
    axis %= several[0].ndim + 1
    return _cat([_unsqueeze(x, axis) for x in several], axis)


def _view(x: Traced, shape: Sequence[int]) -> Traced:
    """Axes of one entry come and go."""
    shape = torch.empty(x.shape, device="meta").view(tuple(shape)).shape
    if [n for n in shape if n != 1] != [n for n in x.shape if n != 1]:
        raise Unsaid("entries in another shape")
    x = _squeeze(x, [k for k, n in enumerate(x.shape) if n == 1]) if 1 in x.shape else x
    for axis, n in enumerate(shape):
        x = _unsqueeze(x, axis) if n == 1 else x
    return _same(x)


_RULES: dict[Any, Callable[..., Any]] = {
    aten.alias.default: _same, aten.detach.default: _same, aten.clone.default: _same,
    aten._to_copy.default: _same, aten.permute.default: _permute, aten.t.default: _turned,
    aten.transpose.int: _transpose, aten.slice.Tensor: _slice, aten.select.int: _select,
    aten.squeeze.dim: _squeeze, aten.squeeze.dims: _squeeze, aten.unsqueeze.default: _unsqueeze,
    aten.split.Tensor: _split, aten.split_with_sizes.default: _split, aten.unbind.int: _unbind,
    aten.cat.default: _cat, aten.stack.default: _stack, aten.view.default: _view,
    aten._unsafe_view.default: _view, aten.constant_pad_nd.default: _padded,
}  # fmt: skip

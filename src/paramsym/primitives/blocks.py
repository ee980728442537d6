"""Blocks and slots: the coordinates in which the later passes write their equations.

A *block* of a tensor is one choice of a summand on every axis; within it the entries are counted
by leaves alone. A *slot* is one leaf at one place of a block, named by its stride in the storage.
Because views share storage, a block and its slots have the same name in a tensor and in every view
of it: what is said of one is said of all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from paramsym.primitives import index as ix
from paramsym.primitives.index import Node
from paramsym.primitives.tensor import Tensor


@dataclass(frozen=True, eq=False)
class Place:
    """One block of one axis: where it starts, and its leaves with their strides on the axis."""

    start: int
    leaves: tuple[tuple[Node, int], ...]
    origins: tuple[int, ...] = ()  # where the reading of each leaf starts on the axis

    @property
    def steps(self) -> list[tuple[int, int]]:
        """(length, stride on the axis) of each leaf."""
        return [(leaf.size, stride) for leaf, stride in self.leaves]

    @property
    def stop(self) -> int:
        """The first position of the axis after all that are counted."""
        return self.start + 1 + sum((n - 1) * stride for n, stride in self.steps)


class Layout:
    """The places of every axis of a tensor, once all index types are final.

    A coarse layout reads an axis that was joined from pieces as one place, because some statements
    hold for all positions in a sequence together only: where `all` or `any` of these are frozen, as
    `joined` says. Tokens without a place have no order, beside others that have.
    """

    def __init__(self, joined: Callable[[Iterable[object]], bool] | None = None) -> None:
        self.joined = joined
        self.held: list[tuple[Block, str]] | None = None
        self._cache: dict[int, tuple[Place, ...]] = {}
        self._blocks: dict[Tensor, tuple[Block, ...]] = {}

    def places(self, node: Node) -> tuple[Place, ...]:
        """The places of one axis."""
        node = ix.resolve(node)
        found = self._cache.get(id(node))
        if found is None:
            found = tuple(
                Place(
                    start,
                    tuple((ix.resolve(n), s) for n, s, _ in leaves),
                    tuple(origin for _, _, origin in leaves),
                )
                for start, leaves in ix.blocks(node, self._is_whole)
            )
            self._cache[id(node)] = found
        return found

    @property
    def coarse(self) -> bool:
        """Whether some axes that were joined are read as one place."""
        return self.joined is not None

    def _is_whole(self, node: Node) -> bool:
        if self.joined is None or node.kind != "sum":
            return False
        return self.joined(leaf.frozen for leaf in ix.leaves(node))


@dataclass(frozen=True, eq=False)
class Block:
    """A block of a tensor, with the places of its axes."""

    tensor: Tensor
    places: tuple[Place | None, ...]  # None for axes of length one
    layout: Layout | None = None  # given where views may start inside a coarse place

    @cached_property
    def start(self) -> int:
        """The first entry of the block in the storage."""
        tensor = self.tensor
        return tensor.offset + sum(
            p.start * s for p, s in zip(self.places, tensor.strides, strict=True) if p is not None
        )

    @cached_property
    def key(self) -> tuple[int, int]:
        """The block's name: the owner of the storage and the first entry, or that of the coarse
        place in which the block is a window."""
        start, owner = self.start, self.tensor.owner
        if self.layout is not None and self.layout.coarse:
            start = _coarse_start(owner, start, self.layout)
        return owner.serial, start

    @cached_property
    def slots(self) -> tuple[tuple[int, Node, int], ...]:
        """(axis, leaf, stride in storage) of every leaf that varies in the storage."""
        return tuple(
            (axis, leaf, stride * step)
            for axis, (place, step) in enumerate(zip(self.places, self.tensor.strides, strict=True))
            if place is not None and step != 0
            for leaf, stride in place.leaves
        )

    @cached_property
    def sizes(self) -> dict[int, int]:
        """Stride in storage → length, of every slot; the shortest where slots share a stride."""
        found: dict[int, int] = {}
        for _, leaf, stride in self.slots:
            found[stride] = min(leaf.size, found.get(stride, leaf.size))
        return found

    def readings(self) -> Iterator[tuple[int, int, Node, int]]:
        """(axis, origin, leaf, stride in storage): what one type per axis has to tell apart."""
        for axis, place in enumerate(self.places):
            for (leaf, stride), origin in zip(*(place.leaves, place.origins) if place else ((), ()),
                                              strict=True):  # fmt: skip
                yield axis, origin, leaf, stride * self.tensor.strides[axis]

    def stride(self, axis: int, position: int) -> int:
        """The storage stride of the leaf at a position of an axis."""
        place = self.places[axis]
        assert place is not None
        return place.leaves[position][1] * self.tensor.strides[axis]


def _coarse_start(owner: Tensor, start: int, layout: Layout) -> int:
    """The start of the block of the owner in which an entry lies."""
    rest, total = start - owner.offset, owner.offset
    # an expanded constant has strides of zero, which no entry tells apart
    order = sorted((k for k in range(owner.ndim) if owner.shape[k] > 1 and owner.strides[k]),
                   key=lambda k: -owner.strides[k])  # fmt: skip
    for k in order:
        at, rest = divmod(rest, owner.strides[k])
        total += (
            max(p.start for p in layout.places(owner.axes[k]) if p.start <= at) * (owner.strides[k])
        )
    return total


Window = tuple[int, tuple[tuple[int, int], ...]]  # first entry, (stride, length) of each slot


def are_apart(a: Window, b: Window) -> bool:
    """Whether two windows on one storage are known to share no entry.

    The strides of both are read as the places of a mixed numeral; the windows are apart if they
    differ in one digit, and if no window counts over the end of a digit. A stride of zero leads
    nowhere.
    """
    a, b = ((start, tuple(slot for slot in slots if slot[0])) for start, slots in (a, b))
    strides = sorted({s for _, slots in (a, b) for s, _ in slots} | {1}, reverse=True)
    digits = [_digits(window, strides) for window in (a, b)]
    if None in digits:
        return False
    return any(x[0] >= y[1] or y[0] >= x[1] for x, y in zip(*digits, strict=True))  # type: ignore[arg-type]


def _digits(window: Window, strides: list[int]) -> list[tuple[int, int]] | None:
    """(first, past the last) of each digit of the entries; None where one is carried over."""
    rest, slots = window
    lengths = dict(slots)
    if len(lengths) < len(slots):
        return None
    _carry_over(lengths, strides)
    found: list[tuple[int, int]] = []
    for k, stride in enumerate(strides):
        first, rest = divmod(rest, stride)
        last = first + lengths.get(stride, 1) - 1
        if k and (strides[k - 1] % stride or last * stride >= strides[k - 1]):
            return None
        found.append((first, last + 1))
    return found


def _carry_over(lengths: dict[int, int], strides: list[int]) -> None:
    """Count a slot by two digits where one ends before it does: four by fours as two by two."""
    for k in range(len(strides) - 1, 0, -1):
        large, small = strides[k - 1], strides[k]
        most, length = large // small, lengths.get(small, 1)
        if large % small == 0 and length > most and length % most == 0 and large not in lengths:
            lengths[large], lengths[small] = length // most, most


def tensor_blocks(tensor: Tensor, layout: Layout) -> tuple[Block, ...]:
    """Every block of a tensor."""
    found = layout._blocks.get(tensor)
    if found is None:
        axes = [
            layout.places(node) if size > 1 else (None,)
            for node, size in zip(tensor.axes, tensor.shape, strict=True)
        ]
        found = tuple(Block(tensor, places, layout) for places in itertools.product(*axes))
        layout._blocks[tensor] = found
    return found


def held_blocks(build: Any, layout: Layout) -> list[tuple[Block, str]]:
    """Every block whose numbers have to stay, with the reason: no scale, no sign, no change of
    basis, no shift. Orders are another matter: leaves say themselves whether theirs is frozen.

    These are all blocks of the storages in `build.held`, as they are written and as they are read,
    and in a coarse layout those of storages of which a reader sees a block that nobody wrote.
    """
    if layout.held is None:
        layout.held = list(_held_blocks(build, layout))
    return layout.held


def _held_blocks(build: Any, layout: Layout) -> Iterator[tuple[Block, str]]:
    for serial, tensors in _looked_at(build).items():
        reason = build.held.get(serial)
        if reason is None and not layout.coarse:
            continue
        found = [(t is t.owner, block) for t in tensors for block in tensor_blocks(t, layout)]
        if reason is None and not _are_windows(found):
            reason = "its readers and its writer disagree"
        if reason is not None:
            yield from ((block, reason) for _, block in found)


def _looked_at(build: Any) -> dict[int, list[Tensor]]:
    """Every moving tensor, as it is written and as it is read, by storage."""
    tensors: dict[int, Tensor] = {}
    for op in build.ops:
        for tensor in (op.out, *op.inputs, *(t.owner for t in op.inputs)):
            if tensor.moves:
                tensors[id(tensor)] = tensor
    found: dict[int, list[Tensor]] = {}
    for tensor in tensors.values():
        found.setdefault(tensor.owner.serial, []).append(tensor)
    return found


def _are_windows(found: list[tuple[bool, Block]]) -> bool:
    """Whether every block that is read lies within one that is written."""
    written = {b.key: b.sizes for owns, b in found if owns}
    return all(
        block.key in written
        and all(size <= written[block.key].get(s, 1) for s, size in block.sizes.items())
        for owns, block in found
        if not owns
    )

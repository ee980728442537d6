"""One circuit: every primitive at every joint choice of blocks, walked by all passes.

Because a block has the same name in a tensor and in every view of it, joints meet where one writes
what another reads.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from paramsym.lowering.builder import Builder
from paramsym.primitives import Concatenate, Opaque, Primitive
from paramsym.primitives.blocks import Block, Layout, Place, held_blocks, tensor_blocks
from paramsym.primitives.joint import Joint, Key, Slot
from paramsym.primitives.tensor import Tensor


class Circuit:
    """The joints of a network in order, and who reads and writes each block."""

    def __init__(self, build: Builder, layout: Layout):
        self.build, self.layout = build, layout
        self.joints: list[Joint] = []
        self.readers: dict[Key, list[tuple[Joint, int]]] = defaultdict(list)
        self.writers: dict[Key, list[Joint]] = defaultdict(list)
        self.position: dict[int, int] = {}  # of each primitive, in order
        self.seen: set[Key] = set()  # blocks whose every change counts as seen
        self.patched: set[Key] = set()  # blocks joined from pieces of which some are not told
        self.sizes: dict[Slot, int] = {}  # of each slot: the largest that is known
        self._measured: set[int] = set()
        self._writing: dict[Key, list[Joint]] = {}  # as asked so far
        for number, op in enumerate(build.ops):
            self.position[id(op)] = number
            for joint in self._joints(op):
                self.joints.append(joint)
                self.writers[joint.out.key].append(joint)
                self._read(joint)
            if isinstance(op, Concatenate):
                self._see_hidden_pieces(op)
        self.held = held_blocks(build, layout)
        self.outputs = {build.tensor(v).owner.serial for v in build.graph.outputs}
        self.outputs |= {block.key[0] for block, _ in self.held}
        self.dropped = frozenset() if layout.coarse else self._dropped()

    @cached_property
    def lengths(self) -> dict[Key, dict[int, int]]:
        """Of each block the length of every slot, by its stride: the largest that is known."""
        found: dict[Key, dict[int, int]] = defaultdict(dict)
        for (owner, start, stride), size in self.sizes.items():
            found[owner, start][stride] = size
        return found

    def writer(self, key: Key) -> Joint | None:
        """The one joint that writes all of a block; None if there are none, or several."""
        found = self._written(key)
        return found[0] if len(found) == 1 else None

    def parts(self, key: Key) -> list[Joint]:
        """The joints that write all of a block, if there is one, or if they add up: a product that
        is summed over an axis of several pieces."""
        found = self._written(key)
        if len(found) < 2:
            return found
        written = {(id(joint.op), joint.out.start, *joint.out.sizes.items()) for joint in found}
        return found if len(written) == 1 and found[0].op.multiplies else []

    def _written(self, key: Key) -> list[Joint]:
        """The joints that write a block; none where each writes but a part of it."""
        known = self._writing.get(key)
        if known is None:
            found = self.writers.get(key, [])
            parts = key in self.patched or any(self.is_window(joint.out) for joint in found)
            known = self._writing[key] = [] if parts else found
        return known

    def is_window(self, block: Block) -> bool:
        """Whether a block holds but a part of the entries that go by its name."""
        return block.start != block.key[1] or any(
            block.sizes.get(stride, 1) < size for stride, size in self.lengths[block.key].items()
        )

    def is_read(self, key: Key) -> bool:
        """Whether anything depends on a block, which may be a part of a parameter."""
        return key in self.readers or key[0] in self.outputs

    def is_seen(self, key: Key) -> bool:
        """Whether a block is looked at from outside, or by nobody that is known."""
        if key[0] in self.outputs or key in self.seen:
            return True
        return not self.readers.get(key) and key not in self.dropped

    def _dropped(self) -> frozenset[Key]:
        """Blocks that nobody reads, of tensors whose other blocks are read just as written.

        The last layer writes all tokens, and a classifier may look at the first one alone.
        """
        written: dict[int, set[Key]] = defaultdict(set)
        read: dict[int, set[Key]] = defaultdict(set)
        for found, keys in ((written, self.writers), (read, self.readers)):
            for key in keys:
                found[key[0]].add(key)
        return frozenset(
            key
            for owner, keys in written.items()
            if read[owner] and read[owner] <= keys
            for key in keys - read[owner]
        )

    def _read(self, joint: Joint) -> None:
        for block in (*joint.inputs, joint.out):
            self._measure(block)
        for k, key in enumerate(joint.keys):
            self.readers[key].append((joint, k))
            owner = joint.inputs[k].tensor.owner
            if owner.producer is None and owner.serial not in self._measured:
                self._measured.add(owner.serial)  # a parameter may be larger than what is read
                for block in tensor_blocks(owner, self.layout):
                    self._measure(block)

    def _measure(self, block: Block) -> None:
        for _, leaf, stride in block.slots:
            slot = (*block.key, stride)
            self.sizes[slot] = max(leaf.size, self.sizes.get(slot, 0))

    # -- joint choices of places -------------------------------------------------------------
    def _joints(self, op: Primitive) -> Iterator[Joint]:
        """Every joint choice of places of one primitive."""
        ins, outs = op.labels()
        tensors = [*zip(op.inputs, ins, strict=True), (op.out, outs)]
        choices: dict[Any, tuple[Place, ...]] = {}
        for tensor, labels in tensors:
            for node, size, label in zip(tensor.axes, tensor.shape, labels, strict=True):
                if size > 1:
                    places = self.layout.places(node)
                    if label not in choices or len(places) > len(choices[label]):
                        choices[label] = places
        if isinstance(op, Concatenate):
            yield from self._pieces(op, choices, ins, outs)
            return
        for picked in _picked(op, tensors, choices):
            where = dict(zip(choices, picked, strict=True))
            *inputs, out = [self._block(t, labels, where) for t, labels in tensors]
            yield self._joint(op, where, inputs, out, [*ins, outs])

    def _joint(self, op, where: dict, inputs: list[Block], out: Block, labels: list) -> Joint:
        return Joint(op, where, tuple(inputs), out, labels, self.layout, self.sizes)

    def _block(self, tensor: Tensor, labels: tuple, where: dict) -> Block:
        places = tuple(
            where[label] if size > 1 else None
            for label, size in zip(labels, tensor.shape, strict=True)
        )  # fmt: skip
        return Block(tensor, places, self.layout)

    def _pieces(self, op: Concatenate, choices: dict, ins: list, outs: tuple) -> Iterator[Joint]:
        """Each piece of a concatenation separately, at its position in the output."""
        dim, position = op.dim, 0
        whole = {p.start: p for p in self.layout.places(op.out.axes[dim])}
        others = {k: v for k, v in choices.items() if k != dim}
        for tensor, labels in zip(op.inputs, ins, strict=True):
            size = tensor.shape[dim]
            for piece in self.layout.places(tensor.axes[dim]) if size > 1 else (Place(0, ()),):
                target = whole.get(position + piece.start)
                if target is None:
                    continue
                for picked in itertools.product(*others.values()):
                    where = {**dict(zip(others, picked, strict=True)), dim: target}
                    source = self._block(tensor, labels, {**where, dim: piece})
                    out = self._block(op.out, outs, where)
                    yield self._joint(op, where, [source], out, [labels, outs])
            position += size

    def _see_hidden_pieces(self, op: Concatenate) -> None:
        """Pieces that a coarse layout cannot tell apart after joining: their changes are seen."""
        starts = {place.start for place in self.layout.places(op.out.axes[op.dim])}
        position = 0
        for tensor in op.inputs:
            size = tensor.shape[op.dim]
            inside = {s for s in starts if position <= s < position + size}
            pieces = self.layout.places(tensor.axes[op.dim]) if size > 1 else (None,)
            if tensor.moves and (len(inside) < len(pieces) or len(starts) == 1 < len(op.inputs)):
                self.seen |= {block.key for block in tensor_blocks(tensor, self.layout)}
                self.patched |= {block.key for block in tensor_blocks(op.out, self.layout)}
            position += size


def _picked(op: Primitive, tensors: list, choices: dict) -> Iterator[tuple[Place, ...]]:
    """Every choice of places; of what is opaque, whose tensors have no axis in common and are
    frozen, as few as show each block of each."""
    if not isinstance(op, Opaque):
        return itertools.product(*choices.values())
    own = [[choices[label] for label in labels if label in choices] for _, labels in tensors]
    each = [[*itertools.product(*places)] for places in own]
    most = max(map(len, each))
    rows = zip(*(itertools.islice(itertools.cycle(blocks), most) for blocks in each), strict=True)
    return (tuple(itertools.chain(*row)) for row in rows)

"""Tensors whose numbers have to stay: torn readings, and integers.

The later passes write their equations block by block, and two operations share an unknown only if
they name the same entries by the same units. This is the invariant that makes them sound:

    For every operation, all tensors that meet at an axis count its entries by the same places
    (the same leaves at the same strides from the same starts), and every reader of a block counts
    its entries as its writer does; or every block of these tensors is *held*: no scale, no sign,
    no change of basis, no shift, and its units in a fixed order.

A tensor that breaks the first half is *torn*. That happens where two readings of an axis contradict
each other, as 3 × 6 and 6 × 3, or a product and a concatenation that cuts through its pairs:
freezing the order of what is known at that moment is not enough, as scales would be written in one
reading and looked for in the other.

Integers and booleans are held for another reason: 2·x or −x is another number of the same type only
by accident. Their entries may be permuted, unless they serve as indices.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from paramsym.lowering.builder import Builder
from paramsym.primitives import Concatenate, Primitive
from paramsym.primitives import index as ix
from paramsym.primitives.blocks import Block, Layout, Place, tensor_blocks
from paramsym.primitives.defects import report
from paramsym.primitives.tensor import Tensor

_INTEGRAL = "integers and booleans keep their values"


def hold(build: Builder) -> None:
    """Fill `build.held` with the storages whose numbers have to stay, each with its reason.

    A defect met on the way holds everything that the network depends on.
    """
    try:
        _hold(build)
    except Exception as error:
        build.where = "the whole network"
        reason = report(build, "lowering", error)
        for op in list(build.ops):
            for tensor in (op.out, *op.inputs):
                _tear(build, [tensor], tensor.axes, reason)


def _hold(build: Builder) -> None:
    read_all(build)
    layout = Layout()
    for op in build.ops:
        for tensors, nodes in disagreements(op, layout):
            _tear(build, tensors, nodes, f"two readings of an axis contradict each other "
                  f"at {op.where}")  # fmt: skip
    for tensors, nodes in _misread(build, layout):
        _tear(build, tensors, nodes, "its readers and its writer count its entries differently")
    for op in build.ops:
        for tensor in (op.out, *op.inputs):
            if tensor.moves and tensor.integral:
                build.held.setdefault(tensor.owner.serial, _INTEGRAL)


def read_all(build: Builder) -> None:
    """Read every view, as that refines what others share; an unreadable one adds an operation."""
    done = 0
    while done < len(build.ops):
        op = build.ops[done]
        for tensor in (op.out, *op.inputs):
            _ = tensor.axes
        done += 1


def _tear(build: Builder, tensors: Sequence[Tensor], nodes: Sequence[ix.Node], reason: str) -> None:
    for node in nodes:
        ix.freeze(node, reason)
    for tensor in tensors:
        if tensor.moves:
            build.held.setdefault(tensor.owner.serial, reason)


def disagreements(op: Primitive, layout: Layout) -> Iterator[tuple[list[Tensor], list[ix.Node]]]:
    """The tensors, with their axes, that meet in an operation and count an axis differently."""
    ins, outs = op.labels()
    meetings: dict[Any, list[tuple[Tensor, ix.Node]]] = {}
    for tensor, labels in [*zip(op.inputs, ins, strict=True), (op.out, outs)]:
        for node, size, label in zip(tensor.axes, tensor.shape, labels, strict=True):
            if size > 1:
                meetings.setdefault(label, []).append((tensor, node))
    joined = op.dim if isinstance(op, Concatenate) else None
    if isinstance(op, Concatenate) and not _joins(op, op.dim, layout):
        yield [op.out, *op.inputs], [t.axes[op.dim] for t in (op.out, *op.inputs)]
    for label, found in meetings.items():
        if label != joined or joined is None:
            first = layout.places(found[0][1])
            if any(not same_places(first, layout.places(node)) for _, node in found[1:]):
                yield [tensor for tensor, _ in found], [node for _, node in found]


def _joins(op: Concatenate, dim: int, layout: Layout) -> bool:
    """Whether the joined axis is counted as its pieces one after the other."""
    pieces: list[Place] = []
    position = 0
    for tensor in op.inputs:
        if tensor.shape[dim] > 1:
            pieces += [_moved(place, position) for place in layout.places(tensor.axes[dim])]
        else:
            pieces.append(Place(position, ()))
        position += tensor.shape[dim]
    return op.out.shape[dim] == 1 or same_places(pieces, layout.places(op.out.axes[dim]))


def _moved(place: Place, by: int) -> Place:
    return Place(place.start + by, place.leaves)


def same_places(one: Sequence[Place], other: Sequence[Place]) -> bool:
    """Whether two axes are counted by the same leaves at the same strides and starts."""
    return len(one) == len(other) and all(
        a.start == b.start
        and len(a.leaves) == len(b.leaves)
        and all(x is y and s == t for (x, s), (y, t) in zip(a.leaves, b.leaves, strict=True))
        for a, b in zip(one, other, strict=True)
    )


def _misread(build: Builder, layout: Layout) -> Iterator[tuple[list[Tensor], list[ix.Node]]]:
    """Storages that are read otherwise than they were written.

    A reader whose block nobody wrote (an axis was refined on one side only) would see an unknown
    without equations, which looks like freedom.
    """
    written: dict[int, dict[int, Block]] = {}
    readers: dict[int, list[Tensor]] = {}
    for op in build.ops:
        _write(written, op.out, layout)
    for tensor in _read(build):
        if tensor.owner.producer is None and tensor.owner.serial not in written:
            _write(written, tensor.owner, layout)
        readers.setdefault(tensor.owner.serial, []).append(tensor)
    for tensors in readers.values():
        known = written.get(tensors[0].owner.serial, {})
        blocks = [block for tensor in tensors for block in tensor_blocks(tensor, layout)]
        if not all(_agree(block, known.get(block.key[1])) for block in blocks):
            nodes = [node for tensor in (*tensors, tensors[0].owner) for node in tensor.axes]
            yield tensors, nodes


def _read(build: Builder) -> Iterator[Tensor]:
    """Every moving tensor that an operation reads, or that is looked at from outside."""
    outputs = (build.tensor(value) for value in build.graph.outputs)
    inside = (tensor for op in build.ops for tensor in op.inputs)
    return (tensor for tensor in itertools.chain(inside, outputs) if tensor.moves)


def _write(written: dict[int, dict[int, Block]], tensor: Tensor, layout: Layout) -> None:
    for block in tensor_blocks(tensor, layout):
        written.setdefault(block.key[0], {})[block.key[1]] = block


def _agree(read: Block, written: Block | None) -> bool:
    """Whether a reader and the writer count the entries of a block alike."""
    return written is not None and {s: leaf for _, leaf, s in read.slots} == {
        s: leaf for _, leaf, s in written.slots
    }

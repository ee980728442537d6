"""What inputs of these lengths do not read of a tensor, and longer ones would.

A table of positions is cut to as many as there are, a causal mask along both of its axes. The rest
of the axis keeps its order; and as inputs that read it read it in the place of the rows that are
read now, it moves as these do. That is said by an operation that nobody wrote, their difference:
its output is seen, so that scales, bases and shifts of the rest are those of the rows beside it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

import torch

from paramsym.lowering.builder import Builder, Tensor
from paramsym.lowering.held import read_all
from paramsym.primitives import index as ix
from paramsym.primitives.index import Node

BEYOND = "it is beyond what these inputs read"


def hold_beyond(build: Builder) -> None:
    """Freeze the part of an axis that nobody reads beside one that is read, and tie it to it."""
    build.where = "what is beyond these inputs"
    for tensor, axis, start, length, beside in [*_beyond(build)]:
        rest, row = build.narrow(tensor, axis, start, length), build.narrow(tensor, axis, beside, 1)
        build.same([rest, row], signs=(1, -1))


def _beyond(build: Builder) -> Iterator[tuple[Tensor, int, int, int, int]]:
    """Parameters and buffers with an axis, where a part of it begins that nobody reads, how long it
    is, and where one begins that is read; of tensors whose numbers may move."""
    windows = _windows(build)
    for value in [*build.graph.parameters.values(), *build.graph.buffers.values()]:
        tensor = build.tensor(value)
        for axis, node in enumerate(tensor.axes):
            parts = [*parts_of(node)]
            if len(parts) < 2 or not any(ix.is_frozen(part) for _, part in parts):
                continue
            read = _read(tensor, windows[tensor.serial], axis)
            beside = [(k, part) for k, part in parts if read[k : k + part.size].any()]
            if not beside or not all(ix.is_frozen(part) for _, part in beside):
                continue  # units, of which some are not used
            for start, part in parts:
                if not read[start : start + part.size].any():
                    ix.freeze(part, BEYOND)
                    if not tensor.integral:
                        yield tensor, axis, start, part.size, beside[0][0]


def _windows(build: Builder) -> dict[int, list[Tensor]]:
    """What operations and outputs look at, by the tensor whose storage it is."""
    read_all(build)  # windows divide what they look at when they are read
    found: dict[int, list[Tensor]] = defaultdict(list)
    outputs = map(build.tensor, build.graph.outputs)
    for tensor in [*(t for op in build.ops for t in op.inputs), *outputs]:
        found[tensor.owner.serial].append(tensor)
    return found


def _read(tensor: Tensor, windows: list[Tensor], axis: int) -> torch.Tensor:
    """Which places of an axis some window looks at."""
    seen = torch.zeros(math.prod(tensor.shape), dtype=torch.bool)
    for window in windows:
        seen.as_strided(window.shape, window.strides, window.offset).fill_(True)
    return seen.reshape(tensor.shape).movedim(axis, 0).reshape(tensor.shape[axis], -1).any(1)


def parts_of(node: Node) -> Iterator[tuple[int, Node]]:
    """The summands of an axis, each with its first entry."""
    start = 0
    for part in ix.summands(node):
        yield start, part
        start += part.size

"""What types can say: one type for each axis, or one for each piece of another axis.

The blocks of a tensor that share a piece of one axis may carry different things there: of
`w[3, head, d, e]` read as queries, keys and values the last axis is the dual in one slice of what
it is in another. That is said where the blocks differ by the pieces of other axes alone, and where
these other axes have one type each. Units that alternate along one axis, as in `kv[..., ::2]`, are
a factor in front of one that has pieces, and are told by these.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import cached_property

from paramsym.primitives import index as ix
from paramsym.primitives.blocks import Block, tensor_blocks
from paramsym.primitives.index import Node
from paramsym.primitives.tensor import Tensor
from paramsym.tracing.circuit import Circuit

Axis = tuple[str, int]  # a parameter, and one of its axes
Reading = tuple[int, int]  # where the reading of a leaf starts on an axis; its stride
Slot = tuple[int, int, int]


class Said:
    """Which axes have one type, and of which others the type depends on the piece."""

    def __init__(self, parameters: Mapping[str, Tensor], circuit: Circuit):
        self.parameters, self.circuit = parameters, circuit
        self.by: dict[Axis, set[int]] = defaultdict(set)
        self.whole: set[Axis] = set()  # axes that are not cut
        self._starts: dict[Axis, list[int]] = {}
        self._inner = {
            (name, axis): dict(_followed([node], 0, 1, tensor.strides[axis]))
            for name, tensor in parameters.items()
            for axis, node in enumerate(tensor.axes)
        }

    def admits(self, leaf: int, value: Callable[[Slot], Hashable], pieces: bool = True) -> bool:
        """Whether types can say this of each slot of a leaf, together with all before.

        Args:
            leaf: its serial number.
            value: what a slot carries; blocks that are given one type have to agree.
            pieces: whether a type for each piece of another axis will do. It is kept in mind, and
                the axes that it asks for are not cut otherwise.
        """
        told: dict[tuple[Axis, Reading], dict[Block, Hashable]] = defaultdict(dict)
        for axis, reading, block, slot in self._readings.get(leaf, ()):
            told[axis, reading][block] = value(slot)
        asked: dict[Axis, set[int]] = {}
        for (axis, reading), values in told.items():
            if len({*values.values()}) == 1:
                continue
            found = self._cuts(axis, reading, values) if pieces else None
            if found is None:
                return False
            asked.setdefault(axis, set()).update(found - {axis[1]})
        if not self._fits(asked):
            return False
        for axis, cuts in asked.items():
            self.by[axis] |= cuts
        return True

    def keeps(self, axes: Iterable[Axis]) -> bool:
        """Whether some axes are one each; then no later type is told by their pieces."""
        axes = {*axes}
        if any(map(self.is_cut, axes)):
            return False
        self.whole |= axes
        return True

    def is_cut(self, axis: Axis) -> bool:
        """Whether the types of other axes are told by the pieces of an axis."""
        return any(name == axis[0] and axis[1] in cuts for (name, _), cuts in self.by.items())

    def piece(self, axis: Axis, block: Block) -> int:
        """The piece of an axis in which a block lies: its number."""
        place = block.places[axis[1]]
        starts = self._starts.get(axis)
        if starts is None:
            node = self.parameters[axis[0]].axes[axis[1]]
            sizes = (piece.size for piece in ix.summands(node))
            starts = self._starts[axis] = [*itertools.accumulate(sizes, initial=0)][:-1]
        return 0 if place is None else bisect.bisect_right(starts, place.start) - 1

    def _cuts(
        self, axis: Axis, reading: Reading, values: Mapping[Block, Hashable]
    ) -> set[int] | None:
        """The fewest axes whose pieces tell what each block carries; None if none do.

        The axis itself is among them where what stands behind the leaf tells it.
        """
        left = [*range(self.parameters[axis[0]].ndim)]

        def piece(k: int, block: Block) -> int:
            if k != axis[1]:
                return self.piece((axis[0], k), block)
            return self.behind(axis, reading, block)

        def tell(axes: list[int]) -> bool:
            seen: dict[tuple, Hashable] = {}
            return all(
                seen.setdefault(tuple(piece(k, b) for k in axes), v) == v for b, v in values.items()
            )

        if not tell(left):
            return None
        for k in [axis[1], *left]:
            if k in left and tell(without := [j for j in left if j != k]):
                left = without
        return {*left}

    def behind(self, axis: Axis, reading: Reading, block: Block) -> int:
        """The piece of what stands behind a leaf in which a block lies: its number."""
        place, starts = block.places[axis[1]], self._inner[axis][reading]
        inner = 0 if place is None else place.start - reading[0]
        return max(0, bisect.bisect_right(starts, inner) - 1)

    def _fits(self, asked: Mapping[Axis, set[int]]) -> bool:
        """Whether no axis that others depend on depends on one itself, or is not cut."""
        after = {**self.by, **{x: self.by.get(x, set()) | cuts for x, cuts in asked.items()}}
        told = {(name, k) for (name, _), cuts in after.items() for k in cuts}
        return self.whole.isdisjoint(told) and not any(after.get(axis) for axis in told)

    def read(self, tensor: Tensor) -> list[Block]:
        """The blocks that anything depends on: the others, such as rows that a text of this length
        does not reach, are said to carry what these do. All, if there are none."""
        blocks = tensor_blocks(tensor, self.circuit.layout)
        return [b for b in blocks if self.circuit.is_read(b.key)] or [*blocks]

    @cached_property
    def _readings(self) -> dict[int, list[tuple[Axis, Reading, Block, Slot]]]:
        """By leaf each place where a type speaks of it: axis, what is read there, block, slot."""
        found = defaultdict(list)
        for name, tensor in self.parameters.items():
            for block in self.read(tensor):
                for axis, origin, leaf, stride in block.readings():
                    slot = (*block.key, stride)
                    found[leaf.serial].append(((name, axis), (origin, stride), block, slot))
        return found


def _followed(
    parts: list[Node], start: int, size: int, unit: int
) -> Iterator[tuple[Reading, list[int]]]:
    """The reading of each leaf of an axis, and where the pieces begin of what stands behind it."""
    parts = [p for part in parts for p in ix.factors(part)]
    if not parts:
        return
    head, rest = parts[0], parts[1:]
    inner = math.prod(p.size for p in rest) * size
    if head.kind == "sum":
        for term in ix.terms(head):
            yield from _followed([term, *rest], start, size, unit)
            start += term.size * inner
        return
    terms = ix.terms(rest[0]) if rest and rest[0].kind == "sum" else []
    lengths = [term.size * (inner // rest[0].size) for term in terms]
    yield (start, inner * unit), [*itertools.accumulate(lengths, initial=0)][:-1]
    yield from _followed(rest, start, size, unit)

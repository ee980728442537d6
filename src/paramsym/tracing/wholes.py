"""Sizes of wholes: scales of no unit, but of a tensor or of a piece of one of its axes."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from paramsym.primitives import index as ix
from paramsym.primitives.blocks import Block, Layout, tensor_blocks
from paramsym.primitives.solve import Number
from paramsym.primitives.tensor import Tensor


def size_on(
    exponents: Mapping[Any, Number], tensor: Tensor, layout: Layout
) -> tuple[int, tuple[Number, ...]] | None:
    """Where a tensor says the size of a whole: the axis, and the power on each of its pieces.

    On the first axis where all is of one size, otherwise on one whose pieces tell the sizes. None
    where no axis tells them.
    """
    powers = {b: exponents.get((*b.key, ()), 0) for b in tensor_blocks(tensor, layout)}
    if len({*powers.values()}) == 1:
        return (0, (next(iter(powers.values())),)) if tensor.ndim else None
    for axis in range(tensor.ndim):
        found = _by_piece(powers, axis)
        sizes = (piece.size for piece in ix.summands(tensor.axes[axis]))
        starts = [*itertools.accumulate(sizes, initial=0)][:-1]
        if sorted(found) == starts and all(len(values) == 1 for values in found.values()):
            return axis, tuple(next(iter(found[start])) for start in starts)
    return None


def _by_piece(powers: Mapping[Block, Number], axis: int) -> dict[int, set[Number]]:
    """The powers of the blocks of each piece of an axis, by where it starts."""
    found: dict[int, set[Number]] = defaultdict(set)
    for block, power in powers.items():
        place = block.places[axis]
        found[0 if place is None else place.start].add(power)
    return found


def is_single(block: Block) -> bool:
    """Whether a block is one unit on some axis."""
    return any(place is None or not place.leaves for place in block.places)

"""A joint: one primitive at one choice of blocks of its inputs and output."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from paramsym.primitives.blocks import Block, Layout, Place

Key = tuple[int, int]  # a block: owner of the storage, first entry
Slot = tuple[int, int, int]  # owner, first entry, stride
At = tuple[Any, int]  # label, position of the leaf in the place


class Joint:
    """What a primitive reads and writes at one choice of a place for every label.

    `op` is the primitive, `where` the places by label; `inputs` and `out` are the blocks, whose
    axes carry the labels `labels` (inputs first, the output last). `sizes` knows the length of
    every slot of the network.
    """

    def __init__(
        self, op: Any, where: Mapping[Any, Place], inputs: tuple[Block, ...], out: Block,
        labels: list[tuple], layout: Layout, sizes: dict[Slot, int],
    ):  # fmt: skip
        self.op, self.where, self.inputs, self.out = op, where, inputs, out
        self.labels, self.layout, self.sizes = labels, layout, sizes
        self._slots: dict[int, dict[At, int]] = {}
        self._whole: dict[int, frozenset[int]] = {}
        self._forward: dict[int, dict[int, int]] = {}

    @cached_property
    def keys(self) -> tuple[Key, ...]:
        """The names of the input blocks."""
        return tuple(block.key for block in self.inputs)

    def slots(self, k: int) -> dict[At, int]:
        """(label, position) → storage stride, of input k or of the output (−1)."""
        found = self._slots.get(k)
        if found is None:
            block = self.out if k < 0 else self.inputs[k]
            found = self._slots[k] = {}
            for axis, (label, place) in enumerate(zip(self.labels[k], block.places, strict=True)):
                if place is not None and block.tensor.strides[axis] != 0:
                    for position in range(len(place.leaves)):
                        found[label, position] = block.stride(axis, position)
        return found

    def whole(self, k: int) -> frozenset[int]:
        """The slots of input k, or of the output (−1), that are seen here as a whole.

        A window in a coarse place sees less. It is asked when every joint of the network is known.
        """
        found = self._whole.get(k)
        if found is None:
            block = self.out if k < 0 else self.inputs[k]
            found = self._whole[k] = frozenset(
                stride for stride, size in block.sizes.items()
                if size == self.sizes.get((*block.key, stride), size)
            )  # fmt: skip
        return found

    def is_single(self, k: int, axis: int) -> bool:
        """Whether this joint spans an axis of input k, or of the output (−1)."""
        block = self.out if k < 0 else self.inputs[k]
        length, place = block.tensor.shape[axis], block.places[axis]
        return length == 1 or (
            place is not None and math.prod(leaf.size for leaf, _ in place.leaves) == length
        )

    @cached_property
    def is_partial(self) -> bool:
        """Whether what the primitive combines lies elsewhere, too: a part shows in all others."""
        return not all(self.is_single(-1, label) for label in self.op.combined)

    def forward(self, k: int) -> Mapping[int, int]:
        """Slots of input k that the output has as well: stride there → stride in the output."""
        found = self._forward.get(k)
        if found is None:
            target = self.slots(-1)
            found = self._forward[k] = {
                stride: target[at] for at, stride in self.slots(k).items() if at in target
            }
        return found

"""Over which leaves a change of basis or an order may depend: heads may move each by itself.

What acts on a leaf may differ between the units of another leaf if that one accompanies it in
every tensor, at the same places of every operation. Where the units of a leaf are compared with
each other, they tell no copies apart. A tensor may carry them at a second place, too: the weights
with which the coordinates of every head decide something about every head.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from paramsym.lowering.builder import Builder
from paramsym.primitives.blocks import Block, Layout, tensor_blocks
from paramsym.primitives.joint import Joint, Slot
from paramsym.primitives.tensor import Tensor

At = tuple[Any, int]  # label, position of the leaf in the place


def order_copies(
    build: Builder,
    layout: Layout,
    parameters: Mapping[str, Tensor],
    company: Mapping[int, set[int]],
) -> dict[int, set[int]]:
    """For each leaf, by serial number, the leaves on which its order may depend."""
    over = _present_together(build, layout, parameters)
    for leaf, found in company.items():
        if leaf in over:
            over[leaf] &= found
    return over


def _present_together(
    build: Builder, layout: Layout, parameters: Mapping[str, Tensor]
) -> dict[int, set[int]]:
    """The leaves that stand beside a leaf in every block of every tensor."""
    over: dict[int, set[int]] = {}
    tensors = [*parameters.values()]
    for op in build.ops:
        tensors += [op.out, *op.inputs]
    for tensor in {id(t): t for t in tensors if t.moves}.values():
        for block in tensor_blocks(tensor, layout):
            present = [leaf.serial for _, leaf, _ in block.slots]
            for leaf in present:
                others = {x for x in present if x != leaf}
                over[leaf] = others if leaf not in over else over[leaf] & others
    return over


class Company:
    """Which leaves stand beside a leaf in all moving tensors of a joint, at the same labels.

    In y·yᵀ the copy of head i meets the copy of head j: there is no label that both have.
    """

    def __init__(self, joint: Joint, blocks: list[Block], slots: list[dict[At, int]]):
        self.moves = [block.tensor.moves for block in blocks]
        self.slots, self.where, self.combined = slots, joint.where, joint.op.combined

    @cached_property
    def leaves(self) -> list[dict[At, int]]:
        """(label, position) → serial of the leaf, for each tensor."""
        return [
            {at: self.where[at[0]].leaves[at[1]][0].serial for at in found} for found in self.slots
        ]

    def of(self, at: At, found: list[Slot | None]) -> dict[int, At] | None:
        """The company of the leaf at a place, and where it stands; None where the leaf itself
        stands in no moving tensor."""
        seen = [
            leaves
            for slot, moves, leaves in zip(found, self.moves, self.leaves, strict=True)
            if slot is not None and moves
        ]
        if not seen:
            return None
        shared = set.intersection(*({*leaves} for leaves in seen)) - {at}
        known: dict[int, At] = {}
        twice: set[int] = set()
        for place in shared:
            if place[0] not in self.combined:
                serial = seen[0][place]
                if serial in known:
                    twice.add(serial)
                known[serial] = place
        return {serial: place for serial, place in known.items() if serial not in twice}

    def choices(self, k: int, at: At, shared: Mapping[int, At]) -> dict[int, int]:
        """Of leaves that tensor k has at several places: the stride of the one that is meant."""
        leaves = self.leaves[k]
        if len({*leaves.values()}) == len(leaves):
            return {}
        others = [serial for place, serial in leaves.items() if place != at]
        return {
            serial: self.slots[k][place]
            for serial, place in shared.items()
            if others.count(serial) > 1 and place in self.slots[k]
        }


class Telling:
    """Which place of a block tells the copies of a slot apart, where a leaf stands at several."""

    def __init__(self) -> None:
        self.strides: dict[Slot, dict[int, int]] = {}  # slot → leaf → the stride that is meant
        self.unclear: set[tuple[Slot, int]] = set()  # where two operations mean two places

    def note(self, slot: Slot, choices: Mapping[int, int]) -> None:
        """What one operation means."""
        for serial, stride in choices.items():
            if self.strides.setdefault(slot, {}).setdefault(serial, stride) != stride:
                self.unclear.add((slot, serial))

    def of(self, slot: Slot) -> Mapping[int, int]:
        """Of leaves that stand at several places of the block of a slot: the strides meant."""
        return self.strides.get(slot, {})

    def pull(self, joint: Joint) -> None:
        """What is meant in a tensor that was joined is meant in each piece."""
        for k, key in enumerate(joint.keys):
            forward = joint.forward(k)
            back = {there: here for here, there in forward.items()}
            for here, there in forward.items():
                meant = self.of((*joint.out.key, there)).items()
                choices = {serial: back[s] for serial, s in meant if s in back}
                self.note((*key, here), choices)

    def compare(self, parameters: Iterable[Tensor], layout: Layout) -> None:
        """Mark what the type of a parameter would say otherwise, or says where nothing is meant."""
        for block in (b for t in parameters for b in tensor_blocks(t, layout)):
            serials = [leaf.serial for _, leaf, _ in block.slots]
            if len({*serials}) == len(serials):
                continue
            for at, (_, _, stride) in enumerate(block.slots):
                slot, others = (*block.key, stride), serials[:at] + serials[at + 1 :]
                for serial in {x for x in others if others.count(x) > 1}:
                    if self.of(slot).get(serial) != told_by_type(block, at, serial):
                        self.unclear.add((slot, serial))


def told_by_type(block: Block, at: int, serial: int) -> int | None:
    """The stride of the copies that a type means: those on the same axis, closest from outside,
    or else the first (see `paramsym.structure.walk`)."""
    axis = block.slots[at][0]
    found = [k for k, (_, leaf, _) in enumerate(block.slots) if leaf.serial == serial and k != at]
    own = [k for k in found if block.slots[k][0] == axis]
    chosen = [k for k in own if k < at][-1:] or own or found
    return block.slots[chosen[0]][2] if chosen else None

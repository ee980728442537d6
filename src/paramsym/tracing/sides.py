"""Parameters on the side of a stream: blocks that write or read a space along one slot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paramsym.primitives import Concatenate, Contract, Lookup, Mix, Primitive, Reduce, Sum
from paramsym.primitives.blocks import Block
from paramsym.primitives.joint import At, Joint, Key
from paramsym.primitives.tensor import Tensor
from paramsym.primitives.words import Letter, Speller, Word, fresh
from paramsym.structure.shift import Window
from paramsym.tracing.circuit import Circuit


@dataclass(frozen=True, eq=False)
class Side:
    """A block of a parameter, with the slot along which it writes or reads a space."""

    block: Block
    slot: int

    @property
    def name(self) -> str:
        return self.block.tensor.owner.name

    @property
    def place(self) -> tuple[Key, int]:
        return self.block.key, self.slot

    @property
    def slots(self) -> tuple[tuple[int, int], ...]:
        """The stride and the size of each slot."""
        return tuple((stride, leaf.size) for _, leaf, stride in self.block.slots)

    def moving(self, spell: Speller, into: Letter, out: Letter) -> tuple[Window, Word]:
        """Where it changes, with a letter along its slot, and what is read there with another."""
        rest = {s: fresh() for s, _ in self.slots}
        at, by = (tuple((rest | {self.slot: x})[s] for s, _ in self.slots) for x in (into, out))
        window = spell.window(self.name, self.block.start, self.slots, at)
        return window, Word(self.name, self.block.start, self.slots, by)


def side_of(
    circuit: Circuit, parameters: Mapping[str, Tensor], block: Block, slot: int
) -> Side | None:
    """A block of a parameter that is read as a whole, with one of its slots."""
    owner = block.tensor.owner
    known = owner.producer is None and owner.name in parameters
    readers = circuit.readers[block.key]
    whole = all(s in other.whole(n) for other, n in readers for s in block.sizes)
    once = len(block.sizes) == len(block.slots) and block.start == block.key[1]
    return (
        Side(block, slot) if known and whole and once and not circuit.is_seen(block.key) else None
    )


def place_of(joint: Joint, k: int, slot: int) -> At:
    """The label and position of a slot of input k, or of the output (−1)."""
    return next(at for at, s in joint.slots(k).items() if s == slot)


def contracted(joint: Joint, k: int, slot: int) -> int | None:
    """The slot of the other factor of a product with which a slot of input k is contracted."""
    if not is_product(joint.op):
        return None
    at = place_of(joint, k, slot)
    return None if at in joint.slots(-1) else joint.slots(1 - k).get(at)


def is_product(op: Primitive) -> bool:
    """Whether an operation is a plain product of two different tensors."""
    return type(op) is Contract and op.power == 1 and not op.is_square


def passed_on(joint: Joint, k: int, slot: int) -> tuple[Key, int] | None:
    """The space that takes up input k along a slot, all coordinates alike."""
    there = joint.forward(k).get(slot)
    if there is None or k not in terms_of(joint, place_of(joint, k, slot)):
        return None
    return joint.out.key, there


def terms_of(joint: Joint, at: At) -> list[int]:
    """The inputs of which an output is a linear function that is alike for all coordinates."""
    having = [k for k in range(len(joint.inputs)) if at in joint.slots(k)]
    op = joint.op
    if type(op) is Sum:
        return having if len(having) == len(joint.inputs) else []
    linear = (
        op.is_linear if isinstance(op, (Mix, Reduce)) else isinstance(op, (Lookup, Concatenate))
    )
    return having if (linear or is_product(op)) and len(having) == 1 else []

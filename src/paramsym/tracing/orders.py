"""Which slots follow one order.

Units that an operation counts alike trade places together, and an index type says which those are
in tensors as a whole. A parameter that is read slice by slice has one type for all of its slices,
though the units of each may have an order of their own: of two layers in one `w[2, n, m]`, or of
experts that are called one after the other. So orders are looked for slot by slot, as changes of
basis are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from paramsym.primitives.joint import Joint, Slot
from paramsym.tracing.circuit import Circuit
from paramsym.tracing.transport import Transport


class Orders:
    """The union–find of slots that follow one order."""

    def __init__(self, circuit: Circuit):
        self._same: Transport[tuple, None] = Transport(None, lambda _outer, _inner: None)
        for joint in circuit.joints:
            self._follow(joint)

    def root(self, slot: Slot) -> tuple:
        """What all slots of one order have in common."""
        return self._same.find(slot)[0]

    def join(self, slots: Collection[Slot]) -> None:
        """Let some slots follow one order."""
        for slot in slots:
            self._link(next(iter(slots)), slot)

    def classes(self, slots: Iterable[Slot]) -> list[set[Slot]]:
        """Some slots by the order that they follow, by appearance."""
        found: dict[tuple, set[Slot]] = defaultdict(set)
        for slot in slots:
            found[self.root(slot)].add(slot)
        return [*found.values()]

    def _follow(self, joint: Joint) -> None:
        """Let what stands at the same place of a joint follow one order."""
        for k, block in (*enumerate(joint.inputs), (-1, joint.out)):
            for at, stride in joint.slots(k).items():
                leaf = joint.where[at[0]].leaves[at[1]][0]
                if leaf.frozen:
                    continue
                slot = (*block.key, stride)
                self._link((id(joint), at), slot)
                if k < 0 and joint.is_partial and at[0] not in joint.op.combined:
                    # what is combined is ordered as one, in whichever joint a part of it lies
                    beside = (p.start for n, p in joint.where.items() if n not in joint.op.combined)
                    self._link((id(joint.op), at, *beside), slot)

    def _link(self, one: tuple, other: tuple) -> None:
        first, second = self._same.find(one)[0], self._same.find(other)[0]
        if first != second:
            self._same.link(second, first, None)

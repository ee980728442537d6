"""The spaces of units: orders, and what counts the copies of other spaces.

An order is a space of its own, over whose units scales stand as scalars; it is one space with its
scale where no tensor tells the two apart.
"""

from __future__ import annotations

from typing import Protocol

from paramsym.algebra import AbstractMonomial, Permutation
from paramsym.algebra.lattice import monomial
from paramsym.lowering.builder import Builder
from paramsym.primitives import index as ix
from paramsym.primitives.blocks import Block
from paramsym.primitives.index import Node
from paramsym.primitives.joint import Slot
from paramsym.tracing import stacks
from paramsym.tracing.bases import Bases
from paramsym.tracing.carrier import Carrier
from paramsym.tracing.circuit import Circuit
from paramsym.tracing.orders import Orders
from paramsym.tracing.reasons import Reasons
from paramsym.tracing.scales import Generator


class Found(stacks.Found, Protocol):
    """What is known of the spaces of a network once changes of basis and scales are found."""

    build: Builder
    circuit: Circuit
    mixing: Bases
    class_of: dict[tuple, tuple[Carrier, int, tuple]]
    blocks: dict[tuple[int, int], Block]
    over: dict[int, set[int]]
    stacked: dict[tuple[int, int], Node]
    reasons: Reasons

    def before(self, leaf: Node, bases: set[int]) -> tuple[Node, ...]:
        """Those bases that come before a leaf."""
        ...


class Units:
    """Finds the units of all leaves, once changes of basis and scales are known."""

    def __init__(self, found: Found):
        self.found, self.carriers = found, found.carriers
        self.by: dict[Slot | int, Carrier] = {}  # the units at a slot; one of those of a leaf
        self.orders = self._told()
        # units stand over earlier leaves only, so that the last leaves come first
        for _, leaf in sorted(found.leaves.items(), key=lambda item: -found.rank[item[0]]):
            for slots in self._classes(leaf):
                self._find(leaf, slots)
        for carrier in self.carriers:
            carrier.bases = tuple(self._counting(carrier, leaf) for leaf in carrier.over)

    def _counting(self, carrier: Carrier, leaf: Node) -> Carrier:
        """The units of a leaf that count the copies of a space."""
        units = self.of(leaf, min(self._on(carrier, leaf)))
        assert units is not None
        return units

    def of(self, leaf: Node, slot: Slot) -> Carrier | None:
        """The units of a leaf at a slot; where nobody reads it, those of another one."""
        return self.by.get(slot if self.found.circuit.is_read(slot[:2]) else leaf.serial)

    # -- orders ------------------------------------------------------------------------------
    def _told(self) -> dict[int, list[set[Slot]]]:
        """For leaves with several orders the slots of each, as far as types can say it.

        Where each slice of a stack has an order, it is one order with copies over the slices.
        """
        orders = Orders(self.found.circuit)
        counted = {*self.found.slices.values()}
        for carrier in self.carriers:
            own = [carrier.leaf] if carrier.leaf and counted.isdisjoint(carrier.over) else []
            for leaf in (*own, *carrier.over):
                orders.join(self._on(carrier, leaf))
        found: dict[int, list[set[Slot]]] = {}
        untold = self._untold()
        for leaf in [*self.found.leaves.values()]:
            classes = [] if leaf.frozen or leaf in untold else orders.classes(self._slots(leaf))
            if len(classes) < 2 or self._is_stacked(leaf, classes):
                continue
            sliced = any(c.leaf is leaf and not counted.isdisjoint(c.over) for c in self.carriers)
            if not sliced and self.found.said.admits(leaf.serial, orders.root):
                found[leaf.serial] = classes
        return found

    def _untold(self) -> set[Node]:
        """The leaves of which joints do not say all that is counted alike: those of held storages,
        which may be read in two ways, and those of what steers a choice."""
        axes = [node for tensor in self.found.build.anchors for node in tensor.axes]
        steering = {leaf for node in axes for leaf in ix.leaves(node)}
        return steering | {
            leaf for block, _ in self.found.circuit.held for _, leaf, _ in block.slots
        }

    def _is_stacked(self, leaf: Node, classes: list[set[Slot]]) -> bool:
        """Whether some orders are those of all slices of a stack; then its slices are counted."""
        orders = [
            Generator((leaf.serial,), {(*slot[:2], (slot[2],)): 1 for slot in slots})
            for slots in classes
        ]
        whole = [*stacks.stacks(orders, self.found.blocks, self.found.stacked)]
        if len(whole) != 1 or len(whole[0].slices) < len(classes):
            return False
        base = whole[0].base
        if any(leaf in c.over or c.leaf is leaf and base not in c.over for c in self.carriers):
            return False
        counted = stacks.count_slices(self.found, whole[0])
        if counted:
            self.found.over.setdefault(leaf.serial, set()).add(base.serial)
        return counted

    def _classes(self, leaf: Node) -> list[set[Slot]]:
        """The slots of a leaf in all parameters, by the order that they follow."""
        return self.orders.get(leaf.serial) or [{*self._slots(leaf)}]

    def _slots(self, leaf: Node) -> list[Slot]:
        return [slot for _, _, slot in self.found.slots[leaf.serial]]

    def _on(self, carrier: Carrier, leaf: Node) -> set[Slot]:
        """The slots of a leaf where a carrier acts, or in the blocks where it does; all, if the
        leaf counts slices."""
        slots, own = {*self._slots(leaf)}, carrier.everywhere
        if leaf is not carrier.leaf:
            blocks = {slot[:2] for slot in own}
            own = {slot for slot in slots if slot[:2] in blocks}
        return slots & own or slots

    # -- spaces ------------------------------------------------------------------------------
    def _find(self, leaf: Node, slots: set[Slot]) -> None:
        """A space for some units that have an order, or count copies of other spaces."""
        above = [c for c in self.carriers if leaf in c.over and slots & self._on(c, leaf)]
        free = not leaf.frozen and leaf.size > 1 and not self._is_mixed(leaf, slots)
        if not free and not above:
            return
        scales = [
            c for c in self.carriers
            if c.leaf is leaf and c.mixing is None and not slots.isdisjoint(c.exponents)
        ]  # fmt: skip
        units = Carrier(leaf, monomial(leaf.size, free, False, False), (), slots=slots)
        if free:
            units.over = self._copies(units, [*scales, *above])
        self._stand_over(units, scales)

    def _copies(self, units: Carrier, shared: list[Carrier]) -> tuple[Node, ...]:
        """The bases for each of which units have an order of their own.

        What copies share cannot follow another order in each of them.
        """
        assert units.leaf is not None
        before = self.found.before(units.leaf, self.found.over.get(units.serial, set()))
        return tuple(
            base for base in before
            if all(base in c.over for c in shared)
            and any(self._on(units, base) <= slots for slots in self._classes(base))
        )  # fmt: skip

    def _stand_over(self, units: Carrier, scales: list[Carrier]) -> None:
        """Let the scales of a leaf follow its units: as scalars, or as one space with them."""
        leaf, slots = units.leaf, units.slots
        assert leaf is not None
        if len(scales) == 1:
            (only,) = scales
            kept = {slot for slot in slots if slot[0] in self.found.build.kept}
            if only.over == units.over and only.exact and slots - kept <= only.exponents.keys():
                # a buffer of squares follows the order of signs, which it does not see
                only.exponents |= dict.fromkeys(slots - only.exponents.keys(), 0)
                assert isinstance(only.group, AbstractMonomial)
                ordered = isinstance(units.group, Permutation)
                only.group = monomial(leaf.size, ordered, only.group.signs, only.group.scales)
                self.by |= dict.fromkeys((leaf.serial, *slots), only)
                return
        units.why = self.found.reasons.of_order(leaf) or leaf.frozen
        for scale in scales:
            assert isinstance(scale.group, AbstractMonomial)
            scale.group = monomial(1, False, scale.group.signs, scale.group.scales)
            scale.over = (*scale.over, leaf)
        self.carriers.append(units)
        self.by |= dict.fromkeys((leaf.serial, *slots), units)

    def _is_mixed(self, leaf: Node, slots: set[Slot]) -> bool:
        """Whether the permutations of some units are contained in their changes of basis."""
        if not self.found.mixed[leaf.serial]:
            return False
        return all(slot in self.found.class_of or self._is_gain(slot) for slot in slots)

    def _is_gain(self, slot: Slot) -> bool:
        if slot not in self.found.mixing:
            return True
        return self.found.mixing.class_of(slot).held == "it is a gain"

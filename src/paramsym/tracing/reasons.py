"""Why a space is not freer: the function that the user wrote, before what it was lowered to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from paramsym.primitives import POWERS, Map, Primitive
from paramsym.primitives import index as ix
from paramsym.primitives.index import Node
from paramsym.tracing.bases import Bases
from paramsym.tracing.scales import Freedom, Generator


@dataclass(eq=False)
class Reasons:
    """Looks for the operation that binds the units of a leaf most."""

    ops: Sequence[Primitive]
    mixing: Bases
    freedom: Freedom
    slots: Mapping[int, list[tuple[str, int, tuple]]]  # (parameter, axis, slot) by leaf

    def of_scale(self, generator: Generator) -> str:
        """Why a scale is no change of basis."""
        reasons = [
            self.functions.get(leaf) or self.bases.get(leaf, "") for leaf in generator.component
        ]
        return next(filter(None, reasons), "a gain scales each coordinate by itself")

    def of_order(self, leaf: Node) -> str:
        """Why units can only trade places."""
        found = self.functions.get(leaf.serial) or self.bases.get(leaf.serial, "")
        return found or self._of_equations(leaf)

    @cached_property
    def bases(self) -> dict[int, str]:
        """For each leaf why it has no change of basis."""
        found: dict[int, str] = {}
        for leaf, slots in self.slots.items():
            held = (self.mixing.class_of(slot).held for _, _, slot in slots if slot in self.mixing)
            found[leaf] = next((why for why in held if why and why != "it is a gain"), "")
        return found

    def _of_equations(self, leaf: Node) -> str:
        """The operation that pinned the scales of a leaf."""
        system = self.freedom.scales.get((leaf.serial,))
        for _, _, slot in self.slots[leaf.serial]:
            unknown = (slot[0], slot[1], (slot[2],))
            if system is not None:
                root, _ = system.find(unknown)
                if root in system.why:
                    return system.why[root]
        return ""

    @cached_property
    def functions(self) -> dict[int, str]:
        """For each leaf the function of single coordinates that binds it most: one without a
        degree before homogeneous ones, and these before plain powers."""
        bound: dict[int, tuple[int, str]] = {}
        for op in self.ops:
            name = op.name if isinstance(op, Map) else ""
            if not isinstance(op, Map) or not name or not op.inputs[0].moves:
                continue
            rank = 2 if name in (*POWERS, "shift") else int(op.degree is not None)
            text = f"{name} acts on each coordinate at {op.where}"
            for leaf in (leaf for axis in op.inputs[0].axes for leaf in ix.leaves(axis)):
                known = bound.get(leaf.serial)
                if known is None or rank < known[0]:
                    bound[leaf.serial] = (rank, text)
        return {leaf: text for leaf, (_, text) in bound.items()}

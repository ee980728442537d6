"""A space in the making."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

from paramsym.algebra import Group
from paramsym.primitives.index import Node
from paramsym.primitives.joint import Slot
from paramsym.primitives.solve import Number
from paramsym.tracing.bases import BasisClass


@dataclass(eq=False)
class Carrier:
    """What a space acts with, and on which slots."""

    leaf: Node | None
    group: Group
    over: tuple[Node, ...]
    exponents: dict[Any, Number] = field(default_factory=dict)  # unknown -> power
    mixing: BasisClass | None = None
    why: str = ""
    name: str = ""
    exact: bool = True
    slots: set[Slot] = field(default_factory=set)  # where it acts, unless as a scale
    bases: tuple[Carrier, ...] = ()  # the units that count its copies

    @property
    def serial(self) -> int:
        """The serial number of the leaf that it acts on; −1 for a size of the whole."""
        return -1 if self.leaf is None else self.leaf.serial

    @property
    def everywhere(self) -> Set[Slot]:
        """All slots where it acts."""
        return self.exponents.keys() | self.slots

"""Spaces: coordinates of one kind of feature, and the group that may act on them."""

from __future__ import annotations

from dataclasses import dataclass

from paramsym.algebra import Group


@dataclass(frozen=True)
class Space:
    """Coordinates of one kind of feature, and the group that may act on them.

    `over` names spaces of which every unit has its own copy of the group: a change of basis over
    heads, or one scalar (a group of size 1) over each unit of a layer. Orders are spaces as well,
    with the group Permutation; what follows an order stands over it. `why` says what keeps the
    group from being larger, and `exact` is False where it holds up to a stated quantity (the ε of
    a norm).
    """

    name: str
    group: Group
    over: tuple[str, ...] = ()
    why: str = ""
    exact: bool = True

    @property
    def size(self) -> int:
        """Coordinates of one copy."""
        return self.group.size

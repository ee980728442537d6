"""A union–find whose members are related to their representative by labels of a group.

Scales are multiples of one another, changes of basis are equal or dual up to a frame: each is a
relation x = ℓ · root with ℓ in a group, and what is joined twice must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Member = TypeVar("Member", bound=Hashable)
Label = TypeVar("Label")


class Transport(Generic[Member, Label]):
    """Classes of members; `compose(outer, inner)` multiplies labels, `one` is the neutral one."""

    def __init__(self, one: Label, compose: Callable[[Label, Label], Label]):
        self.one, self.compose = one, compose
        self.parent: dict[Member, tuple[Member, Label]] = {}

    def find(self, member: Member) -> tuple[Member, Label]:
        """(representative, label) with member = label · representative."""
        found = self.parent.get(member)
        if found is None:
            return member, self.one
        path = [member]
        while found[0] in self.parent:
            path.append(found[0])
            found = self.parent[found[0]]
        root, label = found
        for node in reversed(path[:-1]):  # path compression, from the root outwards
            label = self.compose(label, self.parent[node][1])
            self.parent[node] = (root, label)
        return root, label

    def link(self, child: Member, root: Member, label: Label) -> None:
        """Put a representative below another: child = label · root."""
        self.parent[child] = (root, label)

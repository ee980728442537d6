"""Choices by rank along an axis, told by a mask and not by positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from paramsym.primitives.base import Entrywise, centred
from paramsym.primitives.directions import Absence, Unseen
from paramsym.primitives.joint import Joint
from paramsym.primitives.sites import Equation, ScaleSite


@dataclass(eq=False, kw_only=True)
class Chosen(Entrywise):
    """Where the largest entries along one axis are: a mask, that follows the order of its units.

    A common shift of the entries changes no rank, and neither does a common positive factor.
    """

    noun = "a choice by rank"
    dim: int = 0

    @property
    def combined(self) -> tuple[Any, ...]:
        return (self.dim,)

    @property
    def common(self) -> tuple[int, ...]:
        return (self.dim,)

    def scales(self, at: ScaleSite) -> Iterator[Equation]:
        if at.signs or self.dim in at.inside:
            yield from at.hold()
            return
        if at.result is not None:
            yield from at.hold(at.result)
        yield from at.alike()  # entries in other blocks of the axis are compared with these

    def unread(
        self, joint: Joint, k: int, below: list[Unseen], absent: Mapping[Any, list[Absence]]
    ) -> list[Unseen]:
        return centred(joint, self.common)

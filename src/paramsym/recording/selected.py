"""What is known of rows that a network selects, and of the masks that select them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from paramsym.recording.visits import Chosen


class RowsMixed(RuntimeError):
    """Selected rows meet what may look at several of them at once."""


@dataclass(eq=False)
class Selection:
    """A mask over rows, and the mask over rows and places that it comes from, if there is one."""

    rows: torch.Tensor
    places: torch.Tensor | None
    turned: bool = False  # whether the mask that was given counts rows on its last axis
    chosen: Chosen | None = None  # the unit that the rows chose

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(t._version for t in (self.rows, self.places) if t is not None)

    @property
    def whole(self) -> torch.Tensor:
        return self.rows if self.places is None else self.places


@dataclass(eq=False)
class Sum:
    """`rows` = `base[positions] + more`, as long as none of the three was written since."""

    rows: torch.Tensor
    base: torch.Tensor
    more: Any
    versions: tuple[int, ...]

    def holds_for(self, base: torch.Tensor) -> bool:
        """Whether the rows are those of a tensor as it is now, plus `more` as it is now."""
        return base is self.base and self.versions == versions_of(self.rows, base, self.more)


def versions_of(*tensors: Any) -> tuple[int, ...]:
    return tuple(t._version for t in tensors if isinstance(t, torch.Tensor))

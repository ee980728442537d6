"""The feature axis of a freed input or output, and how it carries the spaces of a symmetry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from paramsym.structure.axes import AxisType, Sizes, spaces_of


@dataclass(frozen=True)
class Feature:
    """One axis of an input or output that changes basis: x ↦ ρ(g) x along it.

    All other axes stay; their number and their lengths (batch, sequence) are free.

    Args:
        type: how the axis carries spaces; ρ is that representation.
        axis: which one, negative from the end.
    """

    type: AxisType
    axis: int = -1

    @property
    def T(self) -> Feature:
        """The axis of gradients and momenta."""
        return Feature(self.type.T, self.axis)

    @property
    def spaces(self) -> tuple[str, ...]:
        """The spaces that it carries, each once; none where nothing moves it."""
        return tuple(dict.fromkeys(spaces_of(self.type)))

    def fits(self, shape: Sequence[int], sizes: Sizes) -> bool:
        """Whether a tensor of this shape has the axis, at the size of the type."""
        exists = -len(shape) <= self.axis < len(shape)
        return exists and shape[self.axis] == self.type.size(sizes)

    def __str__(self) -> str:
        if self.axis < 0:
            return ", ".join(["…", str(self.type), *[":"] * (-self.axis - 1)])
        return ", ".join([*[":"] * self.axis, str(self.type), "…"])


Features: TypeAlias = Mapping[str, Feature]

"""A panel of a tensor that is moved along one axis, the other axes standing still."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from paramsym.algebra.woven import woven_of
from paramsym.structure.axes import AxisType, Fixed, frames_of, spaces_of
from paramsym.structure.data import SymmetryData
from paramsym.structure.element import Values
from paramsym.structure.legwise import Movers, leg_by_leg
from paramsym.structure.shift import Params
from paramsym.structure.space import Space

AXIS = "axis"


def alone(spaces: Mapping[str, Space], *axes: AxisType) -> SymmetryData:
    """A symmetry with one tensor of these axes, and what they carry."""
    own = dict.fromkeys(s for axis in axes for s in spaces_of(axis))
    below = dict.fromkeys(base for s in own for base in spaces[s].over)
    return SymmetryData({s: spaces[s] for s in {**below, **own}}, {AXIS: axes})


def _width(matrix: torch.Tensor) -> int:
    steps = woven_of(matrix)
    return matrix.shape[-1] if steps is None else max(steps.rows.shape[-1], steps.columns.shape[-1])


@dataclass(frozen=True)
class Mixed:
    """Moves a panel along one axis, leg by leg; other processes are told it, too."""

    spaces: Mapping[str, Space]
    values: Values
    axis: AxisType
    place: int
    params: Params
    movers: Movers
    known: dict[tuple[int, ...], SymmetryData] = field(default_factory=dict)

    @cached_property
    def widest(self) -> int:
        """The coordinates that are mixed by one matrix at most."""
        matrices = [self.values[s].matrix for s in spaces_of(self.axis) if s in self.values]
        return max((_width(matrix) for matrix in matrices if matrix is not None), default=0)

    def reading(self, gains: Params) -> Mixed:
        """See `AxisPlan.reading`."""
        return replace(self, params=gains, movers={})

    def __call__(self, panel: torch.Tensor) -> torch.Tensor:
        shape = tuple(panel.shape)
        if shape not in self.known:
            others: list[AxisType] = [Fixed(n) for n in shape]
            axes = (*others[: self.place], self.axis, *others[self.place + 1 :])
            self.known[shape] = alone(self.spaces, *axes)
        gains = {f.parameter: self.params[f.parameter] for f in frames_of(self.axis)}
        return leg_by_leg(
            self.known[shape], self.spaces, self.values, AXIS, {**gains, AXIS: panel},
            self.movers,
        )  # fmt: skip

"""What is known of the best point of an orbit: where it is, and how certainly it is best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from torch import Tensor

from paramsym.geometry.rotations import rotation_moments
from paramsym.structure.action import act
from paramsym.structure.element import GroupElement
from paramsym.structure.symmetry import ParameterSymmetry


class Status(StrEnum):
    """What is known of a point: that it is best, best nearby, that there is no best one, or that
    none is allowed."""

    OPTIMAL = "OPTIMAL"
    LOCAL = "LOCAL"
    UNATTAINED = "UNATTAINED"
    INFEASIBLE = "INFEASIBLE"


@dataclass(frozen=True)
class Part:
    """What is known of the best point along some families, and of the tensors that these move; see
    `Balanced`."""

    element: GroupElement
    before: float
    value: float
    status: Status
    gap: float
    moment: dict[str, float]
    held: dict[str, str]
    rounds: int


@dataclass(frozen=True)
class Balanced:
    """A balanced point of an orbit.

    Attributes:
        start: the parameters that were given, which are only read.
        element: the group element that leads from there to the point.
        before, value: the objective at the given parameters and at these: Σ |w|^p, buffers left
            out, for `balance`; a range, or an error, for what minimises these.
        status: OPTIMAL if no point that the moved spaces lead to is lower by more than `gap`;
            LOCAL where that is not certified; UNATTAINED where there is no least value, because
            what `held` names would go to zero or to infinity; INFEASIBLE where bounds and anchors
            that `held` names leave no point, and nothing has moved.
        gap: how much lower the cost can be along scales and bases, up to factors of e¹⁰⁰; where
            bases move, by convexity along both at once.
        moment: by space that moved, the largest derivative of the cost along its generators,
            relative to the cost; zero where balanced. What a bound or an anchor holds against the
            slope counts as balanced.
        held: spaces and shifts that did not move, or not in all their units, with the reason.
        rounds: how often the families took turns.
    """

    start: Mapping[str, Tensor]
    element: GroupElement
    before: float
    value: float
    status: Status
    gap: float
    moment: dict[str, float]
    held: dict[str, str] = field(default_factory=dict)
    rounds: int = 1

    @cached_property
    def params(self) -> dict[str, Tensor]:
        """The parameters there, a new dict: `act(symmetry, element, start)`.

        Computed when it is read: where weights are moved from files to files, all of them need
        never be in memory.
        """
        symmetry = self.element.symmetry
        assert isinstance(symmetry, ParameterSymmetry)
        return act(symmetry, self.element, self.start)

    @cached_property
    def held_moment(self) -> dict[str, float]:
        """How steep the squared norm is along what is held in the frame of a gain.

        By space of rotations that did not move, the largest derivative along a generator, relative
        to the squared norm: what `rotations=True` would descend. Computed when it is read.
        """
        found = rotation_moments(self.element.symmetry, self.params)
        return {space: size for space, size in found.items() if space not in self.moment}

    def __str__(self) -> str:
        bound = (
            f"at most {self.gap:.1e} above the least" if self.status == "OPTIMAL" else "no bound"
        )
        first = f"{self.status}: {self.before:.6g} → {self.value:.6g}, {bound}"
        return "\n".join([first, *(f"  held {n}: {why}" for n, why in self.held.items())])

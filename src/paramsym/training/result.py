"""What one rebalance did."""

from __future__ import annotations

from dataclasses import dataclass, field

from paramsym.geometry.result import Status
from paramsym.structure.element import GroupElement


@dataclass(frozen=True)
class Rebalanced:
    """One move of parameters that are trained to the point of least norm on their orbit.

    Attributes:
        before, value: the objective before the move and after it, Σ |w|² or Σ |w| over all
            parameters of the model, frozen ones included and buffers left out.
        gap: how much lower it can be at most along what moves.
        status: OPTIMAL where the gap is within the tolerance of `Rebalance`; LOCAL where it is
            not, or shifts moved; UNATTAINED where there is no least value, because what `held`
            names would go to zero or to infinity.
        element: the group element that the parameters were moved by.
        held: what did not move, or not in all its units, with the reason.
    """

    before: float
    value: float
    gap: float
    status: Status
    element: GroupElement
    held: dict[str, str] = field(default_factory=dict)

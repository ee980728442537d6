"""What one rebalance did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

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
        held: what did not move, or not in all its units, with the reason.
        made: makes `element`.
    """

    before: float
    value: float
    gap: float
    status: Status
    held: dict[str, str]
    made: Callable[[], GroupElement] = field(repr=False)

    @cached_property
    def element(self) -> GroupElement:
        """The group element that the parameters were moved by, made when it is asked for."""
        return self.made()

"""What teleportation needs of an action, and the action of a parameter symmetry.

Another action takes its place by having the same four methods: one that depends on the data, or
one that keeps the loss only nearly.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from paramsym.algebra import AbstractMonomial
from paramsym.dynamics.loss import State
from paramsym.dynamics.resting import pairing_at_rest, resting
from paramsym.structure.action import act
from paramsym.structure.element import GroupElement
from paramsym.structure.state import SECOND, act_state
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.tangent import TangentOperator, tangent

Moments = Mapping[str, Mapping[str, Any]]  # by parameter, what an optimiser holds for it


class Action(Protocol):
    """Moves of the parameters that keep the loss, by coordinates."""

    def slopes(self, state: State, covector: State) -> torch.Tensor:
        """How fast a function with that derivative grows along every coordinate, at zero."""
        ...

    def moved(self, state: State, coordinates: torch.Tensor) -> dict[str, torch.Tensor]:
        """The parameters and buffers that the coordinates lead to."""
        ...

    def carried(self, state: State, coordinates: torch.Tensor, moments: Moments) -> Moments:
        """What an optimiser holds, after that move from `state`: gradients move by the dual."""
        ...

    def holding(self, names: Collection[str], moments: Moments) -> Action:
        """The same action without what moves some parameters, or what no moments can follow."""
        ...


@dataclass(frozen=True)
class OrbitAction:
    """The action of a symmetry, along directions that leave its buffers at rest to first order.

    Attributes:
        symmetry: whose elements act.
        held: spaces and shifts that do not move.
    """

    symmetry: ParameterSymmetry
    held: frozenset[str] = frozenset()

    def slopes(self, state: State, covector: State) -> torch.Tensor:
        """⟨ξ, X_j θ⟩ for all generators, of shape (generators,); zero for what is held."""
        operator = tangent(self.symmetry, state)
        found = pairing_at_rest(resting(operator), covector)
        return found * self._free(operator, found)

    def _free(self, operator: TangentOperator, like: torch.Tensor) -> torch.Tensor:
        """One for every coordinate that may move, zero for the others."""
        kept = [float(block.name not in self.held) for block in operator.blocks]
        sizes = [block.size for block in operator.blocks]
        repeats = torch.tensor(sizes, dtype=torch.long, device=like.device)
        return torch.tensor(kept, dtype=like.dtype, device=like.device).repeat_interleave(repeats)

    def element(self, state: State, coordinates: torch.Tensor) -> GroupElement:
        """exp(c), without what is held: even one is refused by moments that it does not keep."""
        velocity = tangent(self.symmetry, state).algebra(coordinates)
        values = {n: v for n, v in velocity.values.items() if n not in self.held}
        offsets = {n: v for n, v in velocity.offsets.items() if n not in self.held}
        return replace(velocity, values=values, offsets=offsets).exp()

    def moved(self, state: State, coordinates: torch.Tensor) -> dict[str, torch.Tensor]:
        """exp(c)·θ."""
        return act(self.symmetry, self.element(state, coordinates), state)

    def carried(self, state: State, coordinates: torch.Tensor, moments: Moments) -> Moments:
        """The moments of an optimiser by `act_state`."""
        return act_state(self.symmetry, self.element(state, coordinates), moments, state)

    def holding(self, names: Collection[str], moments: Moments) -> OrbitAction:
        """Without what moves frozen parameters or, with second moments, is not monomial."""
        ties, movers = self.symmetry.ties, self.symmetry.movers
        held = {m for n in names for m in movers.get(ties.get(n, n), ())}
        if any(entries.get(key) is not None for entries in moments.values() for key in SECOND):
            held |= {shift.name for shift in self.symmetry.shifts}
            held |= {name for name in self.symmetry.spaces if not self._squares(name)}
        held |= {name for name, space in self.symmetry.spaces.items() if not space.exact}
        return OrbitAction(self.symmetry, self.held | held)

    def _squares(self, space: str) -> bool:
        """Whether squares of gradients move along with a space."""
        if not isinstance(self.symmetry.spaces[space].group, AbstractMonomial):
            return False
        return not any(leg.frame for leg in self.symmetry.legs(space))

"""A symmetry at the state of a model: which buffers must rest, and which names share a tensor."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from paramsym.dynamics.loss import ModelLoss, State, has_values
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.tangent import TangentOperator


def at_rest_where_read(loss: ModelLoss, symmetry: ParameterSymmetry) -> ParameterSymmetry:
    """A symmetry whose buffers are those that the outputs depend on.

    Running statistics are numbers of the function in evaluation mode; in training mode they are
    not read, and need not rest. What is read is seen by a number that is none, which no rounding
    hides, or by other numbers, which no comparison does.
    """
    movers, ties = symmetry.movers, symmetry.ties
    moving = {n: b for n, b in loss.buffers.items() if has_values(b) and movers.get(ties.get(n, n))}
    if not moving:
        return replace(symmetry, buffers=())
    before = loss.function(loss.state)

    def ignored(buffers: State) -> bool:
        try:
            found = loss.function({**loss.state, **buffers})
        except (ValueError, RuntimeError, IndexError, AssertionError):  # a model that looks at them
            return False
        return all(map(torch.equal, before, found))

    unread = ignored({n: torch.full_like(b, math.nan) for n, b in moving.items()})
    unread = unread and ignored({n: b + b.abs().mean() + 1 for n, b in moving.items()})
    return replace(symmetry, buffers=()) if unread else symmetry


def complete(symmetry: ParameterSymmetry, state: State) -> dict[str, torch.Tensor]:
    """A state dict with every name of each tied tensor, from one that has a single name of it."""
    found = dict(state)
    for alias, name in symmetry.ties.items():
        known = found.get(name, found.get(alias))
        found |= {} if known is None else {name: known, alias: known}
    return found


def resting(operator: TangentOperator) -> TangentOperator:
    """The operator of the directions that leave buffers at rest, where there are buffers."""
    return operator.at_rest() if operator.symmetry.buffers and operator.blocks else operator


def pairing_at_rest(operator: TangentOperator, covector: State) -> torch.Tensor:
    """Pairings with generators, projected onto the directions of the operator."""
    found = operator.rmatvec(covector)
    return found if operator.basis is None else operator.basis.lifted(found)

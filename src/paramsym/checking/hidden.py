"""Parameters whose derivatives are below rounding: what is claimed of them is not decided here.

A column of the Jacobian below 1e-12 of the largest counts as dead. It may be the rounding of zero
(the bias of a key under a softmax), or a number that happens to be small (a first layer, where all
weights are 1e-6). The two are told apart by computing the column again at parameters that differ in
the tenth digit: a number keeps its first digits, and rounding keeps none. Columns that are numbers
are *hidden*.

With n the lengths of the columns, a claimed direction t changes the outputs by J·t, of size
‖n ⊙ t‖ at most for each of its parts. Where hidden columns take part in that size, what is left of
t in the live columns does not stand for t, and neither confirms nor refutes it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch

from paramsym.checking.claimed import Claimed
from paramsym.checking.jacobian import Network

_STEP = 1e-10  # relative, of every parameter
_KEPT = 1e-4  # a number changes by less than this share of itself, rounding by all of it
_SHARE = 1e-9  # of a claim's image: what is false is larger (1e-8), what is cut smaller
_CALLS, _EACH = 4, 4

Numbers = Callable[[torch.Tensor], torch.Tensor]  # numbers of columns ↦ which are no rounding


def numbers_of(network: Network) -> Numbers:
    """Tells columns of the Jacobian that are numbers, if small ones, from the rounding of zero."""
    return lambda columns: _numbers(network, columns)


def _numbers(network: Network, columns: torch.Tensor) -> torch.Tensor:
    shaken = copy.copy(network)
    shaken.state = dict(network.state)
    for name in network.names:
        held = network.state[name]
        drawn = torch.rand(held.shape, generator=network.generator, dtype=torch.float64)
        shaken.state[name] = held * (1 + _STEP * (1 + drawn).to(held.device))
    size = change = torch.zeros(len(columns), dtype=torch.float64)
    for _ in range(_CALLS):
        at, weights = network.fresh_inputs(), None
        found = []
        for each in (network, shaken):
            values, leaves = each.outputs_at(at, scaled=True)
            if not values.requires_grad:
                return torch.zeros(len(columns), dtype=torch.bool)
            weights = network.drawn(_EACH, values) if weights is None else weights
            found.append(each.products(values, leaves, weights)[:, columns])
        size = size + found[0].nan_to_num().square().sum(dim=0)
        change = change + (found[1] - found[0]).nan_to_num().square().sum(dim=0)
    return change < _KEPT**2 * size


def hidden_columns(
    claimed: Claimed, norms: torch.Tensor, alive: torch.Tensor, numbers: Numbers
) -> torch.Tensor:
    """(parameters,) of bool: dead columns that a claim moves and that are numbers all the same."""
    found = ~alive & (norms > 0) & (claimed.rows != 0).any(dim=0)
    columns = found.nonzero()[:, 0]
    if len(columns):
        found[columns] = numbers(columns)
    return found


def reaches(claimed: Claimed, norms: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """(directions,) of bool: claims whose image needs hidden columns.

    Args:
        norms: (parameters,) lengths of the columns, zero where they are mere rounding.
    """
    if not bool(hidden.any()):
        return torch.zeros(len(claimed.names), dtype=torch.bool)
    part = torch.linalg.vector_norm(claimed.rows[:, hidden] * norms[hidden], dim=1)
    return part > _SHARE * torch.linalg.vector_norm(claimed.rows * norms, dim=1)

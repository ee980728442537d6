"""The null space of a network's Jacobian, confirmed by inputs that had no part in finding it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paramsym.checking.jacobian import Cost, Network, fold, triangular_jacobian
from paramsym.structure.rank import Gap, find_gap

_HUNTS = 512  # inputs that must confirm unexplained directions
_ROUNDS = 20  # of further inputs, until they confirm the null space
_ROUNDING = 1e-12  # a column this small next to the largest is a dead parameter, rounded


@dataclass(frozen=True)
class NullSpace:
    """Directions of the parameters along which the outputs do not change, to first order."""

    alive: torch.Tensor  # (parameters,), False for columns of zeros
    directions: torch.Tensor  # (parameters, nullity), orthonormal; dead parameters last
    gap: Gap
    values: torch.Tensor  # singular values over the live columns, scaled to unit length


def confirmed_null_space(
    network: Network, cost: Cost, known: torch.Tensor, tolerance: float
) -> tuple[torch.Tensor, NullSpace]:
    """(triangular factor of the Jacobian, its null space).

    Rows at further inputs are added as long as they refute a null direction: what is flat only
    where the first inputs happened to lie is no symmetry.
    """
    factor = triangular_jacobian(network, cost.calls, cost.rows)
    found = null_space(factor, tolerance)
    for _ in range(_ROUNDS):
        fresh = _refuting_rows(network, cost, found, complement(found.directions, known))
        if not len(fresh):
            break
        factor = fold(torch.cat([factor, fresh]))
        found = null_space(factor, tolerance)
    return factor, found


def null_space(factor: torch.Tensor, tolerance: float) -> NullSpace:
    """The null space of a matrix by the gap in its singular values, live columns scaled to one."""
    norms = torch.linalg.vector_norm(factor, dim=0)
    alive = norms > _ROUNDING * norms.max()
    scale = norms[alive]
    _, values, right = torch.linalg.svd(factor[:, alive] / scale, full_matrices=True)
    values = torch.cat([values, values.new_zeros(len(right) - len(values))])
    gap = find_gap(values, tolerance)
    live = torch.linalg.qr(right[gap.rank :].T / scale[:, None]).Q  # in unscaled coordinates
    dead = (~alive).nonzero()[:, 0]
    directions = factor.new_zeros(len(alive), live.shape[1] + len(dead))
    directions[alive, : live.shape[1]] = live
    directions[dead, torch.arange(live.shape[1], directions.shape[1])] = 1.0
    return NullSpace(alive, directions, gap, values)


def _refuting_rows(
    network: Network, cost: Cost, found: NullSpace, rest: torch.Tensor
) -> torch.Tensor:
    """Rows of the Jacobian at further inputs that see a null direction; none if all confirm it.

    A quarter of the original number of inputs is drawn for all directions, and many more for the
    unexplained `rest`, each of which would be a claim about the user's network.
    """
    network.spread *= 2
    if not found.directions.shape[1]:
        return found.directions.T
    fresh = triangular_jacobian(network, max(1, cost.calls // 4), cost.rows)
    along = torch.linalg.vector_norm(fresh @ found.directions, dim=0).max()
    noise = max(1e-9, 10 * found.gap.tolerance)
    if float(along) > noise * float(torch.linalg.vector_norm(fresh)):
        return fresh
    hunts = _HUNTS if network.continuous else _HUNTS // 16  # tokens are soon exhausted
    hunted = [network.rows(cost.rows, rest) for _ in range(hunts if rest.shape[1] else 0)]
    return torch.cat([found.directions[:, :0].T, *hunted])


def complement(directions: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """An orthonormal basis of the directions orthogonal to the known ones, most often among them.

    Both are orthonormal columns; where the known ones lie in the span of the directions, the
    singular values of the rest are 1 or 0.
    """
    rest = directions - known @ (known.T @ directions)
    left, values, _ = torch.linalg.svd(rest, full_matrices=False)
    return left[:, values > 0.5]

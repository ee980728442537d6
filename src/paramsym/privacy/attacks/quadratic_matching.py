"""Which unit of one side is which of the other, from statistics of pairs of units.

Let A be a signed order, (A x)[i] = s_i x[o_i], and let each side know statistics of its own units:
numbers T of pairs, that the order carries over up to sampling, T̃ ≈ A T Aᵀ, and marginals of single
units, by which unit i of the one side as unit j of the other costs c(s, i, j). Then

    F(A) = Σ ⟨T̃, A T Aᵀ⟩ − Σ_i c(s_i, i, o_i)

is largest near the true order: a quadratic assignment. Statistics that are even in a unit, such as
the moment E z_i² z_j in i, see |A| on that side. F is climbed on the convex hull of all signed
orders (Frank–Wolfe: each step is a linear assignment, the step length is exact), from the marginals
and then from the best order with a few units shuffled, since the hull has many local maxima.

Source: Vogelstein et al., "Fast approximate quadratic programming for graph matching" (2015), for
the relaxation; signs and statistics of odd order are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

_STEPS = 60  # of Frank–Wolfe; a handful is the rule
_FLAT = 1e-9  # a slope below it is none
_SHUFFLED = (3, 12)  # units that a new start puts elsewhere


class SignedOrder(NamedTuple):
    """A signed permutation, (A x)[i] = signs[i] · x[order[i]]."""

    order: Tensor  # (n,), long
    signs: Tensor  # (n,), each 1 or −1


@dataclass(frozen=True)
class PairStatistics:
    """Numbers of pairs of units, on both sides.

    Attributes:
        public: those of the side whose order is known, of shape (n, n).
        secret: those of the other side.
        odd: whether they change their sign with the unit of the row, and with that of the column.
    """

    public: Tensor
    secret: Tensor
    odd: tuple[bool, bool] = (True, True)


@dataclass(frozen=True)
class Matched:
    """A signed order, and the F that it reaches."""

    found: SignedOrder
    value: float


def assigned(costs: Tensor) -> SignedOrder:
    """The signed order of least total cost, the better sign for each pair of units.

    Args:
        costs: of shape (signs, n, n): of unit i of the secret side as unit j of the public one, as
            it is and, where `signs` is 2, negated.
    """
    least, flipped = costs.min(0)
    _, columns = linear_sum_assignment(least.cpu().numpy())
    order = torch.as_tensor(columns)
    rows = torch.arange(len(order))
    return SignedOrder(order, 1.0 - 2.0 * flipped[rows, order].double())


def matched(
    costs: Tensor,
    statistics: Sequence[PairStatistics],
    generator: torch.Generator,
    restarts: int = 200,
    start: SignedOrder | None = None,
) -> Matched:
    """The signed order of largest F that a number of starts find.

    Args:
        costs: of marginals, of shape (1, n, n), or (2, n, n) where units may be negated.
        statistics: of pairs.
        generator: draws the units that a new start shuffles.
        restarts: how many starts follow the first.
        start: the first one; by default the order that the marginals give.
    """
    best = _climbed(costs, statistics, assigned(costs) if start is None else start)
    size = costs.shape[-1]
    fewest, most = (min(k, size) for k in _SHUFFLED)
    for _ in range(restarts):
        count = int(torch.randint(fewest, most + 1, (), generator=generator))
        chosen = torch.randperm(size, generator=generator)[:count]
        order = best.found.order.clone()
        order[chosen] = order[chosen.roll(1)]
        other = _climbed(costs, statistics, best.found._replace(order=order))
        if other.value > best.value:
            best = other
    return best


def matched_without_signs(
    costs: Tensor,
    statistics: Sequence[PairStatistics],
    generator: torch.Generator,
    restarts: int = 200,
) -> Matched:
    """The signed order of largest F, where marginals say little of signs.

    First the order, from the sizes of all statistics, which are even in every unit. In that order
    Σ s_i s_j T̃_ij (A T Aᵀ)_ij is largest for signs s near the leading eigenvector, and from these
    F itself is climbed. One sign of all units at once stays open where statistics alone speak.

    Args:
        costs, statistics, generator, restarts: as `matched`; statistics are odd on both sides.
    """
    even = [PairStatistics(t.public.abs(), t.secret.abs(), (False, False)) for t in statistics]
    order = matched(costs.amin(0, keepdim=True), even, generator, restarts).found.order
    agreement = torch.zeros(len(order), len(order), dtype=torch.float64)
    for each in statistics:
        agreement += each.secret * each.public[order][:, order]
    leading = torch.linalg.eigh(agreement + agreement.T).eigenvectors[:, -1]
    signs = torch.where(leading < 0, -1.0, 1.0).double()
    starts = [SignedOrder(order, signs), SignedOrder(order, -signs)]
    found = [matched(costs, statistics, generator, 0, start) for start in starts]
    return max(found, key=lambda each: each.value)


def value_of(costs: Tensor, statistics: Sequence[PairStatistics], each: SignedOrder) -> float:
    """F of one signed order."""
    hull = _vertex(each, costs.shape[0])
    return float(_quadratic(statistics, hull) - (costs * hull).sum())


def _climbed(costs: Tensor, statistics: Sequence[PairStatistics], start: SignedOrder) -> Matched:
    """Frank–Wolfe from one vertex of the hull, and the vertex next to where it ends."""
    hull = _vertex(start, costs.shape[0])
    for _ in range(_STEPS):
        gradient = _gradient(statistics, hull) - costs
        step = _vertex(assigned(-gradient), costs.shape[0]) - hull
        slope = float((gradient * step).sum())
        if slope < _FLAT:
            break
        bend = float(_quadratic(statistics, step))
        # F(t) = F(0) + slope t + bend t²; where it bends upwards the far end is best
        hull = hull + (1.0 if bend >= 0 else min(1.0, -slope / (2 * bend))) * step
    found = assigned(-hull)
    return Matched(found, value_of(costs, statistics, found))


def _vertex(each: SignedOrder, signs: int) -> Tensor:
    """A signed order as two orders with gaps, of shape (signs, n, n): A = hull[0] − hull[1]."""
    size = len(each.order)
    hull = torch.zeros(signs, size, size, dtype=torch.float64)
    hull[(each.signs < 0).long(), torch.arange(size), each.order] = 1.0
    return hull


def _seen(hull: Tensor, odd: bool) -> Tensor:
    """A, or |A| for statistics that are even."""
    return hull[0] - hull[1] if odd and len(hull) == 2 else hull.sum(0)


def _quadratic(statistics: Sequence[PairStatistics], hull: Tensor) -> Tensor:
    """Σ ⟨T̃, A T Aᵀ⟩."""
    total = hull.new_zeros(())
    for each in statistics:
        left, right = (_seen(hull, odd) for odd in each.odd)
        total = total + (each.secret * (left @ each.public @ right.T)).sum()
    return total


def _gradient(statistics: Sequence[PairStatistics], hull: Tensor) -> Tensor:
    """The derivative of the quadratic part by the entries of the hull."""
    total = torch.zeros_like(hull)
    for each in statistics:
        left, right = (_seen(hull, odd) for odd in each.odd)
        by_left = each.secret @ right @ each.public.T
        by_right = each.secret.T @ left @ each.public
        for found, odd in ((by_left, each.odd[0]), (by_right, each.odd[1])):
            total[0] += found
            if len(total) == 2:
                total[1] += -found if odd else found
    return total

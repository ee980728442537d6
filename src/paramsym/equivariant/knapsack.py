r"""Spending a rank on blocks: maximise Σ_i p_i Σ_{k ≤ r_i} λ_ik subject to Σ_i p_i r_i ≤ r.

λ_i1 ≥ λ_i2 ≥ … ≥ 0 are the values of block i and one unit of it costs p_i. Spending by value alone,
as if units could be split, solves the relaxation and bounds every solution from above; dynamic
programming over r solves the problem itself. Where the two agree the greedy choice is optimal.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Real = NDArray[np.float64]


class Choice(NamedTuple):
    """An optimal choice: its ranks, its gain, and the bound of the relaxation.

    `next_value` is the value at which the relaxation ran out of rank.
    """

    ranks: tuple[int, ...]
    gain: float
    bound: float
    next_value: float


def choose_ranks(
    values: Sequence[Real], costs: Sequence[int], rank: int, exactly: bool = False
) -> Choice:
    """The best ranks, exactly.

    Args:
        values: for each block its values, descending.
        costs: p_i for each block.
        rank: r, to be spent.
        exactly: whether Σ p_i r_i must equal r and not only stay below (the caller has made sure
            that this is possible).
    """
    unreachable = -np.inf
    best = np.full(rank + 1, unreachable)  # best[s]: with exactly s spent
    best[0] = 0.0
    decisions = []
    for block, cost in zip(values, costs, strict=True):
        gains = np.concatenate([[0.0], np.cumsum(block)]) * cost
        following = np.full(rank + 1, unreachable)
        decision = np.zeros(rank + 1, dtype=np.int64)
        for k in range(min(len(block), rank // cost) + 1):
            reached = np.full(rank + 1, unreachable)
            reached[cost * k :] = best[: rank + 1 - cost * k] + gains[k]
            better = reached > following
            following[better], decision[better] = reached[better], k
        best = following
        decisions.append(decision)
    spent = rank if exactly else int(best.argmax())
    gain = float(best[spent])
    ranks = []
    for decision, cost in zip(reversed(decisions), reversed(costs), strict=True):
        ranks.append(int(decision[spent]))
        spent -= cost * ranks[-1]
    return Choice(tuple(reversed(ranks)), gain, *_relaxation(values, costs, rank))


def _relaxation(values: Sequence[Real], costs: Sequence[int], rank: int) -> tuple[float, float]:
    """The gain when units may be split: the largest values first, the last one in part."""
    units = sorted(
        ((float(x), cost) for block, cost in zip(values, costs, strict=True) for x in block),
        reverse=True,
    )
    gain, left = 0.0, rank
    for value, cost in units:
        used = min(cost, left)
        gain += value * used
        left -= used
        if used < cost:
            return gain, value
    return gain, 0.0

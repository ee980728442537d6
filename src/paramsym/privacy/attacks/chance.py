"""What a random order gets right: where success of a matching begins."""

from __future__ import annotations

from math import comb, factorial

LUCK = 1e-3  # what a random order would reach more rarely than that counts as found
FEWEST = 7  # units: all of fewer are in place by luck once in 720 times


def chance_of(right: int, units: int) -> float:
    """The probability that a random order of some units has so many in place, or more.

    Σ_{k ≥ right} D(n − k) / (k! (n − k)!) with D(m) the derangements of m: close to the Poisson
    distribution of mean 1 for all but the smallest n.
    """
    if right <= 0:
        return 1.0
    ways = sum(comb(units, k) * _derangements(units - k) for k in range(right, units + 1))
    return ways / factorial(units)


def beyond_chance(share: float, units: int) -> bool:
    """Whether a share of units in place is more than a random order would reach (`LUCK`)."""
    return chance_of(round(share * units), units) <= LUCK


def _derangements(units: int) -> int:
    """How many orders leave no unit in place."""
    count = 1
    for n in range(1, units + 1):
        count = n * count + (-1) ** n
    return count

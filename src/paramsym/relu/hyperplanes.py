"""Hyperplanes without orientation or scale, as the keys of sums over hyperplanes."""

from __future__ import annotations

from collections.abc import Sequence

from paramsym.relu.arithmetic import fmpq
from paramsym.relu.rationals import HALF, ONE, ZERO, along

Key = tuple[fmpq, ...]  # (normal, offset), first non-zero entry of the normal scaled to 1

# relu(u) = (u + |u|)/2 and its slope (1 + sign u)/2: the share of the first term that stays smooth,
# by the side of u on the domain (dead, crossing, linear).
SMOOTH_SHARE = {-1: ZERO, 0: HALF, 1: ONE}


def hyperplane(normal: Sequence[fmpq], offset: fmpq) -> tuple[fmpq, Key]:
    """(p, key) with (normal, offset) = p·key, where p is the first non-zero entry of the normal.

    The forms of one hyperplane have one key; their sign is that of p.
    """
    lead = next(v for v in normal if v)
    return lead, (*(v / lead for v in normal), offset / lead)


def add_at(sums: dict[Key, list[fmpq]], key: Key, factor: fmpq, vector: Sequence[fmpq]) -> None:
    """Add factor·vector to the vector that a key holds, zero at first."""
    sums[key] = along(sums.get(key, [ZERO] * len(vector)), factor, vector)

"""Weights of the models that are merged, as shares of one."""

from __future__ import annotations

import math
from collections.abc import Sequence


def normalised(caller: str, weights: Sequence[float] | None, count: int) -> tuple[float, ...]:
    """Positive weights, divided by their sum; all alike where none are given.

    Raises:
        ValueError: there are no models, another number of weights, or some that are not positive.
    """
    if not count:
        raise ValueError(
            f"{caller}: no models came, and at least one was expected. Pass a list of them."
        )
    if weights is None:
        return (1 / count,) * count
    if len(weights) != count or not all(0 < w < math.inf for w in weights):
        raise ValueError(
            f"{caller}(weights={[*weights]}): {count} positive numbers were expected, one for each "
            "model. Leave out models that are to have no part."
        )
    return tuple(w / sum(weights) for w in weights)

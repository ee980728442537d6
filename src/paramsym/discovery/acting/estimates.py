"""What random draws say of a number: its median with a confidence interval, its mean, its worst.

The interval of the median needs no distribution: of n independent draws the k-th smallest lies
above the median with probability P(Bin(n, ½) < k). Errors of exact actions are rounding, of which
nobody knows the distribution, and those of learned ones have long tails, so that the worst stands
beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import bdtr

FEWEST = 6  # draws below which no interval of the median has 95 %


@dataclass(frozen=True)
class Estimate:
    """A number over random draws.

    Attributes:
        median: of the draws.
        low, high: the interval that holds the median of the distribution, with at least
            `confidence`.
        mean: of the draws.
        error: of the mean, as a standard deviation.
        worst: the largest draw.
        samples: how many draws.
        confidence: of the interval.
    """

    median: float
    low: float
    high: float
    mean: float
    error: float
    worst: float
    samples: int
    confidence: float = 0.95

    def __str__(self) -> str:
        """The median, its interval and the worst."""
        return f"{self.median:.2g} [{self.low:.2g}, {self.high:.2g}], worst {self.worst:.2g}"


def estimate(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """The median of independent draws with its interval by order statistics, and the rest.

    Args:
        values: the draws, finite ones.
        confidence: of the interval, which is at least so wide as that takes.

    Raises:
        ValueError: too few draws for an interval, or a draw that is no finite number.

    Source: Hahn and Meeker, "Statistical intervals" (1991), section 5.2.
    """
    if not 0 < confidence < 1:
        raise ValueError(
            f"estimate(confidence={confidence}): a number between 0 and 1 was expected, the "
            "probability that the interval holds the median. Take 0.95."
        )
    ordered, size = sorted(values), len(values)
    if not all(math.isfinite(value) for value in ordered):
        raise ValueError(
            f"estimate(values=…): {sum(not math.isfinite(v) for v in values)} of {size} draws are "
            "not finite, and finite numbers were expected. Look where they come from."
        )
    outside = (1 - confidence) / 2
    rank = 0
    while rank < size // 2 and float(bdtr(rank, size, 0.5)) <= outside:
        rank += 1
    if rank == 0:
        fewest = math.ceil(1 - math.log2(1 - confidence))
        raise ValueError(
            f"estimate(values=…): {size} draws came, and at least {fewest} were expected, since "
            f"fewer have no interval of the median with {confidence:g}. Draw more samples."
        )
    half = size // 2
    median = ordered[half] if size % 2 else (ordered[half - 1] + ordered[half]) / 2
    mean = math.fsum(ordered) / size
    spread = math.sqrt(math.fsum((v - mean) ** 2 for v in ordered) / (size - 1))
    return Estimate(
        median, ordered[rank - 1], ordered[size - rank], mean, spread / math.sqrt(size),
        ordered[-1], size, confidence,
    )  # fmt: skip

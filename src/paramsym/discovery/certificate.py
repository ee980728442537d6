"""Which directions are generators: residuals on samples that they were not found on, and noise.

The threshold is absolute where arithmetic is exact to float64. Where it is not, it is a multiple of
the noise: of that of most samples, or of the sample's own, since a saturated function rounds more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .constraints import Constraints
from .noise import noise
from .null_space import Smallest
from .sampling import Points

EXACT = 1e-11  # the residual of a generator, if rounding is far below
_NOISES = 32  # and in units of the measured noise, if it is not
_MOST = 0.9  # of the samples: errors have long tails
_FALSE = 1e-3  # no rounding of float32 is as large
_FRESH, _WIDE, _SPREAD = 128, 64, 8.0  # samples of a certificate: usual, and of large inputs


@dataclass(frozen=True)
class Judged:
    """Residuals of directions on fresh samples, their thresholds, and which of them pass."""

    residuals: list[float]
    thresholds: list[float]
    accepted: list[int]
    noise: float

    def of(self, k: int) -> tuple[float, float]:
        return self.residuals[k], self.thresholds[k]


def judged(constraints: Constraints, found: Smallest, threshold: float | None) -> Judged:
    """Which of the directions are generators, by samples that they were not found on."""
    sampler, samples = constraints.sampler, [*constraints.rows(_FRESH)]
    sampler.spread = _SPREAD
    samples += constraints.rows(_WIDE)
    sampler.spread = 1.0
    residuals = torch.cat([rows @ found.vectors for rows, _ in samples]).abs()
    largest = residuals.amax(dim=0)
    close = (largest <= _FALSE).nonzero()[:, 0]
    if not len(close):
        return Judged(largest.tolist(), [threshold or EXACT] * len(largest), [], 0.0)
    noises = _noises(constraints, [points for _, points in samples], found.vectors[:, close])
    usual = noises.quantile(_MOST, dim=0)
    if threshold is None:
        limits = (_NOISES * torch.maximum(noises, usual)).clamp_min(EXACT)
        accepted = close[(residuals[:, close] <= limits).all(dim=0)]
        thresholds = torch.full_like(largest, EXACT).index_copy(0, close, limits.amax(dim=0))
    else:
        accepted = (largest <= threshold).nonzero()[:, 0]
        thresholds = torch.full_like(largest, threshold)
    noise = torch.zeros_like(largest).index_copy(0, close, usual)[accepted]
    return Judged(
        largest.tolist(),
        thresholds.tolist(),
        accepted.tolist(),
        float(noise.max()) if len(noise) else 0.0,
    )


def _noises(constraints: Constraints, samples: Sequence[Points], vectors: Tensor) -> Tensor:
    """The computational noise of constraints along directions, (samples, directions)."""

    def along(points: Points) -> Tensor:
        def values(weights: Mapping[str, Tensor]) -> Tensor:
            rows, there = constraints.at(points, weights)
            whole = rows.new_zeros(len(there), rows.shape[1])
            whole[there] = rows
            return whole @ vectors

        return noise(values, points.weights, constraints.sampler.generator)

    return torch.cat([along(points) for points in samples])

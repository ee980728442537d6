"""Which directions are generators: residuals on samples that they were not found on, and noise.

The threshold is absolute where arithmetic is exact to float64, and statistical where it is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .constraints import Constraints
from .noise import noise
from .null_space import Smallest

EXACT = 1e-11  # the residual of a generator, if rounding is far below
_NOISES = 32  # and in units of the measured noise, if it is not
_FRESH, _WIDE, _NOISY = 128, 64, 24  # samples of a certificate: usual, of large inputs, on lines
_SPREAD = 8.0


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
    sampler, vectors = constraints.sampler, found.vectors
    fresh = [rows @ vectors for rows in constraints.rows(_FRESH)]
    sampler.spread = _SPREAD
    fresh += [rows @ vectors for rows in constraints.rows(_WIDE)]
    sampler.spread = 1.0
    residuals = torch.cat(fresh).abs().amax(dim=0)
    noises = _noise(constraints, vectors)
    if threshold is None:
        thresholds = (_NOISES * noises).clamp_min(EXACT)
    else:
        thresholds = torch.full_like(residuals, threshold)
    accepted = (residuals <= thresholds).nonzero()[:, 0].tolist()
    largest = float(noises[accepted].max()) if accepted else 0.0
    return Judged(residuals.tolist(), thresholds.tolist(), accepted, largest)


def _noise(constraints: Constraints, vectors: Tensor) -> Tensor:
    """The computational noise of each direction's constraints."""
    points = constraints.sampler.points(_NOISY)
    _, good = constraints.at(points)
    points = points.among(good)

    def along(weights: Mapping[str, Tensor]) -> Tensor:
        rows, there = constraints.at(points, weights)
        whole = rows.new_zeros(len(there), rows.shape[1])
        whole[there] = rows
        return whole @ vectors

    return noise(along, points.weights, constraints.sampler.generator)

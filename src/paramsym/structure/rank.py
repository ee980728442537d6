"""Numerical rank by a visible gap between singular values."""

from __future__ import annotations

from dataclasses import dataclass

import torch

_ROUNDING = 1e-13  # rows shorter than this share of the longest are zero


@dataclass(frozen=True)
class Gap:
    """Where the singular values stop being numbers and start being noise.

    `above` and `below` are the values on both sides, relative to the largest; values under
    `tolerance`, the geometric mean of the two, count as zero. Without small values `below` is 0.
    """

    rank: int
    above: float
    below: float

    @property
    def ratio(self) -> float:
        """How many times the smallest number exceeds the largest zero."""
        return self.above / self.below if self.below else float("inf")

    @property
    def tolerance(self) -> float:
        """What counts as zero, relative to the largest singular value."""
        return (self.above * self.below) ** 0.5

    def __str__(self) -> str:
        if not self.below:
            return f"none needed: the smallest singular value is {self.above:.1e}"
        return f"{self.above:.1e} to {self.below:.1e} (a factor {self.ratio:.0e})"


def find_gap(values: torch.Tensor, ceiling: float = 1e-5) -> Gap:
    """The rank of a matrix from its singular values.

    The gap is the largest ratio of neighbouring values whose lower one is under `ceiling` times
    the largest. Values below the rounding of the decomposition (eps · count) count as equal, so
    that a gap inside the noise is never chosen.
    """
    if not len(values) or not float(values.max()):
        return Gap(0, 0.0, 0.0)
    sorted_values = values.sort(descending=True).values
    relative = sorted_values / sorted_values[0]
    noise = torch.finfo(values.dtype).eps * max(1, len(values)) ** 0.5
    small = (relative < ceiling).nonzero()
    if not len(small):
        return Gap(len(values), float(relative[-1]), 0.0)
    floored = relative.clamp_min(noise)
    first = max(1, int(small[0]))
    ratios = floored[first - 1 : -1] / floored[first:]
    rank = first + int(ratios.argmax())
    return Gap(rank, float(relative[rank - 1]), float(floored[rank]))


def matrix_rank(matrix: torch.Tensor, ceiling: float = 1e-7) -> Gap:
    """The rank of a matrix whose rows are first scaled to unit length; zero rows are dropped.

    A row far below the rounding of the largest counts as zero: it is what is left of a projector
    onto nothing, and scaled up its noise would count.
    """
    norms = torch.linalg.vector_norm(matrix, dim=1)
    kept = norms > _ROUNDING * norms.max() if len(norms) else norms > 0
    matrix, norms = matrix[kept], norms[kept]
    matrix = matrix[:, (matrix != 0).any(0)] / norms[:, None]
    if not matrix.numel():
        return Gap(0, 0.0, 0.0)
    return find_gap(torch.linalg.svdvals(matrix), ceiling)

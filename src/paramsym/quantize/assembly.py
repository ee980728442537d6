"""Matrices of moderate size that belong to an expected error along scales, entry by entry.

Where scales are few, the Hessian of a smooth cost as one matrix costs less than the many products
with it that conjugate gradients take: sharp norms leave next to nothing but a sparse, badly
conditioned graph of the largest weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paramsym.quantize.expected_error import ExpectedError, Leg, Part, laid

_MOST_SCALES = 1024
_MOST_NUMBERS = 1 << 22  # groups times scales, and entries of all parts


class Assembly:
    """Sums over the entries of E by pairs of scales, and by group and scale.

    Args:
        error: E along scales, few enough (`fits`).
    """

    def __init__(self, error: ExpectedError) -> None:
        self.error, self.size = error, error.scales.size
        numbers = error.scales.split(torch.arange(self.size))
        self._at = [
            [(_index(numbers[leg.family], leg, part), leg.power) for leg in part.legs]
            for part in error.parts
        ]
        self._group = [
            index.expand(part.weight.shape).reshape(-1)
            for index, part in zip(
                error.spread(torch.arange(error.groups)), error.parts, strict=True
            )
        ]

    @staticmethod
    def fits(error: ExpectedError) -> bool:
        """Whether the matrices are small enough to be worth it."""
        entries = sum(part.weight.numel() for part in error.parts)
        size = error.scales.size
        return size <= _MOST_SCALES and max(error.groups * size, entries) <= _MOST_NUMBERS

    def by_pair(self, entries: Sequence[Tensor]) -> Tensor:
        """Σ u_i c_i c_iᵀ for numbers u on the entries of every part, of shape (size, size)."""
        made = torch.zeros(self.size * self.size, dtype=torch.float64)
        for u, legs in zip(entries, self._at, strict=True):
            flat = u.reshape(-1)
            for one, p in legs:
                for other, q in legs:
                    made.index_add_(0, one * self.size + other, p * q * flat)
        return made.reshape(self.size, self.size)

    def by_group(self, entries: Sequence[Tensor]) -> Tensor:
        """Σ u_i c_i over the entries of each group, of shape (groups, size)."""
        made = torch.zeros(self.error.groups * self.size, dtype=torch.float64)
        for u, legs, group in zip(entries, self._at, self._group, strict=True):
            flat = u.reshape(-1)
            for one, p in legs:
                made.index_add_(0, group * self.size + one, p * flat)
        return made.reshape(self.error.groups, self.size)


def _index(numbers: Tensor, leg: Leg, part: Part) -> Tensor:
    """For each entry of a part the coordinate of y that a leg reads, flat."""
    return laid(numbers, leg, part).expand(part.weight.shape).reshape(-1)

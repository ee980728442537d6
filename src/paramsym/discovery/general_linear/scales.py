"""Sizes of columns whose squares leave the range of floating point."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def powers_of_two(columns: Tensor) -> Tensor:
    """By column the largest power of two that is no larger than its largest entry: (k,).

    Division by it is exact, so that no result changes where no square leaves the range. Columns of
    zeros, and numbers that are not finite, have 1.
    """
    largest = columns.detach().abs().amax(0)
    usual = (largest > 0) & largest.isfinite()
    exponents = torch.frexp(torch.where(usual, largest, 1.0))[1] - 1
    return torch.ldexp(torch.ones_like(largest), exponents)


def norms(columns: Tensor) -> Tensor:
    """The Euclidean norm of every column, scaled by its largest entry first: (k,)."""
    scale = powers_of_two(columns)
    return torch.linalg.vector_norm(columns / scale, dim=0) * scale


def geometric_mean(sizes: Tensor) -> Tensor:
    """(a_1 ⋯ a_k)^{1/k} of positive numbers to rounding; log 1e-300 alone has 690 of them."""
    scale = powers_of_two(sizes[None])
    exponents = scale.log2()
    middle = exponents.mean().round()
    logs = (sizes / scale).log() + (exponents - middle) * math.log(2)
    return torch.ldexp(logs.mean().exp(), middle)

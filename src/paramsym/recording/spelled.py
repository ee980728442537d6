"""Functions that ask for numbers before they compute, spelled out by what they compute.

A covariance warns of too few observations, a Gaussian likelihood refuses negative variances: what
they give does not depend on the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

_LEAST_VARIANCE = 1e-6  # the default of torch


def _cov(x: torch.Tensor, *, correction: int = 1) -> torch.Tensor:
    """Covariances of the rows of a matrix, (n, n), or the variance of a vector, ()."""
    centred = x - x.mean(-1, keepdim=True)
    count = x.shape[-1] - correction
    if x.ndim < 2:
        return (centred * centred.conj()).sum() / count
    return centred @ centred.mH / count


def _corrcoef(x: torch.Tensor) -> torch.Tensor:
    """Correlations of the rows of a matrix, (n, n)."""
    centred = x - x.mean(-1, keepdim=True)
    unit = centred / centred.abs().square().sum(-1, keepdim=True).sqrt()
    return unit @ unit.mH if x.ndim > 1 else (unit * unit.conj()).sum()


def _gaussian_nll_loss(
    input: torch.Tensor, target: torch.Tensor, var: torch.Tensor | float, full: bool = False,
    eps: float = _LEAST_VARIANCE, reduction: str = "mean",
) -> torch.Tensor:  # fmt: skip
    """½ (log σ² + (x − y)² / σ²), and ½ log 2π where it is `full`."""
    variance = torch.as_tensor(var, dtype=input.dtype, device=input.device)
    if variance.shape != input.shape and variance.shape == input.shape[:-1]:
        variance = variance.unsqueeze(-1)
    variance = variance.clamp(min=eps)
    found = 0.5 * (torch.log(variance) + (input - target).square() / variance)
    if full:
        found = found + 0.5 * math.log(2 * math.pi)
    return {"mean": torch.mean, "sum": torch.sum}.get(reduction, torch.clone)(found)


SPELLED: Mapping[str, Callable[..., Any]] = {
    "cov": _cov, "corrcoef": _corrcoef, "gaussian_nll_loss": _gaussian_nll_loss,
}  # fmt: skip

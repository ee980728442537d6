"""The correction π of a data-dependent action, fitted once and then held.

Behind a hidden layer that is moved by g, the next layer reads σ(gH) for σ(H). The action of GL_h
on (U, V) is (U π, gV) with π(g, H) = σ(H) σ(gH)⁺, the least squares solution of π σ(gH) = σ(H).

* On at most h samples in general position the system is solved exactly, so that π is a function
  of those samples and of nothing else.
* On k > h samples it is a fit, with a residual. What is not in the batch gets an error of the same
  size if k is much larger than h, and a far larger one if k is about h, where σ(gH) is conditioned
  worst.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Correction:
    """π, and how well it was determined.

    Attributes:
        matrix: π, (h, h), in double precision.
        condition: largest over smallest singular value of σ(gH); inf where the rank is below h.
        residual: ‖π σ(gH) − σ(H)‖ / ‖σ(H)‖ on the fitting batch, in the Frobenius norm.
        rank: of σ(gH), to rounding.
    """

    matrix: Tensor
    condition: float
    residual: float
    rank: int


def fitted_correction(after: Tensor, moved: Tensor) -> Correction:
    """The least squares correction π = σ(H) σ(gH)⁺, of least norm where it is not unique.

    Args:
        after: σ(H), (h, k): units by samples.
        moved: σ(gH), (h, k).

    Returns:
        π with the conditioning of σ(gH) and the residual.

    Source: arXiv:2210.17216v2, equation (112).
    """
    wanted, given = after.detach().double(), moved.detach().double()
    left, values, right = torch.linalg.svd(given, full_matrices=False)
    floor = max(given.shape) * torch.finfo(values.dtype).eps * float(values[0])
    rank = int((values > floor).sum())
    inverse = torch.where(values > floor, 1 / values, 0.0)
    matrix = (wanted @ right.mT * inverse) @ left.mT
    size = float(wanted.norm())
    residual = float((matrix @ given - wanted).norm()) / size if size else 0.0
    full = rank == given.shape[0]
    condition = float(values[0] / values[-1]) if full else float("inf")
    return Correction(matrix, condition, residual, rank)


def batch_correction(after: Tensor, moved: Tensor) -> Tensor:
    """π = σ(H) σ(gH)⁺ of the batch at hand, one for each g.

    For k ≤ h samples in general position π σ(gH) = σ(H) whatever g is.

    Args:
        after: σ(H), (h, k).
        moved: σ(gH), (members, h, k).

    Returns:
        π, (members, h, h).
    """
    return after @ torch.linalg.pinv(moved)

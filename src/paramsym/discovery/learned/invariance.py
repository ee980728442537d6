"""Term (5): the loss does not change along the fields."""

from __future__ import annotations

import torch

from .fields import Fields


def invariance(fields: Fields) -> torch.Tensor:
    """Σ_h E ‖D_θL(ξ_h)‖, zero on every symmetry (Theorem 3.1)."""
    return fields.loss_slope().norm(dim=-1).mean(1).sum()

"""Term (8): the action moves, and not too far."""

from __future__ import annotations

import torch

from .fields import Fields


def size(fields: Fields, beta: float = 1.0) -> torch.Tensor:
    """Σ_h E |β − ‖ξ_h‖|: zero only if every field has the length β at every θ.

    A linear action has ‖ξ_h(θ)‖ in proportion to ‖θ‖, so that no exact linear symmetry has zero.
    """
    return (beta - fields.velocity.norm(dim=-1)).abs().mean(1).sum()

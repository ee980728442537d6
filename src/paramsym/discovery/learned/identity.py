"""Term (6): the unit matrix moves nothing."""

from __future__ import annotations

import torch

from .fields import Fields


def identity(fields: Fields) -> torch.Tensor:
    """E ‖a_X(I, θ) − θ‖, zero on every action."""
    return (fields.at_identity - fields.samples.parameters).norm(dim=-1).mean()

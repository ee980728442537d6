"""The inverse, as if σ were linear: (U, V) → (U g⁻¹, gV)."""

from __future__ import annotations

import torch
from torch import Tensor

from .method import Draw, Method, near_identity


def inverse(element: Tensor, draw: Draw) -> Tensor:
    """π = g⁻¹."""
    return torch.linalg.inv(element)


METHOD = Method(near_identity, inverse)

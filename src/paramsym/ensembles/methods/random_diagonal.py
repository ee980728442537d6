"""No correction but a random diagonal: (U, V) → (U g', gV) with g' = I + εD."""

from __future__ import annotations

from torch import Tensor

from .method import Draw, Method, near_identity


def diagonal(element: Tensor, draw: Draw) -> Tensor:
    """π = I + εD, D diagonal with independent standard normal entries."""
    return draw.identity() + draw.strength * draw.normal(draw.units).diag()


METHOD = Method(near_identity, diagonal)

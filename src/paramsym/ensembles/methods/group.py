"""The data-dependent action: (U, V) → (U π(g, H), gV) with π = σ(H) σ(gH)⁺, fitted once."""

from __future__ import annotations

from torch import Tensor

from paramsym.ensembles.correction import Correction, fitted_correction

from .method import Draw, Method, near_identity


def correction(element: Tensor, draw: Draw) -> Correction:
    """π, the least squares fit of σ(H) by σ(gH) on the fitting batch."""
    moved = draw.function(element @ draw.hidden)
    return fitted_correction(draw.function(draw.hidden), moved)


METHOD = Method(near_identity, correction, fits=True)

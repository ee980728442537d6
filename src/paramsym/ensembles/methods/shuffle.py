"""The entries of the correction in random order: (U, V) → (U π', gV)."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from paramsym.ensembles.correction import Correction

from .group import correction
from .method import Draw, Method, near_identity


def shuffled(element: Tensor, draw: Draw) -> Correction:
    """π with all of its h² entries in random order."""
    fitted = correction(element, draw)
    order = draw.permutation(fitted.matrix.numel())
    return replace(fitted, matrix=fitted.matrix.flatten()[order].view_as(fitted.matrix))


METHOD = Method(near_identity, shuffled, fits=True)

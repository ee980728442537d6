"""All matrices: P² unknowns, the row of a sample is ∇F ⊗ θ."""

from __future__ import annotations

import math

from .ansatz import Ansatz, BlockPiece, and_constants, constants
from .generators import Shapes


def full(shapes: Shapes, affine: bool) -> Ansatz:
    """Every linear vector field on the parameters, P² unknowns and P more if it is affine."""
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    pieces = [BlockPiece(t, s, (sizes[t], sizes[s])) for t in shapes for s in shapes]
    words = (
        f"every entry of every tensor by every entry of every tensor{and_constants(affine)}: "
        f"all {'affine' if affine else 'linear'} vector fields"
    )
    return Ansatz("full", shapes, [*pieces, *constants(shapes, affine)], words)

"""Left and right multiplication: M·W = Σ over the axes of W of a matrix that acts on that axis."""

from __future__ import annotations

from .ansatz import Ansatz, SidePiece, and_constants, constants
from .generators import Shapes


def sides(shapes: Shapes, affine: bool) -> Ansatz:
    """A matrix along every axis of every tensor; AW + WB for a matrix W."""
    pieces = [SidePiece(t, axis, s) for t, s in shapes.items() for axis in range(max(1, len(s)))]
    words = (
        "for each tensor by itself, a matrix along each of its axes (A W + W B for a matrix W)"
        f"{and_constants(affine)}; not: several tensors mixed, and entries of one tensor mixed in "
        "other ways"
    )
    return Ansatz("sides", shapes, [*pieces, *constants(shapes, affine)], words)

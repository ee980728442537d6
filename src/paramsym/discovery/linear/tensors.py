"""One block per tensor, and one for each ordered pair of tensors that are alike.

Alike are tensors of equal shape, and those whose shapes differ along one axis only: the maps of
parallel branches, W₂W₁x + V₂V₁x, agree in the axis that they share with the rest of the network,
whether or not the branches are equally wide.
"""

from __future__ import annotations

import math
import operator

from .ansatz import Ansatz, BlockPiece, and_constants, constants
from .generators import Shapes


def tensors(shapes: Shapes, affine: bool) -> Ansatz:
    """Blocks between the entries of one tensor, and of two that are alike."""
    pairs = [(t, s) for t in shapes for s in shapes if alike(shapes[t], shapes[s])]
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    pieces = [BlockPiece(t, s, (sizes[t], sizes[s])) for t, s in pairs]
    mixed = sum(t != s for t, s in pairs) // 2
    if mixed:
        between = (
            f"between {mixed} pair{'s' * (mixed != 1)} of tensors of equal shape or of shapes that "
            "differ along one axis (parallel branches)"
        )
    else:
        between = "between no two tensors, since all shapes differ along two axes or more"
    words = (
        f"every entry of a tensor by every entry of the same tensor, and {between}"
        f"{and_constants(affine)}; not: other pairs of tensors"
    )
    return Ansatz("tensors", shapes, [*pieces, *constants(shapes, affine)], words)


def alike(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether two shapes are equal, or differ along one axis; two vectors always are."""
    return len(shape) == len(other) and sum(map(operator.ne, shape, other)) <= 1

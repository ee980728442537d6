"""Part of the way to a permutation, and its inverse: (U, V) → (U s⁻¹, sV).

s = (I + ε/2 (I + S)) / (1 + ε) with a random permutation matrix S. It is I at ε = 0, and tends for
large ε to (I + S)/2, which has no inverse where S has a cycle of even length; for every finite ε it
is invertible, since the eigenvalues of S lie on the unit circle.
"""

from __future__ import annotations

from torch import Tensor

from .inverse import inverse
from .method import Draw, Method


def interpolated(draw: Draw) -> Tensor:
    """s = (I + ε/2 (I + S)) / (1 + ε)."""
    one, strength = draw.identity(), draw.strength
    permuted = one[draw.permutation(draw.units)]
    return (one + 0.5 * strength * (one + permuted)) / (1 + strength)


METHOD = Method(interpolated, inverse)

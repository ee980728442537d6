"""Term (9): generators differ from one another."""

from __future__ import annotations

import torch


def orthogonality(generators: torch.Tensor, signed: bool = True) -> torch.Tensor:
    """Σ_{i<j} cos(h_i, h_j), as published: with its sign.

    With the sign it is least, not at orthogonal generators, but at opposite ones: −1 for two
    (h₂ = −h₁, the same one-parameter group), −k/2 for k.

    Args:
        generators: h, (k, n, n).
        signed: False for Σ |cos|, which is least, 0, where they are orthogonal.
    """
    flat = generators.flatten(1)
    unit = flat / flat.norm(dim=1, keepdim=True).clamp_min(torch.finfo(flat.dtype).tiny)
    cosines = (unit @ unit.T).triu(1)
    return cosines.sum() if signed else cosines.abs().sum()

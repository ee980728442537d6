"""Term (7) as published: it is not zero on actions."""

from __future__ import annotations

import torch

from .fields import Fields


def published_associativity(fields: Fields) -> torch.Tensor:
    """Σ_{h₁,h₂} E ‖Dξ_{h₂}·ξ_{h₁} − ½ ξ_[h₁,h₂]‖, over all ordered pairs, equal ones too.

    No condition that actions satisfy: on a(g, θ) = gθ it is Σ E ‖h₂h₁θ − ½[h₁, h₂]θ‖, which for
    one generator is E ‖h²θ‖. The expansion behind it drops the terms of second order in g and
    takes [h₁, h₂] with the sign of exp(h₁)exp(h₂) where exp(h₂)exp(h₁) stands.

    Source: "Finding symmetry in neural network parameter spaces", equation (7) and A.2.
    """
    brackets = fields.brackets().flatten(0, 1)  # [h_i, h_j], i = 1, j = 2
    right = fields.of_matrices(brackets).view_as(left := fields.derivative())
    return (left - right / 2).norm(dim=-1).mean(-1).sum()

"""The condition that equation (7) stands for: fields close as the matrices do."""

from __future__ import annotations

import torch

from .fields import Fields


def commutator(fields: Fields) -> torch.Tensor:
    """Σ_{A,B} E ‖[ξ_A, ξ_B] + ξ_[A,B]‖ with [ξ_A, ξ_B] = Dξ_B·ξ_A − Dξ_A·ξ_B.

    Zero on every left action, at all θ: g ↦ a(g, ·) then is a homomorphism, and h ↦ ξ_h an
    antihomomorphism to vector fields. Nothing is asked of a single generator, whose flow is a group
    whatever the field is.

    Source: Lee, "Introduction to smooth manifolds" (2013), Theorem 20.18 (there for right actions).
    """
    if fields.count == 1:
        return fields.velocity.new_zeros(())
    changed = fields.derivative()
    brackets = fields.of_matrices(fields.brackets().flatten(0, 1)).view_as(changed)
    return (changed - changed.transpose(0, 1) + brackets).norm(dim=-1).mean(-1).sum()

"""Associativity to second order, with the terms that the published derivation drops."""

from __future__ import annotations

import torch

from .fields import Fields


def second_order(fields: Fields) -> torch.Tensor:
    """Σ_{h₁,h₂} E ‖Dξ_{h₂}·ξ_{h₁} − D²_g a(h₂, h₁) − ξ_{h₂h₁}‖, at g = I.

    The mixed derivative of a(exp(sh₂), a(exp(th₁), θ)) = a(exp(sh₂)exp(th₁), θ) by s and t at 0,
    hence zero on every action. Its antisymmetric part is the commutator condition; its symmetric
    part, which one generator has too, ties the map g ↦ a(g, θ) to the flow of its own field.
    """
    changed = fields.derivative()  # at [1, 2]
    products = (fields.generators[None] @ fields.generators[:, None]).flatten(0, 1)  # h₂h₁
    right = fields.second() + fields.of_matrices(products).view_as(changed)
    return (changed - right).norm(dim=-1).mean(-1).sum()

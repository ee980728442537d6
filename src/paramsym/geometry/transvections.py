"""The offset of a transvection: a bias behind a gain against what its readers never receive."""

from __future__ import annotations

import torch
from torch import Tensor

from paramsym.structure.layout import widened
from paramsym.structure.shift import Factor, Params, Shift

LEVEL = 30.0  # units in the last place: a shift by less is rounding


def transvection(shift: Shift, params: Params) -> tuple[Tensor, float] | str:
    """The offset of β ↦ β − δ ⟨δ⁰, β⟩ / (1 + ⟨δ⁰, δ⟩), W ↦ W (1 + δ γ⁻ᵀ), δ⁰ = γ⁻¹, both behind γ.

    Write V = W γ and b = β/γ, and e = δ/γ: b ↦ b − e (1ᵀb) / (1 + 1ᵀe), V ↦ V + (V e) 1ᵀ.

    Where V has null vectors that are not orthogonal to ones, V 1 can be made zero. Where it has
    none, an e of sum zero first makes b parallel to ones; one along ones then multiplies V 1 by c
    and 1ᵀb by 1/c, and the norm is least where |1ᵀb| = ‖V 1‖. The sign of c makes 1ᵀb positive.
    """
    first, *readers = shift.terms
    divisor = shift.divisor or ()
    if len(divisor) != 1 or len(first.factors) != 2:
        return "it is no transvection behind one gain"
    views = [widened(term.target.view(params)) for term in readers if not term.divided]
    weight_view = torch.cat([view.reshape(-1, view.shape[-1]) for view in views])
    inverse = power_of(divisor[0], params).reshape(-1)
    bias = widened(first.target.view(params)).reshape(-1) * inverse
    if not bool(inverse.isfinite().all()) or weight_view.shape[1] != len(inverse):
        return f"{divisor[0].window.parameter!r} has a zero, which it would be divided by"
    gain = 1 / inverse
    weight, ones = weight_view * gain, torch.ones_like(gain)
    level = LEVEL * torch.finfo(params[first.target.parameter].dtype).eps
    along, total = weight @ ones, bias.sum()
    if float(along.norm()) <= level * float(weight.norm()) * len(gain):
        return 0 * gain, 1.0
    null = _null_part(weight, level)
    if float(null.sum()) > 1e-6 * len(gain):
        return gain * (null / null.sum() - ones / len(gain)), float(gain.abs().max())
    if not bool(total):
        return f"{first.target.parameter!r} has no part that it could be read from"
    size = float(gain.abs().max())
    bent = bias / total - ones / len(gain)
    if float(bent.abs().max()) > level:
        return gain * bent, size
    stretch = total.sign() * (total.abs() / along.norm()).sqrt()
    return (stretch - 1) / len(gain) * gain, size


def _null_part(weight: Tensor, level: float) -> Tensor:
    """The part of ones that a matrix sends to zero, by its smaller Gram matrix."""
    values, vectors = torch.linalg.eigh(weight.mT @ weight)
    null = vectors[:, values <= max(level, 1e-10) * values[-1]]
    return null @ null.sum(0)


def power_of(factor: Factor, params: Params) -> Tensor:
    """(window + offset)^power."""
    return (widened(factor.window.view(params)) + factor.offset) ** factor.power

"""The offset of a transvection: a bias behind a gain against what its readers never receive."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from paramsym.structure.layout import widened
from paramsym.structure.shift import Factor, Params, Shift, Term
from paramsym.structure.sliding import powered

LEVEL = 30.0  # units in the last place: a shift by less is rounding


class Behind(NamedTuple):
    """What stands behind a gain γ: b = β/γ, V = W γ of all readers, and γ itself."""

    bias: Tensor
    weight: Tensor
    gain: Tensor


def behind(shift: Shift, params: Params) -> Behind | str:
    """What a transvection moves, in coordinates in which its gain is one; or why it cannot.

    It is β ↦ β − δ ⟨β/γ⟩ / (1 + ⟨δ/γ⟩), W ↦ W (1 + δ γ⁻ᵀ), ⟨·⟩ a sum. With e = δ/γ,

        b ↦ b − e (1ᵀb) / (1 + 1ᵀe),    V ↦ V + (V e) 1ᵀ.
    """
    first, divisor = shift.terms[0], shift.divisor or ()
    if not shift.kind or len(divisor) != 1 or len(first.factors) != 2:
        return "it is no transvection behind one gain"
    inverse = power_of(divisor[0], params).reshape(-1)
    bias = widened(first.target.view(params)).reshape(-1) * inverse
    views = [widened(term.target.view(params)) for term in _readers(shift)]
    fits = all(view.shape[-1] == len(inverse) for view in views)
    if not bool(inverse.isfinite().all()) or not fits:
        return f"{divisor[0].window.parameter!r} has a zero, which it would be divided by"
    weight = torch.cat([view.reshape(-1, len(inverse)) for view in views])
    return Behind(bias, weight / inverse, 1 / inverse)


def _readers(shift: Shift) -> list[Term]:
    """The terms of what reads the bias; those that are divided take up what it loses."""
    return [term for term in shift.terms[1:] if not term.divided]


def transvection(shift: Shift, params: Params) -> tuple[Tensor, float] | str:
    """The offset that brings a bias and its readers to their place, and the size of the gain.

    Where V has null vectors that are not orthogonal to ones, V 1 can be made zero. Where it has
    none, e = (b − 1/√n)/√n makes every entry of b equal to 1/√n, whatever happens to V, which
    scales of other spaces move as well.
    """
    found = behind(shift, params)
    if isinstance(found, str):
        return found
    bias, weight, gain = found
    ones, count, size = torch.ones_like(gain), len(gain), float(gain.abs().max())
    level = LEVEL * torch.finfo(params[shift.terms[0].target.parameter].dtype).eps
    if float((weight @ ones).norm()) <= level * float(weight.norm()) * count:
        return 0 * gain, 1.0
    null = _null_part(weight, level)
    if float(null.sum()) > 1e-6 * count:
        return gain * (null / null.sum() - ones / count), size
    if float(bias.sum().abs()) <= level * float(bias.abs().sum()):
        return 0 * gain, 1.0
    return gain * (bias - count**-0.5) * count**-0.5, size


def unreceived(shift: Shift, params: Params) -> dict[str, Tensor]:
    """The readers without V 1, where the bias has no part along ones and none of them receives any.

    Nothing then determines V 1, and no offset makes it zero: with e near −1/n it comes as near as
    one likes. Nothing where the bias has such a part, or V 1 can be made zero.
    """
    found = behind(shift, params)
    if isinstance(found, str):
        return {}
    level = LEVEL * torch.finfo(params[shift.terms[0].target.parameter].dtype).eps
    along = (found.weight @ torch.ones_like(found.gain)).norm()
    if float(found.bias.abs().sum()) or float(along) <= level * float(found.weight.norm()):
        return {}
    made: dict[str, Tensor] = {}
    for term in _readers(shift):
        name = term.target.parameter
        made.setdefault(name, params[name].clone(memory_format=torch.contiguous_format))
        view = term.target.view(made)
        mean = (widened(view) * found.gain).mean(-1, keepdim=True)
        view.sub_((mean / found.gain).to(view.dtype))
    return made


def received(shift: Shift, fixed: Params, moving: Params) -> Tensor | None:
    """The offset that brings V 1 of one point nearest to that of another."""
    one, other = behind(shift, fixed), behind(shift, moving)
    if isinstance(one, str) or isinstance(other, str):
        return None
    apart = (one.weight - other.weight).mean(-1)
    e = torch.linalg.lstsq(other.weight, apart[:, None], driver="gelsd").solution[:, 0]
    return None if float((1 + e.sum()).abs()) < 1e-9 else other.gain * e


def _null_part(weight: Tensor, level: float) -> Tensor:
    """The part of ones that a matrix sends to zero, by its smaller Gram matrix."""
    values, vectors = torch.linalg.eigh(weight.mT @ weight)
    null = vectors[:, values <= max(level, 1e-10) * values[-1]]
    return null @ null.sum(0)


def power_of(factor: Factor, params: Params) -> Tensor:
    """(window + offset)^power, in double precision."""
    return powered(factor, widened(factor.window.view(params)))

"""The offset of a shift that leaves the least norm."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from paramsym.structure.sliding import shift_pairing, shift_updates
from paramsym.structure.symmetry import ParameterSymmetry

_PRODUCTS = 200
_ACCURACY = 1e-13  # of the slope, relative to that at the start


def least_norm_offset(
    symmetry: ParameterSymmetry, params: Mapping[str, Tensor], shift: str
) -> Tensor | None:
    """The δ with least ‖θ + L δ‖², L the linear motion of one shift; buffers cost nothing.

    By conjugate gradients on LᵀL δ = −Lᵀθ.

    Args:
        symmetry: whose shift it is.
        params: θ, the complete state dict in double precision.
        shift: its name.

    Returns:
        δ, of the shape of the shift; None where it moves only buffers or gains nothing.
    """
    known = symmetry.shift_of[shift]
    counted = {t.target.parameter for t in known.terms} - {*symmetry.buffers}
    own = {n: params[n] for n in counted if params[n].is_floating_point()}
    slope = shift_pairing(known, own, params)
    if slope is None:
        return None
    residual = -slope
    offset, search = torch.zeros_like(residual), residual
    first = product = float((residual * residual).sum())
    norm = sum(float(p.square().sum()) for p in own.values())
    if first <= 1e-28 * norm * norm:
        return None
    for _ in range(_PRODUCTS):
        along = shift_pairing(known, _moved(known, search, params, own), params)
        assert along is not None
        curvature = float((search * along).sum())
        if curvature <= 1e-300:
            break
        step = product / curvature
        offset, residual = offset + step * search, residual - step * along
        product, before = float((residual * residual).sum()), product
        if product <= _ACCURACY**2 * first:
            break
        search = residual + (product / before) * search
    return offset


def _moved(known, delta: Tensor, params: Mapping[str, Tensor], own: Mapping[str, Tensor]):
    made = {n: torch.zeros_like(p).contiguous() for n, p in own.items()}
    for term, update in shift_updates(known, delta, params, first_order=True):
        name, window = term.target.parameter, term.target
        if name in made:
            view = made[name].as_strided(window.shape, window.strides, window.start)
            view.add_(update.expand(window.shape))
    return made

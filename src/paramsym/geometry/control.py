"""A moved copy of a network, by which one that is not its own control is told."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from paramsym.geometry.unframed import zero_gains
from paramsym.structure.action import act
from paramsym.structure.sliding import standstill
from paramsym.structure.symmetry import ParameterSymmetry

_SAME, _ROUNDING = 1e-7, 1e3  # at most so far apart, or so many units in the last place


def moved_copy(symmetry: ParameterSymmetry, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters after a random element, the same for every call, of everything that is exact
    and can move them."""
    stuck = zero_gains(symmetry, params)
    spaces = [name for name, space in symmetry.spaces.items() if space.exact and name not in stuck]
    shifts = [name for name, shift in symmetry.shift_of.items() if not standstill(shift, params)]
    if not spaces and not shifts:
        return dict(params)
    drawn = symmetry.sample(torch.Generator().manual_seed(0), only=[*spaces, *shifts])
    return act(symmetry, drawn, params)


def not_unique(apart: float, params: Mapping[str, Tensor]) -> dict[str, str]:
    """What is held if a point and a moved copy of it are led to different places.

    Args:
        apart: how far, relative to their size.
        params: of which precision they are.
    """
    kinds = [p.dtype.to_real() for p in params.values() if p.is_floating_point() or p.is_complex()]
    rounding = max((torch.finfo(kind).eps for kind in kinds), default=0.0)
    if apart <= max(_SAME, _ROUNDING * rounding):
        return {}
    return {"representative": f"a moved copy is led to another one, {apart:.1e} away"}

"""One tensor moved by the values of spaces: axis by axis where it is large, else leg by leg."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from paramsym.structure.element import Values
from paramsym.structure.fast import moved_by_axes
from paramsym.structure.layout import laid_like
from paramsym.structure.legwise import Movers, leg_by_leg
from paramsym.structure.shift import Params
from paramsym.structure.space import Space
from paramsym.structure.symmetry import ParameterSymmetry


def moved(
    symmetry: ParameterSymmetry,
    spaces: Mapping[str, Space],
    values: Values,
    name: str,
    params: Params,
    movers: Movers | None = None,
) -> torch.Tensor:
    """The tensor `name` after the values of some spaces, whose groups `spaces` says.

    `movers` are those of `leg_by_leg`.
    """
    x = params[name]
    if x.is_floating_point() and x.itemsize == 1:  # only permuted, for which its bits will do
        bits = {**params, name: x.view(torch.uint8)}
        return moved(symmetry, spaces, values, name, bits).view(x.dtype)
    fast = moved_by_axes(symmetry, spaces, values, name, params, movers)
    if fast is not None:
        return laid_like(fast, x)
    made = leg_by_leg(symmetry, spaces, values, name, params, movers)
    return laid_like(made.to(x.dtype), x)

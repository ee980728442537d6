"""Numbers that a compact group does not change: norms of tensors, and of units in order of size."""

from __future__ import annotations

import torch
from torch import Tensor

from paramsym.algebra import AbstractMonomial
from paramsym.geometry.pair import Pair

_DIFFERENT = 1e4  # units in the last place times the root of the number of entries


def first_difference(pair: Pair, likely: str = "") -> str:
    """Where an invariant of the one point differs from that of the other; empty if nowhere.

    Args:
        pair: the two points, reduced.
        likely: a parameter to look at first.
    """
    names = [*pair.symmetry.signature]
    for name in sorted(names, key=lambda name: name != likely):
        one, other = pair.fixed[name], pair.moving[name]
        sizes = [float(torch.linalg.vector_norm(x, dtype=_wide(x))) for x in (one, other)]
        if abs(sizes[0] - sizes[1]) > level(one) * max(sizes):
            return f"the norm of {name!r} is {sizes[0]:.9g} in a and {sizes[1]:.9g} in b"
    for space, places in pair.places.items():
        group = pair.symmetry.spaces[space].group
        if not (isinstance(group, AbstractMonomial) and group.permutes):
            continue
        for place in places:
            one, other = (unit_norms(side) for side in pair.both(place))
            if one.ndim > 1:
                continue
            apart = (one.sort().values - other.sort().values).abs().max()
            if float(apart) > level(pair.fixed[place.block.parameter]) * float(one.max()):
                return f"the norms of the units of {space!r} in {place.block.parameter!r}"
    return ""


def level(x: Tensor) -> float:
    """The difference of norms, relative to them, that rounding does not explain."""
    return _DIFFERENT * torch.finfo(x.dtype.to_real()).eps * max(1.0, x.numel() ** 0.5 / 100)


def unit_norms(rows: Tensor) -> Tensor:
    """The norms of rows, of shape (*copies, n), in double precision."""
    return torch.linalg.vector_norm(rows, dim=-1, dtype=_wide(rows)).double()


def _wide(x: Tensor) -> torch.dtype:
    return torch.complex128 if x.is_complex() else torch.float64

"""Numbers that a compact group does not change: norms of tensors, and of units in order of size."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from paramsym.geometry.pair import Pair, is_order, square

_LEVEL = 1e4  # units in the last place that norms may differ by
FLOOR = 1e-3  # of the root mean square of everything: tensors that are smaller count as so large
_CONTROL = 30.0  # times what a moved copy shows: a difference, and no rounding


def apart(pair: Pair) -> dict[str, float]:
    """By invariant, how much it differs between the two points, relative to its size.

    The norm of each tensor, and the norms of the units of each order in each tensor, by size.
    """
    typical = FLOOR * typical_size(pair.fixed)
    found = {}
    for name in pair.symmetry.signature:
        one, other = (_norms(side[name].reshape(1, -1)) for side in (pair.fixed, pair.moving))
        floor = typical * pair.fixed[name].numel() ** 0.5
        found[f"the norm of {name!r}"] = _relative(one, other, floor)
    for space, places in pair.places.items():
        if is_order(pair.symmetry.spaces[space]):
            for place in (place for place in places if not place.leg.copies):
                one, other = (_norms(side).sort().values for side in pair.both(place))
                floor = typical * (pair.fixed[place.block.parameter].numel() / len(one)) ** 0.5
                text = f"the norms of the units of {space!r} in {place.block.parameter!r}"
                found[text] = max(found.get(text, 0.0), _relative(one, other, floor))
    return found


def difference(
    pair: Pair, own: Mapping[str, float], control: Mapping[str, float], likely: str
) -> str:
    """An invariant that differs by more than rounding, and more than for a moved copy, in words.

    Args:
        pair: the two points.
        own: what `apart` says of them.
        control: what it says of a point and a moved copy of it.
        likely: a parameter to look at first.
    """
    level = _LEVEL * pair.rounding
    clear = [text for text, size in own.items() if size > level + _CONTROL * control.get(text, 0.0)]
    clear.sort(key=lambda text: repr(likely) not in text)
    return f"{clear[0]}, by {own[clear[0]]:.1e}" if clear else ""


def typical_size(params: Mapping[str, Tensor]) -> float:
    """The root mean square of all numbers."""
    count = sum(x.numel() for x in params.values())
    return (square(params.values()) / count) ** 0.5 if count else 0.0


def _relative(one: Tensor, other: Tensor, floor: float) -> float:
    """The largest difference, relative to the larger number or to a floor."""
    size = torch.maximum(one, other).clamp(min=max(floor, 1e-300))
    return float(((one - other).abs() / size).max()) if one.numel() else 0.0


def _norms(rows: Tensor) -> Tensor:
    """The norms of rows, in double precision."""
    wide = torch.complex128 if rows.is_complex() else torch.float64
    return torch.linalg.vector_norm(rows, dim=-1, dtype=wide).double()

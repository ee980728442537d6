"""To how many digits a function is computed: the roundings that its values show.

A step in the values is no evidence by itself: floor(z), an activation in int8 and round(9z)/9 are
staircases that mean what they say. A rounding is relative: it leaves the digits of one of the
floating-point types, down to the last of them, at every size.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# narrowest first, each with integers of its width
_TYPES = (
    (torch.bfloat16, torch.int16),
    (torch.float16, torch.int16),
    (torch.float32, torch.int32),
)


def relative_precision(f: Callable[[Tensor], Tensor], z: Tensor) -> float:
    """The distance from 1 to the next number in the narrowest type that f passes through.

    Args:
        f: a function of float64 to float64, in its own units.
        z: where it is looked at, near the origin and far from it.
    """
    value = f(z)
    kept = value.isfinite() & z.isfinite()
    z, value = z[kept], value[kept]
    for dtype, integers in _TYPES:
        if _is_rounded(value, dtype, integers) or _rounds_its_argument(f, z, value, dtype):
            return torch.finfo(dtype).eps
    return torch.finfo(torch.float64).eps


def _is_rounded(value: Tensor, dtype: torch.dtype, integers: torch.dtype) -> bool:
    """Whether all values are numbers of a type, and use its last digit as often as not."""
    value = value[value != 0].unique()
    if len(value) < 20 or not torch.equal(value.to(dtype).double(), value):
        return False
    odd = value.to(dtype).view(integers) % 2 != 0
    return float(odd.double().mean()) > 0.35


def _rounds_its_argument(
    f: Callable[[Tensor], Tensor], z: Tensor, value: Tensor, dtype: torch.dtype
) -> bool:
    """Whether rounding z changes nothing, and four such roundings change it nearly everywhere."""
    if not torch.equal(f(z.to(dtype).double()), value):
        return False
    varies = f(z * (1 + 2.0**-4)) != value
    if int(varies.sum()) < 20:
        return False
    moved = f(z * (1 + 4 * torch.finfo(dtype).eps)) != value
    return float(moved[varies].double().mean()) > 0.5

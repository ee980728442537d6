"""Where a function bends, and the centres and periods that its bends suggest.

f modulo affine functions is its second difference. A reflection of f about p reflects it, and a
shift moves it, so that its correlation with its mirror image has a peak at 2p, and that with itself
at each period. Grids of fixed width do not see a bump far out; where f bends is where to look.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .function import ScalarFunction
from .grid import FINE, REACH

_QUANTILES = 96


def second_difference(f: ScalarFunction) -> tuple[Tensor, Tensor]:
    """A grid over [−3·REACH, 3·REACH], to hold both sides of each centre, and f bent there."""
    count = round(6 * REACH / FINE)
    z = -3 * REACH + FINE * (torch.arange(count + 2, dtype=torch.float64) - 0.2847)
    value = f(z)
    bent = value[2:] - 2 * value[1:-1] + value[:-2]
    # the difference carries roundings of three values and of their arguments
    slope = (value[2:] - value[:-2]).abs() * z[1:-1].abs() / FINE
    noise = 8 * f.epsilon * (value[1:-1].abs() + slope)
    bent = torch.where(bent.abs() > noise, bent, 0.0).nan_to_num(0.0, 0.0, 0.0)
    return z[1:-1], bent


def bending_places(f: ScalarFunction) -> list[float]:
    """Quantiles of |f''|, and of it in [−REACH, REACH]: where f tells a from b and c."""
    if not f.is_line:
        return []
    z, bent = second_difference(f)
    near = torch.where(z.abs() <= REACH, bent, 0.0)
    levels = (torch.arange(_QUANTILES, dtype=torch.float64) + 0.5) / _QUANTILES
    return [p for each in (bent, near) for p in _quantiles(z, each, levels).tolist()]


def _quantiles(z: Tensor, bent: Tensor, levels: Tensor) -> Tensor:
    size = bent.abs() / bent.abs().max().clamp_min(1e-300)
    mass = size.cumsum(0)
    if not float(mass[-1]):
        return z[:0]
    return z[torch.searchsorted(mass / mass[-1], levels).clamp_max(len(z) - 1)]


def centres_of_bends(f: ScalarFunction) -> list[tuple[float, float]]:
    """Candidates for centres with the width of what lies about them."""
    z, bent = second_difference(f)
    levels = torch.tensor([0.005, 0.05, 0.2, 0.5, 0.8, 0.95, 0.995], dtype=torch.float64)
    at = _quantiles(z, bent, levels)
    if not len(at):
        return []
    width = min(max(float(at[-1] - at[0]), 4 * FINE), 3 * REACH)
    places = [float(at[k] + at[-1 - k]) / 2 for k in range(4)]
    padded = torch.zeros(1 << (2 * len(z) - 1).bit_length(), dtype=torch.float64)
    padded[: len(z)] = bent / bent.abs().max()
    mirrored = torch.fft.irfft(torch.fft.rfft(padded) ** 2)[: 2 * len(z) - 1]
    for peak in (int(mirrored.argmax()), int(mirrored.argmin())):
        places.append(float(z[0]) + FINE * peak / 2)
    return [(p, width) for p in places if abs(p) <= REACH]

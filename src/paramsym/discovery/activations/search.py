"""Where discrete relations may be: minima of a defect over reflections, shifts and scalings.

The discrete maps A with f∘A in the span of f, z and 1 are, up to the continuous ones, reflections
z ↦ 2p − z, shifts z ↦ z + T, and scalings z ↦ p + α(z − p). Each kind has its own defect, scanned
on grids of several sizes and refined around each local minimum. The defects are norms, which fall
linearly to an exact relation, so that a search by brackets ends at all digits, kinks or not.

All sums are weighted so that each point counts relative to the values at it; exponentials and poles
would else drown the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .function import ScalarFunction
from .grid import REACH

WINDOWS = (1.0, 8.0, 64.0)
LARGEST = 7.0  # scalings by up to e^7
Defect = Callable[[Tensor], Tensor]  # by candidate


@dataclass(frozen=True)
class Minimum:
    """A local minimum: where, and the defect, the sine of an angle modulo affine functions."""

    at: float
    defect: float


def spread(count: int) -> Tensor:
    """Points of (0, 1) without gaps: multiples of the golden ratio."""
    return ((torch.arange(count, dtype=torch.float64) + 0.5) * ((math.sqrt(5) - 1) / 2)) % 1


def reflection_defect(f: ScalarFunction, sign: int, width: float) -> Defect:
    """|f(p − u) − sign·f(p + u)| modulo the part that is allowed, by p.

    A reflection is its own inverse, so that a = ±1; then b = 0 for a = −1 (a constant remains), and
    for a = 1 what remains is a multiple of u.
    """
    u = width * 2 * spread(192)

    def defect(p: Tensor) -> Tensor:
        left, right = f(p[:, None] - u), f(p[:, None] + u)  # (candidates, points)
        weight, left, right = _weighted(f, left, right)
        allowed = _unit(weight * u if sign > 0 else weight)
        total = _off(left - sign * right, allowed).norm(dim=-1)
        affine = _affine(weight, u)
        bent = _off(left, *affine).norm(dim=-1) + _off(right, *affine).norm(dim=-1)
        return _ratio(f, total, bent, weight)

    return defect


def shift_defect(f: ScalarFunction, width: float) -> Defect:
    """The angle between f(z + T) and f(z) modulo affine functions, by T."""
    z = width * (2 * spread(192) - 1)
    return lambda shift: _angle(f, z, z + shift[:, None])


def scaling_defect(
    f: ScalarFunction, centre: float, sign: int = 1, near: float = math.exp(-4)
) -> Defect:
    """The angle between f(p + αu) and f(p + u) modulo affine functions, by log |α|.

    Points u are at all magnitudes from `near` to e^4: a centre that is known only roughly is
    judged from a distance.
    """
    half = near * (math.exp(4) / near) ** spread(160)
    if f.is_line:
        half = torch.cat([half[::2], -half[1::2]])
    if math.isfinite(f.high):
        half = -half

    def defect(log_scale: Tensor) -> Tensor:
        scale = sign * log_scale.exp()[:, None]
        return _angle(f, centre + half, centre + scale * half)

    return defect


def scaling_grid_defect(
    f: ScalarFunction, centres: Tensor, log_scales: Tensor, near: float
) -> Tensor:
    """The same on a grid of centres and scales: (centres, scales)."""
    return torch.stack([scaling_defect(f, float(p), 1, near)(log_scales) for p in centres])


def minima(defect: Defect, low: float, high: float, steps: int, keep: int = 8) -> list[Minimum]:
    """The lowest local minima on an interval, each refined to the last digit."""
    grid = torch.linspace(low, high, steps + 1, dtype=torch.float64)
    values = defect(grid)
    inner = (values[1:-1] <= values[:-2]) & (values[1:-1] <= values[2:]) & (values[1:-1] < 0.7)
    places = inner.nonzero().flatten() + 1
    places = places[values[places].argsort()[:keep]]
    if not len(places):
        return []
    left, right = grid[places - 1], grid[places + 1]
    best, least = grid[places], values[places]
    parts = torch.linspace(0, 1, 13, dtype=torch.float64)
    for _ in range(22):
        trial = left[:, None] + (right - left)[:, None] * parts  # (minima, parts)
        found = defect(trial.flatten()).view(trial.shape)
        value, k = found.min(1)
        rows = torch.arange(len(k))
        better = value < least
        best, least = torch.where(better, trial[rows, k], best), torch.minimum(value, least)
        # stay around the best, which need not be on this grid
        reach = (right - left) / (len(parts) - 1) * 1.01
        left, right = best - reach, best + reach
        if float(reach.max()) < 1e-16 * (1 + abs(high)):
            break
    return [Minimum(*pair) for pair in zip(best.tolist(), least.tolist(), strict=True)]


def jumps(f: ScalarFunction, most: int = 24) -> list[float]:
    """Where f jumps in [−REACH, REACH], by bisection, nearest to the origin first."""
    grid = torch.linspace(-REACH, REACH, 12801, dtype=torch.float64) + 0.00141
    grid = grid[(grid > f.low) & (grid < f.high)]
    if len(grid) < 3:
        return []
    left, right = grid[:-1], grid[1:]
    change = (f(right) - f(left)).abs().nan_to_num(0.0, 0.0, 0.0)
    first = change
    for step in range(60):
        if step == 8:  # what is smooth has lost 1/256 of its change by now
            open_ = (change > 0.1 * first) & (first > 1e-6 * (f.typical + 1e-300))
            left, right, first = left[open_], right[open_], first[open_]
        middle = (left + right) / 2
        at = f(middle)
        lower, upper = (at - f(left)).abs(), (f(right) - at).abs()
        take = lower > upper
        left, right = torch.where(take, left, middle), torch.where(take, middle, right)
        change = torch.maximum(lower, upper)
    rest = (f(right) - f(left)).abs()
    high = (first > 1e-6 * (f.typical + 1e-300)) & (rest > 0.3 * first) & rest.isfinite()
    found = sorted(((left + right) / 2)[high].tolist(), key=abs)
    kept: list[float] = []
    for place in found:
        if all(abs(place - other) > 1e-9 for other in kept):
            kept.append(round(place, 12) + 0.0)
    return kept[:most]


def _weighted(
    f: ScalarFunction, left: Tensor, right: Tensor, size: Tensor | float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Weights by which each point counts relative to its values, and both values times them."""
    weight = 1 / ((left.abs() + right.abs() + 1e-3 * f.typical + 1e-300) * size)
    if not bool(weight.min() > 0):  # infinite or no numbers somewhere: these points do not count
        weight = weight.nan_to_num(0.0, 0.0, 0.0)
        left, right = (torch.where(weight > 0, side, 0.0) for side in (left, right))
    return weight, weight * left, weight * right


def _angle(f: ScalarFunction, z: Tensor, moved: Tensor) -> Tensor:
    """The sine between f at moved points and f, both modulo 1 and z, by candidate."""
    z = z.expand_as(moved)
    weight, target, value = _weighted(f, f(moved), f(z), 1 + z.abs())
    affine = _affine(weight, z)
    target, value = _off(target, *affine), _off(value, *affine)
    bent, straight = target.norm(dim=-1), value.norm(dim=-1)
    small = _ratio(f, straight, bent + straight, weight) >= 1  # f itself is straight there
    total = _off(target, _unit(value)).norm(dim=-1)
    return torch.where(small, 1.0, _ratio(f, total, bent, weight))


def _affine(weight: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """An orthonormal basis of weight·1 and weight·z, by candidate."""
    constant = _unit(weight)
    return constant, _unit(_off(weight * z, constant))


def _unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True).clamp_min(1e-300)


def _off(x: Tensor, *basis: Tensor) -> Tensor:
    """x modulo orthonormal vectors, twice: once leaves roundings of what was taken off."""
    for e in basis * 2:
        x = x - (x * e).sum(-1, keepdim=True) * e
    return x


def _ratio(f: ScalarFunction, part: Tensor, whole: Tensor, weight: Tensor) -> Tensor:
    """part / whole; one where the whole is but roundings, or where half the points are lost."""
    straight = max(1e-10, 32 * f.epsilon)
    lost = (weight > 0).double().mean(-1) < 0.5
    nothing = whole < straight * math.sqrt(weight.shape[-1])
    ratio = (part / whole.clamp_min(1e-300)).clamp_max(1.0)
    return torch.where(lost | nothing, 1.0, ratio)

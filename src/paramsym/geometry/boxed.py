"""The minimum of a convex sum of exponentials in a box, with a certified gap.

Projected Newton steps: coordinates that stand at a bound and would leave are held there, the others
take a Newton step, and the box is where the step ends at most.

The gap. In the notation of `newton`, let d be any direction and r = ∇f + ∇²f d. For every z of the
box l ≤ z ≤ h, Fenchel's inequality with v = u(1 + Cd), |Cd| ≤ 1, leaves

    f(y) − f(z) ≤ Σ u·φ(Cd) + ⟨r, y − z⟩ ≤ dᵀ∇²f d + Σ r⁺·(y − l) + Σ r⁻·(h − y),

where r is taken in all coordinates. With d zero at the bounds r is there the multiplier: of the
right sign (r ≥ 0 at l, r ≤ 0 at h) it adds nothing, of the wrong one it costs the width of the box.
With d = 0 this is convexity alone. A coordinate without bounds counts as wide as `newton.REACH`.

Source: Bertsekas, "Projected Newton methods for optimization problems with simple constraints",
SIAM J. Control Optim. 20 (1982).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from paramsym.geometry.newton import (
    REACH,
    STEEP,
    Least,
    certified,
    further,
    least_point,
    newton_step,
    swept,
)
from paramsym.geometry.posynomial import Point, Posynomial

_STEPS = 300
_NEAR = 0.1  # e-folds from a bound at which a coordinate that goes there no longer counts as free


@dataclass(frozen=True)
class Box:
    """l ≤ y ≤ h, each of shape (size,), infinite where there is no bound; y = 0 is where we are."""

    low: Tensor
    high: Tensor

    @staticmethod
    def of(f: Posynomial, limits: Mapping[str, tuple[Tensor, Tensor]]) -> Box:
        """The box with these bounds on the logarithms of some families."""
        low = torch.full((f.size,), -torch.inf, dtype=torch.float64)
        high = torch.full((f.size,), torch.inf, dtype=torch.float64)
        for side, whole in enumerate((low, high)):
            for family, view in f.split(whole).items():
                if family in limits:
                    view.copy_(limits[family][side])
        return Box(low, high)

    @property
    def bounded(self) -> Tensor:
        """Where there are bounds."""
        return self.low.isfinite()

    @cached_property
    def everywhere(self) -> bool:
        """Whether there are no bounds."""
        return not bool(self.bounded.any())

    @property
    def wide(self) -> Tensor:
        """1 where there is more than one point, and 0 elsewhere."""
        return (self.high > self.low).double()

    def nearest(self, y: Tensor) -> Tensor:
        """The point of the box next to y."""
        return torch.minimum(torch.maximum(y, self.low), self.high)

    def seen_from(self, y: Tensor) -> Box:
        """The same box after a move by y."""
        return Box(self.low - y, self.high - y)


def least_in_box(
    f: Posynomial,
    free: Tensor,
    box: Box,
    tolerance: float,
    sweep: bool = True,
    steep: float = STEEP,
) -> Least[Point]:
    """The point at which f is least in a box, and how much lower it can be there.

    Args:
        f: the cost.
        free: 1 for coordinates that may move, 0 for those that stay at zero or, where the box
            leaves them no choice, go where it has them.
        box: where y is looked for.
        tolerance: the gap relative to f at which to stop.
        sweep: whether sweeps come first, where there are no bounds.
        steep: slopes up to this share of the cost are none, where there are no bounds.
    """
    if box.everywhere:
        return least_point(f, free, tolerance, sweep, steep)
    free = free * box.wide
    start = swept(f, free, lambda y: box.nearest(torch.from_numpy(y)).numpy())
    point = f.at(box.nearest(start))
    for _ in range(_STEPS):
        direction = _direction(point, free, box)
        level = _steepest(point, free, box) <= STEEP * point.value
        if level and _gap(point, free, box, direction) <= tolerance * point.value:
            break
        steepest = partial(_steepest, free=free, box=box)
        following = further(point, direction, steepest, box.nearest)
        if following is None:
            break
        point = following
    return Least(point, gap_in_box(point, free, box))


def slope_in_box(point: Point, free: Tensor, box: Box) -> Tensor:
    """The slope along what is free, zero where a bound holds against it, of shape (size,)."""
    if box.everywhere:
        return point.gradient * free
    return point.gradient * free * box.wide * ~_held(point.y, point.gradient, box, 0.0)


def certified_in_box(point: Point, free: Tensor, box: Box, tolerance: float) -> Least[Point]:
    """A point with a bound on how much lower f can be in the box."""
    if box.everywhere:
        return certified(point, free, tolerance)
    return Least(point, gap_in_box(point, free, box))


def slack_in_box(point: Point, free: Tensor, box: Box) -> float:
    """How much lower f can be in the box by convexity alone, which holds together with whatever
    else f is convex along."""
    return _fall(point, free * box.wide, box, point.gradient)


def gap_in_box(point: Point, free: Tensor, box: Box) -> float:
    """How much lower f can be in the box, at most."""
    moving = free * box.wide * ~_held(point.y, point.gradient, box, 0.0)
    return _gap(point, free * box.wide, box, newton_step(point, moving, 1e-6).direction)


def _gap(point: Point, free: Tensor, box: Box, direction: Tensor) -> float:
    gap = _fall(point, free, box, point.gradient)
    if point.f.longest(direction) <= 1:
        along = point.hessian(direction)
        rest = _fall(point, free, box, point.gradient + along)
        gap = min(gap, max(float(direction @ along), 0.0) + rest)
    return gap


def _fall(point: Point, free: Tensor, box: Box, slope: Tensor) -> float:
    """How far what has these slopes everywhere falls in the box."""
    down = torch.maximum(box.low - point.y, torch.full_like(free, -REACH))
    up = torch.minimum(box.high - point.y, torch.full_like(free, REACH))
    return abs(float(torch.minimum(slope * down, slope * up)[free > 0].sum()))


def _held(y: Tensor, slope: Tensor, box: Box, near: float) -> Tensor:
    """Where y stands within a distance of a bound, and f falls beyond it."""
    return ((y - box.low <= near) & (slope > 0)) | ((box.high - y <= near) & (slope < 0))


def _direction(point: Point, free: Tensor, box: Box) -> Tensor:
    """A Newton step of what no bound holds; what is next to one goes there by itself."""
    slope = free * point.gradient
    alone = -slope / torch.where(point.curvature > 0, point.curvature, torch.ones_like(slope))
    moved = float((free * (box.nearest(point.y + alone) - point.y)).abs().max())
    held = _held(point.y, slope, box, min(_NEAR, moved))
    return torch.where(held, alone, newton_step(point, free * ~held).direction)


def _steepest(point: Point, free: Tensor, box: Box) -> float:
    return float(slope_in_box(point, free, box).abs().max())

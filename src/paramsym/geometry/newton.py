"""The minimum of a convex sum of exponentials, with a certified gap.

A few sweeps in closed form, family by family, and then Newton steps by conjugate gradients.

The gap. Let u be the summands at y and C their exponents, so that ∇f = Cᵀu and ∇²f = Cᵀ diag(u) C.
By Fenchel's inequality m eˢ ≥ v s − v log(v/m) + v for every v ≥ 0, f(z) is at least the sum of the
right hand sides at any z. With v = u(1 + Cd), d = −(∇²f)⁻¹∇f up to a residual r = ∇f + ∇²f d, and
|Cd| ≤ 1,

    f(y) − f(z) ≤ Σ u·φ(Cd) + ⟨r, y − z⟩ ≤ dᵀ∇²f d + ‖r‖₁·‖y − z‖_∞,

where φ(t) = (1 + t) log(1 + t) − t ≤ t²: the squared Newton decrement bounds what is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar, cast

import torch
from torch import Tensor

from paramsym.geometry.posynomial import Point, Posynomial

REACH = 100.0  # e-folds from the point found: no scale is compared with others beyond this
STEEP = 1e-10  # of the cost: slopes below it are none
_ACCURACY = 0.1  # of a step: fewer products with the Hessian, for a few steps more
_SWEEPS = 3
_STEPS = 100
_PRODUCTS = 500  # products with the Hessian for one step


class Convex(Protocol):
    """A convex cost of one vector; `longest` says how far its exponents move along a direction."""

    def at(self, y: Tensor) -> Place: ...

    def longest(self, direction: Tensor) -> float: ...


class Place(Protocol):
    """A convex cost with its derivatives at one point, as `posynomial.Point` has them."""

    y: Tensor

    @property
    def f(self) -> Convex: ...

    @property
    def value(self) -> float: ...

    @property
    def gradient(self) -> Tensor: ...

    def inverse(self, free: Tensor) -> Callable[[Tensor], Tensor]:
        """A positive definite map near (∇²f)⁻¹ on the free coordinates."""
        ...

    def hessian(self, v: Tensor) -> Tensor: ...


Located = TypeVar("Located", bound=Place)


class Least(NamedTuple, Generic[Located]):
    """A point and how much lower the cost can be."""

    point: Located
    gap: float


class Step(NamedTuple):
    """A Newton step d, its residual r = ∇f + ∇²f d, and how much lower f can be."""

    direction: Tensor
    residual: Tensor
    gap: float


def minimise(f: Posynomial, free: Tensor, tolerance: float) -> Tensor:
    """The logarithms y of the scales at which f is least, of shape (size,).

    Args:
        f: the cost.
        free: 1 for coordinates that may move, 0 for those that stay at zero, of shape (size,).
        tolerance: the gap relative to f at which to stop.
    """
    return least_point(f, free, tolerance).point.y


def least_point(f: Posynomial, free: Tensor, tolerance: float, sweep: bool = True) -> Least[Point]:
    """The point at which f is least; it starts from zero, where no sweeps come first."""
    return _descend(f.at(swept(f, free)) if sweep else f.here, free, tolerance, _STEPS, STEEP)


def certified(point: Located, free: Tensor, tolerance: float) -> Least[Located]:
    """A point with a bound on how much lower f can be, which takes a Newton step only where its
    slopes alone leave more than the tolerance."""
    gap, level = _slack(point, free), tolerance * point.value
    return Least(point, gap if gap <= level else newton_step(point, free, 1e-6, level).gap)


def descended(
    point: Located, free: Tensor, tolerance: float, steps: int = _STEPS, steep: float = STEEP
) -> Located:
    """Where Newton steps lead from a point, at most so many, until slopes are below a share of the
    cost; arguments as in `minimise`."""
    return _descend(point, free, tolerance, steps, steep).point


def _descend(
    point: Located, free: Tensor, tolerance: float, steps: int, steep: float
) -> Least[Located]:
    for _ in range(steps):
        level = steepness(point, free) <= steep * point.value
        enough = tolerance * point.value
        if level and (gap := _slack(point, free)) <= enough:
            return Least(point, gap)
        step = newton_step(point, free, enough=enough if level else 0.0)
        done = level and step.gap <= enough
        following = None if done else _descended(point, step.direction)
        if following is None:
            return Least(point, step.gap)
        point = following
    return Least(point, _slack(point, free))


def steepness(point: Place, free: Tensor) -> float:
    """The largest slope along a coordinate that is free."""
    slope = free * point.gradient
    return float(slope.abs().max()) if slope.numel() else 0.0


def _slack(point: Place, free: Tensor) -> float:
    """How much lower f can be by convexity alone."""
    return REACH * float((free * point.gradient).abs().sum())


def newton_step(
    point: Place, free: Tensor, accuracy: float = _ACCURACY, enough: float = 0.0
) -> Step:
    """The Newton step on the free coordinates, by conjugate gradients.

    Args:
        point: where it starts.
        free: as in `minimise`.
        accuracy: of the residual relative to the slope, at most; it falls with the slope, so that
            the steps converge faster than linearly.
        enough: what the residual may leave of the gap, where less is no use.
    """
    slope = free * point.gradient
    direction, residual = _conjugate_gradients(point, free, slope, accuracy, enough)
    gap = _slack(point, free)
    if point.f.longest(direction) <= 1:
        decrement = max(float(direction @ (residual - slope)), 0.0)
        gap = min(gap, decrement + REACH * float(residual.abs().sum()))
    return Step(direction, residual, gap)


def swept(f: Posynomial, mask: Tensor, nearest: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Sweeps: each family in turn goes where it would be best if all others stayed.

    Where what grows and what falls have one power it is exact, y = log(falls / grows) / 2q; where
    a family stands on both sides of a term, half of the way. `nearest` brings each back into a box,
    in which what falls alone, or grows alone, goes as far as it may.
    """
    y = torch.zeros(f.size, dtype=torch.float64)
    shared = {
        k.family for t in f.terms for k in t.factors
        if sum(other.family == k.family for other in t.factors) > 1
    }  # fmt: skip
    families, far = [*zip(f.shapes, f.flat(mask), strict=True)], REACH if nearest else 0.0
    for _ in range(_SWEEPS):
        for k, (family, free) in enumerate(families):
            up, down, both = (x.reshape(-1) for x in f.pulls(family, y))
            # the mean of |q| is both / (up + down)
            step = down.log().sub_(up.log()).mul_(up + down).div_(both)
            step.nan_to_num_(0.0, far, -far)
            f.flat(y)[k].addcmul_(free, step, value=0.25 if family in shared else 0.5)
            y = nearest(y) if nearest else y
    return y


def _conjugate_gradients(
    point: Place, free: Tensor, slope: Tensor, accuracy: float, enough: float
) -> tuple[Tensor, Tensor]:
    """d with ∇²f d ≈ −∇f on the free coordinates, and what is left, ∇f + ∇²f d."""
    inverse, held = point.inverse(free), None if bool(free.all()) else free
    direction, residual = torch.zeros_like(slope), slope.clone()
    preconditioned = inverse(residual)
    search = -preconditioned
    size = product = float(residual @ preconditioned)
    aim = min(accuracy, math.sqrt(size / point.value)) ** 2 * size if size else 0.0
    for _ in range(_PRODUCTS):
        if product <= aim or (enough and REACH * float(residual.abs().sum()) <= enough / 2):
            break
        along = point.hessian(search)
        if held is not None:
            along = along * held
        bend = float(search @ along)
        if bend <= 0:
            break
        step = product / bend
        direction.add_(search, alpha=step)
        residual.add_(along, alpha=step)
        preconditioned = inverse(residual)
        product, before = float(residual @ preconditioned), product
        search.mul_(product / before).sub_(preconditioned)
    return direction, residual


def _descended(point: Located, direction: Tensor) -> Located | None:
    """The point a step further, halved until f falls as it should; None where rounding ends it."""
    slope = float(point.gradient @ direction)
    length = min(1.0, 8.0 / max(float(direction.abs().max()), 1e-300))
    while length > 1e-6:
        # the points of one cost are of one kind
        following = cast("Located", point.f.at(point.y + length * direction))
        if following.value <= point.value + 1e-4 * length * slope:
            return following
        if abs(slope) < 1e-13 * point.value:
            return None
        length /= 2
    return None

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
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from paramsym.geometry.posynomial import Point, Posynomial
from paramsym.geometry.small import STEEPEST, Array

REACH = 100.0  # e-folds from the point found: no scale is compared with others beyond this
STEEP = 1e-10  # of the cost: slopes below it are none
_ACCURACY = 0.1  # of a step: fewer products with the Hessian, for a few steps more
_SWEEPS = 4
_SLOWEST = 0.8  # share that a sweep leaves of a move, up to which the rest is foreseen
_STEPS = 100
_RESTS, _STRIDE, _REST = 20, 4.0, 1e-3  # Newton steps, and e-folds of one that leads nowhere
_LONGEST = 8.0  # e-folds of one step
_HALVINGS = 40
_ROUNDING = 1e-12  # of f, up to which its values say nothing of a step
_PRODUCTS = 500  # products with the Hessian for one step


Vector: TypeAlias = Any  # a tensor, or an array of NumPy where the cost is of that kind


class Convex(Protocol):
    """A convex cost of one vector; `longest` says how far its exponents move along a direction."""

    def at(self, y: Vector) -> Place: ...

    def longest(self, direction: Vector) -> float: ...


class Place(Protocol):
    """A convex cost with its derivatives at one point, as `posynomial.Point` has them."""

    y: Vector

    @property
    def f(self) -> Convex: ...

    @property
    def value(self) -> float: ...

    @property
    def gradient(self) -> Vector: ...

    def inverse(self, free: Vector) -> Callable[[Vector], Vector]:
        """A positive definite map near (∇²f)⁻¹ on the free coordinates."""
        ...

    def hessian(self, v: Vector) -> Vector: ...


Located = TypeVar("Located", bound=Place)


class Least(NamedTuple, Generic[Located]):
    """A point and how much lower the cost can be."""

    point: Located
    gap: float


class Step(NamedTuple):
    """A Newton step d, its residual r = ∇f + ∇²f d, and how much lower f can be."""

    direction: Vector
    residual: Vector
    gap: float


def minimise(f: Posynomial, free: Tensor, tolerance: float) -> Tensor:
    """The logarithms y of the scales at which f is least, of shape (size,).

    Args:
        f: the cost.
        free: 1 for coordinates that may move, 0 for those that stay at zero, of shape (size,).
        tolerance: the gap relative to f at which to stop.
    """
    return least_point(f, free, tolerance).point.y


def least_point(
    f: Posynomial, free: Tensor, tolerance: float, sweep: bool = True, steep: float = STEEP
) -> Least[Point]:
    """The point at which f is least; it starts from zero, where no sweeps come first, and ends
    where slopes are below a share of the cost."""
    if f.small is None:
        return _descend(f.at(swept(f, free)) if sweep else f.here, free, tolerance, _STEPS, steep)
    with np.errstate(all="ignore"):  # a step that overflows is halved
        start = f.small.at(swept(f, free).numpy()) if sweep else f.small.here
        found = _descend(start, free.numpy(), tolerance, _STEPS, steep)
    return Least(Point(f, torch.from_numpy(found.point.y), found.point), found.gap)


def certified(point: Located, free: Tensor, tolerance: float) -> Least[Located]:
    """A point with a bound on how much lower f can be, which takes a Newton step only where its
    slopes alone leave more than the tolerance."""
    gap, level = _slack(free * point.gradient), tolerance * point.value
    return Least(point, gap if gap <= level else newton_step(point, free, 1e-6, level).gap)


def descended(
    point: Located, free: Tensor, tolerance: float, steps: int = _STEPS, steep: float = STEEP
) -> Located:
    """Where Newton steps lead from a point, at most so many, until slopes are below a share of the
    cost; arguments as in `minimise`."""
    return _descend(point, free, tolerance, steps, steep).point


def least_from(
    point: Located, free: Vector, tolerance: float, steep: float = STEEP, reach: float = REACH
) -> Least[Located]:
    """The point at which f is least, by Newton steps from a point.

    Where more than rounding counts as no slope, the step that shows a point to be good enough is
    taken all the same: it leads much nearer than what it shows, and the gap falls by as much as f.

    Args:
        point: where they start.
        free, tolerance: as in `minimise`.
        steep: slopes up to this share of the cost are none.
        reach: e-folds from the point found beyond which no scale is compared with others.
    """
    return _descend(point, free, tolerance, _STEPS, steep, reach)


def _descend(
    point: Located, free: Vector, tolerance: float, steps: int, steep: float, reach: float = REACH
) -> Least[Located]:
    for _ in range(steps):
        slopes = abs(free * point.gradient)
        level = _largest(slopes) <= steep * point.value
        enough = tolerance * point.value
        if level and (gap := reach * float(slopes.sum())) <= enough:
            return Least(point, gap)
        step = newton_step(point, free, enough=enough if level else 0.0, reach=reach)
        done = level and step.gap <= enough
        following = None
        if steep > STEEP or not done:
            following = further(point, step.direction, partial(steepness, free=free))
        if following is None:
            return Least(point, step.gap)
        if done:
            return Least(following, max(step.gap - (point.value - following.value), 0.0))
        point = following
    return Least(point, _slack(free * point.gradient, reach))


def steepness(point: Place, free: Vector) -> float:
    """The largest slope along a coordinate that is free."""
    return _largest(abs(free * point.gradient))


def _largest(slopes: Vector) -> float:
    return float(slopes.max()) if len(slopes) else 0.0


def _slack(slope: Vector, reach: float = REACH) -> float:
    """How much lower f can be by convexity alone."""
    return reach * float(abs(slope).sum())


def newton_step(
    point: Place, free: Vector, accuracy: float = _ACCURACY, enough: float = 0.0,
    reach: float = REACH,
) -> Step:  # fmt: skip
    """The Newton step on the free coordinates, by conjugate gradients.

    Args:
        point: where it starts.
        free: as in `minimise`.
        accuracy: of the residual relative to the slope, at most; it falls with the slope, so that
            the steps converge faster than linearly.
        enough: what the residual may leave of the gap, where less is no use.
        reach: as in `least_from`.
    """
    slope = free * point.gradient
    rest = enough / (2 * reach)
    direction, residual = _conjugate_gradients(point, free, slope, accuracy, rest)
    gap = _slack(slope, reach)
    if point.f.longest(direction) <= 1:
        decrement = max(float(direction @ (residual - slope)), 0.0)
        gap = min(gap, decrement + _slack(residual, reach))
    return Step(direction, residual, gap)


def swept(f: Posynomial, mask: Tensor, nearest: Callable[[Array], Array] | None = None) -> Tensor:
    """Sweeps: each family in turn goes where it would be best if all others stayed.

    Where what grows and what falls have one power it is exact, y = log(falls / grows) / 2q; where
    a family stands on both sides of a term, half of the way. `nearest` brings each back into a box,
    in which what falls alone, or grows alone, goes as far as it may.
    """
    y, free = np.zeros(f.size), mask.numpy()
    shared = {
        k.family for t in f.terms for k in t.factors
        if sum(other.family == k.family for other in t.factors) > 1
    }  # fmt: skip
    ends = np.cumsum([0, *f.lengths])
    families = []
    for family, start, end in zip(f.shapes, ends, ends[1:], strict=False):
        own = slice(start, end)
        families.append((family, own, (0.5 if family in shared else 1.0) * free[own]))
    origin = None if f.origin is None else f.origin.numpy()
    far, moves = REACH if nearest else 0.0, []
    with np.errstate(all="ignore"):  # what one side alone pulls goes to infinity
        for sweep in range(_SWEEPS):
            before = y.copy()
            for family, own, share in families:
                z = y if origin is None else y + origin
                y[own] += share * _step_to_best(_pulls(f, family, z), z[own], far)
                y = nearest(y) if nearest else y
            moves.append(y - before)
            if sweep == _SWEEPS - 2:
                y = y + _still_to_come(*moves[-2:])
                y = nearest(y) if nearest else y
    return torch.from_numpy(y)


def _pulls(f: Posynomial, family: str, z: Array) -> dict[float, Array]:
    """What multiplies exp(q·z) of one family, by power q."""
    if f.small is not None:
        return f.small.pulls(family, z)
    return {q: pull.numpy() for q, pull in f.pulls(family, torch.from_numpy(z)).items()}


def _step_to_best(pulls: dict[float, Array], z: Array, far: float) -> Array:
    """How far scales of logarithms z go if others stay; `far`, where one side alone pulls."""
    if len(pulls) == 2 and sum(pulls) == 0:
        power = max(pulls)
        step = (np.log(pulls[-power]) - np.log(pulls[power])) / (2 * power) - z
    else:
        sides, both = np.zeros((2, len(z))), np.zeros(len(z))
        for power, pull in pulls.items():
            found = pull * np.exp(np.minimum(power * z, STEEPEST))
            sides[int(power < 0)] += abs(power) * found
            both += power**2 * found
        up, down = sides  # the mean of |q| is both / (up + down)
        step = (np.log(down) - np.log(up)) * (up + down) / (2 * both)
    if np.isfinite(step.sum()):
        return step
    return np.nan_to_num(step, nan=0.0, posinf=far, neginf=-far)


def _still_to_come(before: Array, last: Array) -> Array:
    """Where moves fall by a constant share they lead to last · (ρ + ρ² + …), ρ = last / before."""
    size = float(before @ before)
    share = float(last @ before) / size if size else 0.0
    return last * (share / (1 - share)) if 0 < share < _SLOWEST else np.zeros_like(last)


def _conjugate_gradients(
    point: Place, free: Vector, slope: Vector, accuracy: float, rest: float
) -> tuple[Vector, Vector]:
    """d with ∇²f d ≈ −∇f on the free coordinates, and what is left, ∇f + ∇²f d."""
    inverse, held = point.inverse(free), None if bool(free.all()) else free
    direction, residual = 0.0 * slope, 1.0 * slope
    preconditioned = inverse(residual)
    search = -preconditioned
    size = product = float(residual @ preconditioned)
    aim = min(accuracy, math.sqrt(size / point.value)) ** 2 * size if size else 0.0
    for _ in range(_PRODUCTS):
        if product <= aim or (rest and float(abs(residual).sum()) <= rest):
            break
        along = point.hessian(search)
        if held is not None:
            along = along * held
        bend = float(search @ along)
        if bend <= 0:
            break
        step = product / bend
        direction += step * search
        residual += step * along
        preconditioned = inverse(residual)
        product, before = float(residual @ preconditioned), product
        search *= product / before
        search -= preconditioned
    return direction, residual


def further(
    point: Located,
    direction: Vector,
    steepest: Callable[[Located], float],
    nearest: Callable[[Vector], Vector] | None = None,
) -> Located | None:
    """The point a step further, halved until f falls as it should; None where rounding ends it.

    Where a fall would drown in the rounding of f, the slopes have to fall.

    Args:
        point: where the step starts.
        direction: of descent, of shape (size,).
        steepest: the largest slope at a point.
        nearest: what brings a point back to where it may be.
    """
    length = min(1.0, _LONGEST / max(float(abs(direction).max()), 1e-300))
    for _ in range(_HALVINGS):
        y = point.y + length * direction
        y = nearest(y) if nearest else y
        expected = float(point.gradient @ (y - point.y))
        following = cast("Located", point.f.at(y))  # the points of one cost are of one kind
        if expected > -_ROUNDING * point.value:
            return following if steepest(following) < steepest(point) else None
        if following.value <= point.value + 1e-4 * expected:
            return following
        length /= 2
    return None


def comes_to_rest(point: Point, free: Tensor) -> bool:
    """Whether Newton steps of what hardly weighs anything come to rest.

    On its way to zero or to infinity a scale goes on by about an e-fold in every step; one that is
    only small against the rest has a best value, at which the steps end.
    """
    y = point.y
    for _ in range(_RESTS):
        direction = newton_step(point, free).direction
        longest = float(direction.abs().max()) if direction.numel() else 0.0
        if longest <= _REST:
            return True
        point = point.f.at(y := y + min(1.0, _STRIDE / longest) * direction)
    return False

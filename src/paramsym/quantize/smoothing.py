"""The least expected error along scales, by smooth costs from above and posynomials from below.

For p = 8, 32, 128, … the maximum in each range gives way to a p-norm, and Newton steps go on from
the last minimum. The means of `expected_error` there make a posynomial h ≤ E; its minimum, less
what the Newton steps towards it leave (`geometry.newton`), bounds E at every equivalent point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from paramsym.geometry.newton import descended, newton_step
from paramsym.geometry.posynomial import Point
from paramsym.quantize.assembly import Assembly
from paramsym.quantize.expected_error import ExpectedError

NORMS = tuple(float(8 * 4**k) for k in range(9))  # p = 8 … 524288
TIE = 1e-7  # share of the error that the squared norm counts for, so that it decides among equals
_STEPS = 50  # Newton steps for each p
_BELOW = 10  # Newton steps towards the minimum of a posynomial
_STEEP = 1e-6  # of the cost: slopes below it are none here
_NEGLIGIBLE = 1e-9  # weight in a mean
_RIDGE = 1e-6  # of the cost: flatter directions are left to conjugate gradients, which end in time

Means = Sequence[Sequence[Tensor]]  # λ by side and part; they add up to one in each group


class Solved(NamedTuple):
    """y, E(y), a lower bound on E anywhere, the slope of h at y relative to E, and the stages."""

    y: Tensor
    value: float
    bound: float
    slope: Tensor
    rounds: int


class Smooth:
    """E with a p-norm for each maximum, or with means, relative to e^level, as a convex cost.

    Args:
        error: E.
        level: log of the error that counts as one.
        norm: p; None for means.
        means: λ, where norm is None.
        tie: what the squared norm of the parameters is multiplied by before it is added.
        assembly: makes the Hessian of E a matrix; without it, only products with it are formed.
    """

    def __init__(
        self,
        error: ExpectedError,
        level: float,
        norm: float | None = None,
        means: Means = (),
        tie: float = 0.0,
        assembly: Assembly | None = None,
    ) -> None:
        self.error, self.level, self.norm, self.means, self.tie = error, level, norm, means, tie
        self.assembly = assembly

    def at(self, y: Tensor) -> SmoothPoint:
        """The cost with its derivatives at y."""
        return SmoothPoint(self, y)

    def longest(self, direction: Tensor) -> float:
        """How far an exponent moves at most: two weights, and a sensitivity against two."""
        return 4 * max(float(e.abs().max()) for e in self.error.exponents(direction))


class SmoothPoint:
    """The cost Σ_G exp(2R_G + B_G) with its derivatives at one y.

    R is the log of the range, of one side A or of two, R = log(e^A + e^A′); B = log Σ F. λ are the
    derivatives of A and π those of B, up to a factor −2, by the exponents of the entries; σ is the
    share of a side in the range.
    """

    def __init__(self, f: Smooth, y: Tensor) -> None:
        self.f, self.y = f, y
        error = f.error
        exponents = error.exponents(y)
        pairs = [*zip(error.parts, exponents, strict=True)]
        logs, self.means = [], []
        for k in range(len(error.parts[0].sides)):
            sizes = [part.sides[k] + e for part, e in pairs]
            if f.norm is None:
                means = f.means[k]
                logs.append(error.summed([m * s for m, s in zip(means, sizes, strict=True)]))
            else:
                logs.append(error.norm(sizes, f.norm))
                tops = error.spread(logs[-1])
                means = [(f.norm * (s - t)).exp() for s, t in zip(sizes, tops, strict=True)]
            self.means.append(means)
        ranges = torch.logsumexp(torch.stack(logs), 0)
        self.shares = [(side - ranges).exp() for side in logs]
        weights = [part.weight - 2 * e for part, e in pairs]
        total = error.norm(weights, 1.0)
        self.pi = [(w - t).exp() for w, t in zip(weights, error.spread(total), strict=True)]
        self.size = (2 * ranges + total + error.constant - f.level).exp()
        self.sizes = error.spread(self.size)
        shares = [error.spread(share) for share in self.shares]
        self.rho = [  # Σ σ λ, the derivative of R
            sum((s[k] * m[k] for s, m in zip(shares, self.means, strict=True)), torch.zeros(()))
            for k in range(len(self.pi))
        ]
        self.least: Point | None = error.scales.at(y) if f.tie else None

    @property
    def value(self) -> float:
        """The cost."""
        extra = self.f.tie * self.least.value if self.least else 0.0
        return float(self.size.sum()) + extra

    @property
    def gradient(self) -> Tensor:
        """∇f(y), of shape (size,)."""
        entries = zip(self.sizes, self.rho, self.pi, strict=True)
        made = self.f.error.collected([h * (2 * r - 2 * p) for h, r, p in entries])
        return made + self.f.tie * self.least.gradient if self.least else made

    @property
    def curvature(self) -> Tensor:
        """The diagonal of the Hessian without its terms of rank one, of shape (size,)."""
        norm = self.f.norm or 1.0
        entries = zip(self.sizes, self.rho, self.pi, strict=True)
        made = self.f.error.collected([h * (2 * norm * r + 4 * p) for h, r, p in entries], 2)
        return made + self.f.tie * self.least.curvature if self.least else made

    @cached_property
    def matrix(self) -> Tensor | None:
        """The Hessian without that of the squared norm, of shape (size, size), where it is small.

        With a, r and q the sums of c by λ, ρ and π in a group, ∇R = r and ∇B = −2q,

            ∇²R = Σ_sides σ (p Σ λ c cᵀ + (1 − p) a aᵀ) − r rᵀ,    ∇²B = 4 (Σ π c cᵀ − q qᵀ).
        """
        assembly, norm = self.f.assembly, self.f.norm or 0.0
        if assembly is None:
            return None
        rows = [assembly.by_group(means) for means in self.means]
        shares = [share[:, None] for share in self.shares]
        r = sum((s * a for s, a in zip(shares, rows, strict=True)), torch.zeros(()))
        q, h = assembly.by_group(self.pi), self.size[:, None]
        entries = zip(self.sizes, self.rho, self.pi, strict=True)
        made = assembly.by_pair([h * (2 * norm * r + 4 * p) for h, r, p in entries])
        cross = r.mT @ (h * (2 * r - 8 * q))  # of one group 4 (r − q)(r − q)ᵀ − 2rrᵀ − 4qqᵀ
        made += (cross + cross.mT) / 2
        for s, a in zip(shares, rows, strict=True):
            made += a.mT @ (2 * (1 - norm) * h * s * a)
        return made

    def inverse(self, free: Tensor) -> Callable[[Tensor], Tensor]:
        """That of the matrix where there is one, or of the curvature, coordinate by coordinate."""
        curvature = torch.where(self.curvature > 0, self.curvature, torch.ones_like(free))
        if self.matrix is not None:
            held = free[:, None] * self.matrix * free
            extra = self.f.tie * self.least.curvature if self.least else 0.0
            ridge = 1e-4 * self.f.tie if self.least else _RIDGE
            held.diagonal().add_(extra + (1 - free) * curvature + ridge * float(self.size.sum()))
            factor, failed = torch.linalg.cholesky_ex(held)
            if not int(failed):
                return lambda v: torch.cholesky_solve(v[:, None], factor)[:, 0]
        return lambda v: v / curvature

    def hessian(self, v: Tensor) -> Tensor:
        """∇²f(y) v, of shape (size,)."""
        made = self.product(v) if self.matrix is None else self.matrix @ v
        return made + self.f.tie * self.least.hessian(v) if self.least else made

    def product(self, v: Tensor) -> Tensor:
        """The Hessian without that of the squared norm, times v, of shape (size,).

        With D the derivative along v, D exp φ (2ρ − 2π) = exp φ ((2ρ − 2π) Dφ + 2Dρ − 2Dπ).
        """
        error, norm = self.f.error, self.f.norm or 0.0
        moved = error.exponents(v)
        along = [error.summed([m * e for m, e in zip(means, moved, strict=True)])
                 for means in self.means]  # fmt: skip
        across = error.summed([p * e for p, e in zip(self.pi, moved, strict=True)])
        mean = sum((s * a for s, a in zip(self.shares, along, strict=True)), torch.zeros(()))
        slopes, across_, mean_ = map(error.spread, (2 * mean - 2 * across, across, mean))
        entries = [
            h * ((2 * r - 2 * p) * slope + 4 * p * (e - b) - 2 * r * m)
            for h, r, p, slope, e, b, m in zip(
                self.sizes, self.rho, self.pi, slopes, moved, across_, mean_, strict=True
            )
        ]
        for share, side, means in zip(self.shares, along, self.means, strict=True):
            weight, own = error.spread(2 * share * self.size), error.spread(side)
            for k, (w, a, m) in enumerate(zip(weight, own, means, strict=True)):
                entries[k] = entries[k] + w * m * (norm * (moved[k] - a) + a)
        return error.collected(entries)


def least_error(
    error: ExpectedError,
    free: Tensor,
    starts: Sequence[Tensor],
    tolerance: float,
    progress: Callable[[str], None] | None,
) -> Solved:
    """The y of least expected error, of shape (size,), and how much lower it can be.

    Args:
        error: E along the scales.
        free: 1 for coordinates that may move, 0 for those that stay, of shape (size,).
        starts: points to compare; the first is where nothing has moved.
        tolerance: the gap relative to E at which to stop.
        progress: called with one line per p.
    """
    values = [error.log(start) for start in starts]
    best = min(range(len(starts)), key=values.__getitem__)
    y, value, bound, slope = starts[best], values[best], -math.inf, torch.zeros_like(free)
    point, rounds = y, 0
    assembly = Assembly(error) if Assembly.fits(error) else None
    for norm in NORMS:
        rounds += 1
        level = error.log(point)
        tie = TIE / max(error.scales.at(point).value, 1e-300)
        smooth = Smooth(error, level, norm, tie=tie, assembly=assembly)
        found = descended(smooth.at(point), free, 1e-6, _STEPS, _STEEP)
        point = found.y
        if error.log(point) < value:
            y, value = point, error.log(point)
        means = _clear(error, smooth.at(point).means)
        below = Smooth(error, level, means=means, assembly=assembly)
        here = below.at(point)
        low = descended(here, free, tolerance / 10, _BELOW, _STEEP)
        least = low.value - newton_step(low, free, accuracy=1e-8).gap
        if least > 0 and math.log(least) + level > bound:
            bound, slope = math.log(least) + level, free * here.gradient
        if progress:
            progress(f"p = {norm:.0f}: {math.exp(value):.9g}, bound {math.exp(bound):.9g}")
        if math.exp(bound - value) >= 1 - tolerance:
            break
    return Solved(y, math.exp(value), math.exp(bound), slope, rounds)


def _clear(error: ExpectedError, means: Means) -> Means:
    """Means without weights next to zero, which would tie a scale that E does not depend on."""
    cleared = []
    for side in means:
        kept = [m * (m > _NEGLIGIBLE) for m in side]
        totals = error.spread(error.summed(kept))
        cleared.append([m / total for m, total in zip(kept, totals, strict=True)])
    return cleared

"""The least norm among scales whose ranges stay within given ones: a barrier method.

With e^τ the range that no tensor may exceed and q = 1/(1 + e^{−x}) the share of its positive part,
every weight u → v of a tensor leaves s = τ + log q − log|w| − y_v + y_u ≥ 0, or with 1 − q where it
is negative: concave in the scales y and the odds x. Σ|w|² e^{2⟨c, y⟩} − μ Σ log s is convex, and is
minimised by Newton steps with conjugate gradients for falling μ. Only weights that are within a
reach of their threshold are looked at; before any other could pass its own, one pass over all
weights chooses anew.

The gap. At any point and for any λ ≥ 0 let ∇f = Σ λ ∇s + r. Because f is convex and s concave,
every point z that keeps the ranges has f(z) ≥ f(y) − Σ λ s − ⟨r, y − z⟩ ≥ f(y) − Σ λ s −
‖r‖₁ ‖y − z‖_∞, whichever weights were looked at.

Source: Boyd and Vandenberghe, Convex Optimization (2004), chapter 11.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor

from paramsym.geometry.posynomial import Point, Posynomial
from paramsym.quantize.incidence import GROUND, Edges, Incidence
from paramsym.quantize.passes import edges_above, united

REACH = 10.0  # e-folds: the gap counts no point beyond this
_NEAR = 0.5  # e-folds below its threshold from which a weight is looked at
_SIGHT = 1.5  # e-folds below it from which it is no longer
# a weight moves by two scales and by the logarithm of a share, which moves no more than its odds
_STRIDE = _NEAR / 3
_FARTHEST = 1.5  # e-folds in one step
_START = 0.1  # of f: the first Σ λ s
_FALL = 6.0  # by this μ falls after a whole step that leaves ‖r‖₁ below Σ λ s
_ROUGH, _ACCURACY = 0.1, 1e-2  # of a Newton step, relative: after one that was cut short, or not
_PRODUCTS = 200  # with the Hessian, for one step
_WORK = 2e9  # numbers that all products together may read
_FEWEST, _MOST = 30, 3000  # products


@dataclass(frozen=True)
class Norm:
    """Scales y, the norm f there, and how much lower it can be."""

    y: np.ndarray
    value: float
    gap: float


class LeastNorm:
    """Σ|w|² along the scales of an incidence under given ranges.

    Args:
        incidence: the weights as edges.
        cost: Σ|w|² as a function of the logarithms of the scales of its families, in their order.
        free: 1 for the scales that may move, 0 for the others, in the order of `cost`.
        parted: the numbers of the tensors that have a threshold for each sign.
        top: τ, the logarithm of the range that no tensor may exceed.
    """

    def __init__(
        self, incidence: Incidence, cost: Posynomial, free: Tensor, parted: np.ndarray, top: float
    ) -> None:
        self.incidence, self.cost, self.top, self.parted = incidence, cost, top, parted
        tensors = len(incidence.tensors)
        self.column = np.full(tensors, -1)
        self.column[parted] = np.arange(len(parted))
        self.factors = np.concatenate(
            [np.full(math.prod(f.shape), f.factor) for f in incidence.families.values()]
        )
        self.mask = np.r_[0.0, free.numpy(), np.ones(len(parted))]

    def run(self, y: np.ndarray, x: np.ndarray, tolerance: float) -> Norm:
        """From scales and odds that keep all ranges strictly towards those of least norm.

        Args:
            y, x: where to start, (nodes,) and (parted tensors,).
            tolerance: the gap relative to the norm at which to stop. Before that it stops where it
                would read the weights too often.
        """
        size = sum(term.mass.numel() for term in self.cost.terms)
        products = min(max(_FEWEST, int(_WORK / max(size, 1))), _MOST)
        place = self.place(np.r_[y, x], 1.0)
        mu = _START * place.point.value / max(len(place.slack), 1)
        place.multipliers *= mu
        gap, origin, length = place.gap(), place.at, 0.0
        while products > 0 and gap > tolerance * place.point.value:
            held = len(place.slack) + REACH * max(len(x), 1)  # Σ λ s / μ, and what centres the odds
            least = tolerance * place.point.value / (2 * held)
            step, used = place.newton(mu, _ROUGH if length < 0.9 else _ACCURACY)
            products -= used
            edges = place.edges
            length, place = place.moved(step, mu, origin)
            if not length:
                break  # what is left is rounding
            if place.edges is not edges:
                origin = place.at
            if length >= 0.9 and place.rest <= float(place.multipliers @ place.slack):
                mu = max(mu / _FALL, least)
            gap = min(gap, place.gap())
        y = place.at[: self.incidence.nodes].copy()
        return Norm(y, place.point.value, min(gap, place.point.value))  # a norm is not negative

    def place(self, at: np.ndarray, mu: float, before: _Place | None = None) -> _Place:
        """A point with the weights that come within reach of their thresholds there.

        Those of the place before it stay until they are out of sight, lest they come and go.
        """
        edges = self.near(at)
        if before is not None:
            slack = _Place(self, before.edges, at, mu).slack
            old = before.edges.where(slack < _SIGHT)
            edges = united(edges, old, self.incidence.nodes)
        return _Place(self, edges, at, mu)

    def near(self, at: np.ndarray) -> Edges:
        """The weights that come within reach of their thresholds."""
        least = np.exp(self.thresholds(at[self.incidence.nodes :]) - _NEAR)
        return edges_above(self.incidence, at[: self.incidence.nodes], least)[1]

    def thresholds(self, x: np.ndarray) -> np.ndarray:
        """τ + log q and τ + log(1 − q) by slot, or τ."""
        made = np.full((len(self.column), 2), self.top)
        made[self.parted, 0] -= np.logaddexp(0, -x)
        made[self.parted, 1] -= np.logaddexp(0, x)
        return made.ravel()

    def logs(self, at: np.ndarray) -> Tensor:
        """What `cost` reads: the logarithms of the scales."""
        return torch.from_numpy(self.factors * at[GROUND + 1 : self.incidence.nodes])


class _Place:
    """The cost and the barrier at one point (y, x), with their derivatives."""

    def __init__(self, problem: LeastNorm, edges: Edges, at: np.ndarray, mu: float) -> None:
        self.problem, self.edges, self.at = problem, edges, at
        self.point: Point = problem.cost.at(problem.logs(at))
        nodes = problem.incidence.nodes
        x = at[nodes:]
        self.slack = (
            problem.thresholds(x)[edges.slot] - edges.size - at[edges.raising] + at[edges.lowering]
        )
        self.multipliers = mu / self.slack
        q = expit(x)
        self.odds = np.r_[np.zeros(nodes), q - 0.5]
        column = problem.column[edges.slot // 2]
        self.has = column >= 0
        self.column = nodes + np.maximum(column, 0) if len(x) else np.zeros(len(column), np.int64)
        share = np.where(edges.slot % 2 == 0, 1.0, 0.0)
        odds = q[np.maximum(column, 0)] if len(x) else np.zeros(len(column))
        self.rise = np.where(self.has, share - odds, 0.0)  # ∂s/∂x
        self.bend = np.where(self.has, odds * (1 - odds), 0.0)  # −∂²s/∂x²

    def _spread(self, weights: np.ndarray) -> np.ndarray:
        """Σ weights · ∇s."""
        count = len(self.at)
        made = np.bincount(self.edges.lowering, weights, count).astype(np.float64)
        made -= np.bincount(self.edges.raising, weights, count)
        return made + np.bincount(self.column, weights * self.rise, count)

    def _embedded(self, inner: np.ndarray) -> np.ndarray:
        made = np.zeros(len(self.at))
        made[GROUND + 1 : self.problem.incidence.nodes] = inner
        return made

    @property
    def inside(self) -> bool:
        """Whether every weight is below its threshold."""
        return bool((self.slack > 0).all())

    def value(self, mu: float) -> float:
        """f/μ − Σ log s; ∞ where a weight passes its threshold."""
        if not self.inside:
            return math.inf
        x = self.at[self.problem.incidence.nodes :]
        centre = float(np.logaddexp(0, x).sum() + np.logaddexp(0, -x).sum())
        return self.point.value / mu - float(np.log(self.slack).sum()) + centre

    def steepness(self, mu: float) -> np.ndarray:
        """μ times the slope of `value`."""
        return self.slope(mu / self.slack) + 2 * mu * self.odds

    def slope(self, multipliers: np.ndarray) -> np.ndarray:
        """∇f − Σ λ ∇s along what may move."""
        own = self._embedded(self.problem.factors * self.point.gradient.numpy())
        return self.problem.mask * (own - self._spread(multipliers))

    @property
    def rest(self) -> float:
        """‖∇f − Σ λ ∇s‖₁."""
        return float(np.abs(self.slope(self.multipliers)).sum())

    def gap(self) -> float:
        """How much lower the norm can be among the points that keep the ranges."""
        return float(self.multipliers @ self.slack) + REACH * self.rest

    def newton(self, mu: float, accuracy: float) -> tuple[np.ndarray, int]:
        """A primal and dual Newton step towards λ s = μ, and how many products it took."""
        problem, edges, count = self.problem, self.edges, len(self.at)
        inner = slice(GROUND + 1, problem.incidence.nodes)
        stiff = self.multipliers / self.slack
        curved = np.bincount(self.column, self.bend * self.multipliers, count).astype(np.float64)
        curved[problem.incidence.nodes :] += (
            2 * mu * (0.25 - self.odds**2)[problem.incidence.nodes :]
        )
        own = problem.factors**2 * self.point.curvature.numpy()
        diagonal = self._embedded(own) + curved
        for ends, weights in ((edges.lowering, stiff), (edges.raising, stiff),
                              (self.column, stiff * self.rise**2)):  # fmt: skip
            diagonal += np.bincount(ends, weights, count)
        diagonal[diagonal <= 0] = 1.0

        def hessian(v: np.ndarray) -> np.ndarray:
            made = self._spread(stiff * self.along(v)) + curved * v
            moved = self.point.hessian(torch.from_numpy(problem.factors * v[inner]))
            made[inner] += problem.factors * moved.numpy()
            return problem.mask * made

        return _conjugate_gradients(hessian, self.steepness(mu), diagonal, accuracy)

    def along(self, v: np.ndarray) -> np.ndarray:
        """How the slacks change along a direction, by their slopes."""
        return v[self.edges.lowering] - v[self.edges.raising] + self.rise * v[self.column]

    def moved(self, step: np.ndarray, mu: float, origin: np.ndarray) -> tuple[float, _Place]:
        """How far the step leads to where the value falls and all ranges are kept."""
        here, slope = self.value(mu), float(self.steepness(mu) @ step) / mu
        closing = self.along(step) / self.slack
        change = mu / self.slack - self.multipliers * (1 + closing)
        farthest = _FARTHEST / max(float(np.abs(step).max()), 1e-300)
        length = min(1.0, farthest, -0.95 / min(float(closing.min(initial=0.0)), -1e-300))
        while length > 1e-8:
            there = _Place(self.problem, self.edges, self.at + length * step, mu)
            if there.value(mu) <= here + 0.1 * length * slope + 1e-10 * abs(here):
                if np.abs(there.at - origin).max() > _STRIDE:
                    anew = self.problem.place(there.at, mu, self)  # others may have come near
                    if anew.inside:
                        return length, anew
                else:
                    falling = change < 0
                    most = (self.multipliers[falling] / -change[falling]).min(initial=math.inf)
                    there.multipliers = self.multipliers + min(length, 0.99 * most) * change
                    return length, there
            length /= 2
        return 0.0, self


def _conjugate_gradients(
    hessian: Callable[[np.ndarray], np.ndarray],
    slope: np.ndarray,
    diagonal: np.ndarray,
    accuracy: float,
) -> tuple[np.ndarray, int]:
    """d with H d ≈ −slope, and the number of products with H."""
    step, residual = np.zeros_like(slope), -slope
    search = preconditioned = residual / diagonal
    first = product = float(residual @ preconditioned)
    used = 0
    while product > accuracy**2 * first and used < _PRODUCTS:
        along = hessian(search)
        used += 1
        length = product / float(search @ along)
        step, residual = step + length * search, residual - length * along
        preconditioned = residual / diagonal
        product, before = float(residual @ preconditioned), product
        search = preconditioned + product / before * search
    return step, max(used, 1)

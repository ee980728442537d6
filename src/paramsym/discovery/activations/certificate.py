"""The residual of a relation on fresh points, and the coefficients that make it least.

At each point both sides are compared, and the difference is divided by the numbers that enter it,

    |f(αz + β)| + |a f(z)| + |bz| + |c| + m + κ(z),

where m is the median of |f|, and κ is what f changes by when its arguments do by their own size,
|z f'| on both sides: a point where f is steep tells no more digits than its arguments have, and
next to a jump it tells nothing. What the roundings of f explain is taken off the difference. So the
residual of an exact relation is a few roundings of float64, wherever f is evaluated.

What holds on random points is judged once more on a fine grid, so that a feature of f far out is
not missed because it is short.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .function import NEAR, ScalarFunction
from .grid import REACH, stratified
from .numbers import short
from .relation import Relation


@dataclass(frozen=True)
class Certificate:
    """What judges relations of one function.

    `tolerance` is the largest residual of a relation that is accepted; fits and judgements draw
    different points. `places` are jumps of f, next to which relations are tried as well: a short
    shift of a step function moves few points across a step. `bends` are points where f bends, which
    fits look at besides: where f is straight there is nothing to tell a from b and c.
    """

    f: ScalarFunction
    generator: torch.Generator
    tolerance: float
    points: int = 2000
    places: tuple[float, ...] = ()
    bends: tuple[float, ...] = ()

    def residual(self, relation: Relation) -> float:
        """The largest relative difference of both sides; infinite where the domain is not kept.

        A relation that holds on random points is judged on the grid as well.
        """
        found = self._largest(relation, self._trials(relation))
        return found if found > self.tolerance else max(found, self.on_the_grid(relation))

    def on_the_grid(self, relation: Relation) -> float:
        """The residual at points 0.01 apart, and where they are mapped 0.01 apart, and far out."""
        z = stratified(self.generator)
        far = self.f.sample(4000, self.generator)[-1000:]
        z = torch.cat([z, (z - relation.beta) / relation.alpha, far])
        return self._largest(relation, z[(z > self.f.low) & (z < self.f.high)])

    def _largest(self, relation: Relation, z: Tensor) -> float:
        f, moved = self.f, relation.alpha * z + relation.beta
        left, right = f(moved), f(z)
        sides = relation.a * right + relation.b * z + relation.c
        near = (z.abs() < NEAR) & (moved.abs() < NEAR)
        if bool((near & (left.isnan() != right.isnan())).any()):
            return math.inf  # the domain is not preserved
        size = left.abs() + (relation.a * right).abs() + (relation.b * z).abs() + abs(relation.c)
        size = size + f.typical + _steepness(f, moved, left)
        size = size + abs(relation.a) * _steepness(f, z, right)
        kept = left.isfinite() & right.isfinite() & sides.isfinite()
        if not bool(kept[(z.abs() < NEAR) & (moved.abs() < NEAR + 4 * REACH)].any()):
            return math.inf  # a map that takes every point far away is no evidence
        size = size.clamp_min(1e-300)
        error = ((left - sides).abs() / size - f.epsilon)[kept]
        return float(error.nan_to_num(0.0).max().clamp_min(0))

    def _trials(self, relation: Relation) -> Tensor:
        """Points of the domain, and points next to jumps and to what is mapped to jumps."""
        z = self.f.sample(self.points, self.generator)
        if not self.places:
            return z
        places = torch.tensor(self.places, dtype=torch.float64)
        away = torch.rand(2, 24, len(places), generator=self.generator, dtype=torch.float64)
        around = (places + 10 ** (-6 * away[0]) * (away[1] - 0.5).sign()).flatten()
        return torch.cat([z, around, (around - relation.beta) / relation.alpha])

    def fitted(self, alpha: float, beta: float) -> Relation:
        """The relation over z ↦ αz + β with the best a, b, c, in short numbers where they do."""
        z = self.f.sample(600, self.generator)
        if self.bends:
            bends = torch.tensor(self.bends, dtype=torch.float64)
            z = torch.cat([z, bends, (bends - beta) / alpha])
        moved = alpha * z + beta
        left, right = self.f(moved), self.f(z)
        kept = left.isfinite() & right.isfinite()
        if int(kept.sum()) < 20:
            return Relation(alpha, beta, math.nan)
        z, left, right = z[kept], left[kept], right[kept]
        columns = torch.stack([right, z, torch.ones_like(z)], 1)
        a, b, c = _weighted_solution(columns, left, self.f.typical)
        plain = Relation(alpha, beta, a, b, c)
        plain = plain.measured(self.residual(plain))
        closeness = max(1e-7, 4 * self.tolerance)
        b, c = (0.0 if abs(x) <= closeness * self.f.typical else x for x in (b, c))
        values = (short(a, closeness), self.short(b, closeness), self.short(c, closeness))
        for neat in (Relation(alpha, beta, *values), Relation(alpha, beta, a, b, c)):
            neat = neat.measured(self.residual(neat))
            if neat.residual <= max(self.tolerance / 1e2, 10 * plain.residual):
                return neat
        return plain

    def short(self, value: float, closeness: float) -> float:
        """A number with the unit of f that is short as the user's function has it."""
        unit = self.f.unit
        return short(value * unit, closeness * min(1.0, self.f.typical * unit)) / unit

    def best(self, alphas: list[float], betas: list[float]) -> Relation:
        """The relation of least residual among maps, short numbers first."""
        found = [self.fitted(a, b) for a, b in zip(alphas, betas, strict=True)]
        for relation in found:
            if relation.residual <= self.tolerance / 1e2:
                return relation
        return min(found, key=lambda relation: relation.residual)

    def accepts(self, relation: Relation) -> bool:
        """Whether a relation holds, and f(z) occurs in it."""
        return relation.residual <= self.tolerance and abs(relation.a) > 1e-9

    def with_points(self, points: int) -> Certificate:
        """The same with another number of points."""
        return replace(self, points=points)


def _steepness(f: ScalarFunction, z: Tensor, value: Tensor) -> Tensor:
    """|z f'(z)| by a difference, which is large next to a jump, as it should be."""
    step = max(1e-7, 16 * f.epsilon)
    change = (f(z * (1 + step)) - value).abs() / step
    # the difference itself carries roundings of f
    noise = 4 * f.epsilon * value.abs() / step
    return (change - noise).clamp_min(0).nan_to_num(math.inf)


def _weighted_solution(columns: Tensor, target: Tensor, floor: float) -> list[float]:
    """Least squares in which each equation counts relative to its numbers."""
    weight = 1 / (columns.abs().sum(1) + target.abs() + floor + 1e-300)
    columns, target = columns * weight[:, None], target * weight
    lengths = columns.norm(dim=0).clamp_min(1e-300)
    solution = torch.linalg.lstsq(columns / lengths, target[:, None], driver="gelsd").solution
    return (solution[:, 0] / lengths).tolist()

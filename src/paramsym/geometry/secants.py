"""Steps over all families together, foreseen from what the last moves did to the slopes.

A point near x is exp(s) x, s the logarithms of scales, the symmetric logarithms of bases and the
offsets of shifts. Let s_j be the last moves, and y_j by how much the slopes g changed along them.
In their span, to second order,

    f(exp(Σ α_j s_j) x) = f(x) + Σ α_j ⟨s_j, g⟩ + ½ Σ α_i α_j ⟨s_i, y_j⟩,

which is least at one solve of as many equations as there are moves: no metric has to be chosen. Of
a quadratic f it makes conjugate gradients, with turns of the families as the preconditioner.

Source: Riseth, "Objective acceleration for unconstrained optimization", Numer. Linear Algebra Appl.
26 (2019).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from paramsym.structure.element import GroupElement, Slide

_KEPT = 5  # moves
_DEPENDENT = 1e-8  # of the curvature of one move: combinations below it are rounding
_LONGEST = 4.0  # e-folds of one step

Coordinates = Mapping[str, Tensor]


class Secants:
    """The last moves between points at which the slopes were taken."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Coordinates, Coordinates]] = []
        self.since: Coordinates = {}  # the move from the last of these points
        self.slope: Coordinates = {}

    def follow(self, step: GroupElement) -> None:
        """Take note of a step."""
        self.since = _plus(self.since, coordinates(step))

    def meet(self, slope: Coordinates) -> None:
        """Take note of the slopes where the steps have led."""
        if self.slope:
            self.pairs.append((self.since, _plus(slope, self.slope, -1.0)))
            del self.pairs[:-_KEPT]
        self.since, self.slope = {}, slope

    def forget(self) -> None:
        """The moves so far foresee nothing from here, where the slopes were taken last."""
        self.pairs, self.since = [], {}

    def step(self) -> dict[str, Tensor]:
        """The step to the least cost in the span of the moves along which it is convex; nothing
        where it is along none."""
        sizes = [_dot(move, change) for move, change in self.pairs]
        kept = [
            ({n: x / math.sqrt(size) for n, x in move.items() if n in self.slope},
             {n: x / math.sqrt(size) for n, x in change.items()})
            for (move, change), size in zip(self.pairs, sizes, strict=True) if size > 0
        ]  # fmt: skip
        if not kept:
            return {}
        slopes = _exact([_dot(move, self.slope) for move, _ in kept])
        hessian = _exact([[_dot(move, change) for _, change in kept] for move, _ in kept])
        values, vectors = torch.linalg.eigh((hessian + hessian.mT) / 2)
        vectors = vectors[:, values > _DEPENDENT] / values[values > _DEPENDENT].sqrt()
        step: Coordinates = {}
        for share, (move, _) in zip((vectors @ (vectors.mT @ slopes)).tolist(), kept, strict=True):
            step = _plus(step, move, -share)
        longest = max(float(x.abs().max()) for x in step.values() if x.numel())
        return {n: min(1.0, _LONGEST / max(longest, 1e-300)) * x for n, x in step.items()}


def coordinates(step: GroupElement) -> dict[str, Tensor]:
    """The logarithms of scales and bases, by space, and the offsets of shifts."""
    found: dict[str, Tensor] = {}
    for part in step.parts:
        if isinstance(part, Slide):
            found[part.shift] = part.offset
            continue
        for name, value in part.items():
            if value.diagonal is not None:
                found[name] = value.diagonal.abs().log()
            elif value.matrix is not None:
                values, vectors = torch.linalg.eigh(value.matrix.mT @ value.matrix)
                logs = values.clamp(min=1e-300).log() / 2
                found[name] = vectors * logs[..., None, :] @ vectors.mT
    return found


def _plus(one: Coordinates, other: Coordinates, share: float = 1.0) -> dict[str, Tensor]:
    more = {n: one[n] + share * x if n in one else share * x for n, x in other.items()}
    return {**one, **more}


def _exact(numbers: list[float] | list[list[float]]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def _dot(one: Coordinates, other: Coordinates) -> float:
    return sum(float((x * other[n]).sum()) for n, x in one.items() if n in other)

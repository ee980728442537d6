"""Paths between two networks in parameter space, and the barrier of the loss along them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from paramsym.merging.states import State, combined, require_alike

KINDS = ("linear", "spherical")
_STATISTICS = ("running_mean", "running_var")  # of batch norms; averages of data, not weights
_ANTIPODAL = 1e-6  # |u + v| of unit vectors below which no great circle is determined by rounding

Evaluate: TypeAlias = Callable[[State], float]


def interpolate(a: State, b: State, t: float, kind: str = "linear") -> dict[str, Tensor]:
    """The point at time t of a path from one set of parameters to another.

        linear      (1 − t) a + t b
        spherical   direction on the great circle of a/|a| and b/|b|, at t times their angle;
                    norm (1 − t)|a| + t|b|

    Spherical paths are taken tensor by tensor. Where the angle is zero, or a tensor is, they are
    linear; where it is π, no great circle is distinguished and they are linear as well, through
    zero. Running means and variances of batch norms are averaged linearly in both kinds.

    Args:
        a, b: complete state dicts of one architecture. Integers (such as `num_batches_tracked`)
            come from `a`; names that are one tensor in both are one in the result; half precision
            is computed in float32.
        t: between 0 and 1.
        kind: "linear" or "spherical".

    Returns:
        A new state dict, which shares nothing with those given.

    Raises:
        ValueError: another kind, t outside of [0, 1], or state dicts that differ in names, shapes
            or dtypes.

    Source: Shoemake, "Animating rotation with quaternion curves" (1985), for the spherical path.
    """
    require_kind("interpolate", kind)
    if not 0 <= t <= 1:
        raise ValueError(
            f"interpolate(t={t}): a time between 0 (the first) and 1 (the second) was expected. "
            "Extrapolate by adding differences of state dicts, if that is meant."
        )
    require_alike("interpolate", (a, b))
    return mixed((a, b), (1 - t, t), kind)


def require_kind(caller: str, kind: str) -> None:
    """Refuse a kind of path that is none."""
    if kind not in KINDS:
        raise ValueError(
            f"{caller}(kind={kind!r}): it is none of {[*KINDS]}, one of which was expected. Pass "
            "kind='linear' for weighted means."
        )


def mixed(states: Sequence[State], shares: Sequence[float], kind: str = "linear") -> dict:
    """The weighted mean of state dicts, or the point on the spherical path between two.

    Args:
        states: alike; two, if the kind is spherical.
        shares: of each, with sum 1.
        kind: as for `interpolate`.
    """

    def rule(name: str, tensors: list[Tensor]) -> Tensor:
        present = [(x, share) for x, share in zip(tensors, shares, strict=True) if share]
        if len(present) == 1 and present[0][1] == 1:
            return present[0][0].clone()
        if kind == "spherical" and not name.endswith(_STATISTICS):
            return _spherical(tensors[0], tensors[1], shares[1])
        return sum((share * x for x, share in present[1:]), present[0][1] * present[0][0])

    return combined(states, rule)


def _spherical(a: Tensor, b: Tensor, t: float) -> Tensor:
    if a.is_complex():
        return torch.view_as_complex(_spherical(torch.view_as_real(a), torch.view_as_real(b), t))
    x, y = a.double(), b.double()
    sizes = float(x.norm()), float(y.norm())
    if not all(sizes):
        return (1 - t) * a + t * b
    x, y = x / sizes[0], y / sizes[1]
    apart, together = float((x - y).norm()), float((x + y).norm())
    if apart == 0 or together < _ANTIPODAL:
        return (1 - t) * a + t * b
    angle = 2 * math.atan2(apart, together)  # Kahan: exact to the last bits at every angle
    direction = (math.sin((1 - t) * angle) * x + math.sin(t * angle) * y) / math.sin(angle)
    return (((1 - t) * sizes[0] + t * sizes[1]) * direction).to(a.dtype)


@dataclass(frozen=True)
class Barrier:
    """The loss along a path, and how far it rises above the chord.

    Attributes:
        times: of the points, from 0 to 1.
        losses: at these times.
        barrier: max_t [L(θ_t) − (1 − t) L(a) − t L(b)], never negative; in units of the loss.
    """

    times: tuple[float, ...]
    losses: tuple[float, ...]
    barrier: float

    @property
    def at(self) -> float:
        """The first time at which the barrier is reached."""
        return self.times[self.rises.index(self.barrier)]

    @property
    def rises(self) -> tuple[float, ...]:
        """L(θ_t) − (1 − t) L(a) − t L(b) at each time; zero at the ends."""
        return _rises(self.times, self.losses)


def _rises(times: Sequence[float], losses: Sequence[float]) -> tuple[float, ...]:
    first, last = losses[0], losses[-1]
    inner = [y - (1 - t) * first - t * last for t, y in zip(times, losses, strict=True)]
    return (0.0, *inner[1:-1], 0.0)


def loss_barrier(
    evaluate: Evaluate, a: State, b: State, points: int = 11, kind: str = "linear"
) -> Barrier:
    """The loss barrier between two sets of parameters,

        max_t [L(θ_t) − (1 − t) L(a) − t L(b)],

    over equally spaced times of a path. Two networks are linearly mode connected where it vanishes;
    the maximum over finitely many points is a lower bound of that over all.

    Args:
        evaluate: from a complete state dict to a loss; `paramsym.merging.evaluation.loss_of` makes
            one of a model and data.
        a, b: state dicts as for `interpolate`; align b to a first.
        points: how many times, with both ends; at least three.
        kind: the path, as for `interpolate`.

    Returns:
        A `Barrier`.

    Raises:
        ValueError: fewer than three points, a loss that is no number or infinite at an end, or as
            `interpolate`.

    Source: Frankle, Dziugaite, Roy and Carbin, "Linear mode connectivity and the lottery ticket
    hypothesis" (2020); with the chord of unequal ends, Entezari, Sedghi, Saukh and Neyshabur, "The
    role of permutation invariance in linear mode connectivity" (2021), definition 2.
    """
    require_kind("loss_barrier", kind)
    if points < 3:
        raise ValueError(
            f"loss_barrier(points={points}): at least three were expected, both ends and one in "
            "between; without one there is nothing to compare. Pass points=11."
        )
    require_alike("loss_barrier", (a, b))
    times = tuple(k / (points - 1) for k in range(points))
    between = (float(evaluate(mixed((a, b), (1 - t, t), kind))) for t in times[1:-1])
    losses = (float(evaluate(a)), *between, float(evaluate(b)))
    for t, loss in zip(times, losses, strict=True):
        if math.isnan(loss) or (t in (0, 1) and math.isinf(loss)):
            raise ValueError(
                f"loss_barrier(evaluate=…): the loss is {loss} at t = {t:.3g}, and a finite number "
                "was expected. Look at the parameters there and at the data."
            )
    return Barrier(times, losses, max(_rises(times, losses)))

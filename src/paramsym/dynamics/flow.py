"""Gradient flow with error control: the curve that conserved quantities are conserved along."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import SupportsFloat

import numpy as np
import torch
from scipy.integrate import DOP853
from scipy.optimize import root_scalar

from paramsym.arguments import module_of
from paramsym.dynamics.field import GradientField
from paramsym.dynamics.landscape import Landscape, LossFunction, Params
from paramsym.recording.record import Inputs
from paramsym.recording.running import preserved

_SAMPLES = (0.25, 0.5, 0.75, 1.0)  # parts of a step at which signs are read
_STALLED = 200  # events at one time, or short steps to and fro, after which no flow is seen
_FINEST = 1e-13  # tolerances below it ask for more than float64 has
_SHORT = 1e-6  # steps that are such a part of the whole time


@dataclass(frozen=True)
class Event:
    """A pre-activation that came to its kink, or left it.

    Attributes:
        time: when.
        activation: the number of the call, in the order of the forward pass.
        entry: the index in its pre-activation.
        kind: "crosses", "slides" (from now on along the kink) or "leaves" (it slid until now).
    """

    time: float
    activation: int
    entry: tuple[int, ...]
    kind: str


@dataclass(frozen=True)
class GradientFlow:
    """The parameters along a flow.

    Attributes:
        times: at which they were asked for, 0 in front.
        params: a complete state dict in float64 for each time.
        losses: the loss at each time.
        evaluations: how many gradients were taken.
        events: the kinks that were met, in their order.
    """

    times: tuple[float, ...]
    params: tuple[Params, ...]
    losses: tuple[float, ...]
    evaluations: int
    events: tuple[Event, ...]

    def drift(self, values: Callable[[Params], Mapping[str, torch.Tensor]]) -> dict[str, float]:
        """How far quantities have moved: the largest |Q(t) − Q(0)| over all times, by family.

        Args:
            values: from a complete state dict to tensors by family, as `moment_map` and
                `conserved_quantities(…).values` give them.
        """
        found = [values(params) for params in self.params]
        return {
            family: float(np.max([_largest(other[family] - start) for other in found]))
            for family, start in found[0].items()
        }


def _largest(x: torch.Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


def gradient_flow(
    model: torch.nn.Module,
    loss_fn: LossFunction,
    inputs: Inputs,
    times: Sequence[float],
    tolerance: float = 1e-10,
    training: bool = False,
    progress: Callable[[float, float], None] | None = None,
) -> GradientFlow:
    """The flow θ̇ = −∇L(θ) from the weights of a model, at requested times.

    Integrated in float64 by Runge–Kutta steps of order eight whose error is estimated. Between
    kinks of ReLU, leaky ReLU, PReLU, the modulus, clamps, maxima of two and max pooling the field
    is smooth: each goes on along its side until the sign of its pre-activation changes, which is
    found on the interpolant to rounding, and there the integration starts anew. Where both sides of
    a kink lead back to it the flow slides along it. Other kinks (comparisons, masks, maxima over
    axes) are left to the error control, which stops where the flow would slide. The model is only
    read.

    Args:
        model: whose parameters flow, as far as they require a gradient.
        loss_fn: from what the model returns to a number.
        inputs: a tuple of positional inputs, or a dict of keyword arguments.
        times: increasing and positive; a 0 in front may be named or not.
        tolerance: the error of one step, relative and absolute.
        training: run in training mode, where batch norms read batch statistics.
        progress: called after each step with its time and the loss.

    Returns:
        Times, parameters, losses, the number of gradients, and the events.

    Raises:
        ValueError: times that do not increase, a tolerance that is none, or no finite number for a
            loss; see `Landscape`.
        RuntimeError: the flow has blown up, or does not go on, as at kinks that are not seen.

    Source: Hairer, Nørsett and Wanner, "Solving ordinary differential equations I" (1993), II.5
    for the steps and II.6 for discontinuities.
    """
    asked = checked_times(times, "gradient_flow")
    require_tolerance(tolerance, "gradient_flow")
    model = module_of(model)
    with preserved(model, training), torch.enable_grad():
        loss = Landscape(model, loss_fn, inputs, "gradient_flow")
        field = GradientField(loss)
        course = Course(field, loss.place, tolerance, progress)
        vectors = [loss.start, *course.through(loss.start.numpy(), asked)]
        params = tuple({n: p.clone() for n, p in loss.params(v).items()} for v in vectors)
        with torch.no_grad():
            losses = tuple(float(loss(v)) for v in vectors)
    return GradientFlow((0.0, *asked), params, losses, field.evaluations, tuple(course.events))


def checked_times(times: Sequence[float], caller: str) -> list[float]:
    """Positive times in increasing order, a 0 in front taken away."""
    given = [*times] if isinstance(times, Iterable) else [times]
    asked = [float(t) if isinstance(t, SupportsFloat) else math.nan for t in given]
    asked = asked if isinstance(times, Iterable) else []
    asked = asked[1:] if asked[:1] == [0.0] else asked
    if not asked or not all(a < b < math.inf for a, b in zip([0.0, *asked], asked, strict=False)):
        raise ValueError(
            f"{caller}(times={given[:6]}): increasing positive times were expected, such as "
            "[1, 10, 100]."
        )
    return asked


def require_tolerance(tolerance: float, caller: str) -> None:
    """Refuse an error of a step that rounding is larger than, or that is none."""
    if not _FINEST <= tolerance < 1:
        raise ValueError(
            f"{caller}(tolerance={tolerance}): a number from {_FINEST:g} to 1 was expected, the "
            "error of one step. Take 1e-10, or 1e-6 where time matters more."
        )


def checked_step(solver: DOP853, place: str) -> None:
    """One step; a flow that has blown up is an error."""
    with np.errstate(all="ignore"):
        said = solver.step()
    if solver.status == "failed" or not np.isfinite(solver.y).all():
        raise RuntimeError(
            f"{place}: no step from time {solver.t:.6g} ({said or 'not finite'}), a smooth flow "
            "was expected. Ask for earlier times, or a loss that is bounded from below."
        )


def _to_and_fro(turns: list[np.ndarray]) -> bool:
    """Whether changes of the velocity undo each other, which those of a smooth descent never do."""
    return float(np.linalg.norm(np.sum(turns, 0))) < 0.1 * float(
        np.sum(np.linalg.norm(turns, axis=1))
    )


def _began(solver: DOP853) -> float:
    """The time at which the last step began."""
    return float(solver.t_old)  # pyright: ignore[reportArgumentType]


class Course:
    """A field followed from event to event.

    Attributes:
        events: what was met so far.
    """

    def __init__(
        self,
        field: GradientField,
        place: str,
        tolerance: float,
        progress: Callable[[float, float], None] | None,
    ) -> None:
        self.field, self.place, self.tolerance = field, place, tolerance
        self.progress = progress
        self.events: list[Event] = []
        self._turns: list[np.ndarray] = []

    def through(self, y: np.ndarray, times: Sequence[float]) -> Iterator[torch.Tensor]:
        """The states at increasing times, from `y` at time 0."""
        t, left, width = 0.0, list(times), None
        stalled = 0
        while left:
            solver = DOP853(
                self.field.velocity, t, y, times[-1], rtol=self.tolerance, atol=self.tolerance,
                first_step=None if width is None else min(width, times[-1] - t),
            )  # fmt: skip
            event = None
            while event is None and solver.status == "running":
                self._step(solver)
                event = self._event(solver)
                t = solver.t if event is None else event[0]
                while left and left[0] <= t:
                    at = left.pop(0)
                    reached = solver.y if at == solver.t else solver.dense_output()(at)
                    yield torch.from_numpy(reached.copy())
            if event is None or not left:
                return
            stalled = stalled + 1 if t == _began(solver) else 0
            if stalled > _STALLED:
                raise RuntimeError(
                    f"{self.place}: {_STALLED} kinks at time {t:.6g} without going on, a flow was "
                    "expected. Move the weights a little, or follow it up to that time."
                )
            width, y = solver.t - _began(solver), event[1]
            self._switch(t, y, event[2])

    def _step(self, solver: DOP853) -> None:
        before = solver.f
        checked_step(solver, self.place)
        if solver.t - _began(solver) > _SHORT * solver.t_bound or solver.status != "running":
            self._turns = []
        else:
            self._turns.append(solver.f - before)
        if len(self._turns) == _STALLED:
            if _to_and_fro(self._turns):
                raise RuntimeError(
                    f"{self.place}: {_STALLED} steps of less than {_SHORT:g} of the whole time, in "
                    f"which the velocity turns to and fro, at time {solver.t:.6g}; a field that is "
                    "smooth between its kinks was expected. Write kinks with relu, clamp or "
                    "maximum, take a larger tolerance, or ask for earlier times."
                )
            self._turns = []
        if self.progress is not None:
            self.progress(float(solver.t), self.field.loss)

    def _event(self, solver: DOP853) -> tuple[float, np.ndarray, int] | None:
        """The first time in a step at which a side no longer fits, the state then, and the kink."""
        if not len(self.field.sides):
            return None
        dense, earlier = solver.dense_output(), _began(solver)
        for part in _SAMPLES:
            later = _began(solver) + part * (solver.t - _began(solver))
            margins = self.field.margins(dense(later), sliding=part == 1)
            bad = np.flatnonzero(margins < -self.field.band)
            if len(bad):
                if np.isin(bad, self.field.sliding).any():
                    earlier = _began(solver)  # they were not looked at in between
                at = self._root(dense, bad, earlier, later)
                y = dense(at)
                return at, y, int(bad[np.argmin(self.field.margins(y)[bad])])
            earlier = later
        return None

    def _root(
        self, dense: Callable[[float], np.ndarray], bad: np.ndarray, earlier: float, later: float
    ) -> float:
        def least(t: float) -> float:
            return float(self.field.margins(dense(t))[bad].min())

        if least(earlier) <= 0:
            return earlier
        return root_scalar(
            least, bracket=(earlier, later), method="brentq", xtol=1e-300,
            rtol=4 * np.finfo(float).eps,
        ).root  # fmt: skip

    def _switch(self, t: float, y: np.ndarray, kink: int) -> None:
        kind = self.field.switch(kink, y)
        self.events.append(Event(t, *self.field.place(kink), kind))

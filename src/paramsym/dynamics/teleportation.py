"""Teleportation: jump to an equivalent point of the orbit from which training goes faster.

The loss is one and the same all along an orbit, and its gradient is not. With coordinates c of the
group, the slope of an objective O(exp(c)·θ) at c = 0 is the adjoint of c ↦ X_c θ, applied to ∇O:

    O = log ‖∇L‖²,  ∇O = 2 H ∇L / ‖∇L‖²    (one Hessian–vector product),
    O = −λ,         ∇O = −∇(vᵀHv)            at a unit eigenvector v of the largest eigenvalue λ.

A step θ ← exp(c)·θ is exact, so that the loss stays to rounding however long it is. On the orbit
of a scale the gradient has no maximum, for it grows with the weights; past some point the same
step of training overshoots, and descent diverges. Hence a bound on the new norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from paramsym.dynamics.loss import ModelLoss, NotFinite
from paramsym.dynamics.moments import Held
from paramsym.dynamics.objectives import OBJECTIVES, Evaluation, Objective
from paramsym.dynamics.orbit_action import Action, Moments, OrbitAction
from paramsym.dynamics.resting import at_rest_where_read, complete
from paramsym.recording.record import Inputs
from paramsym.structure.element import GroupElement
from paramsym.structure.symmetry import ParameterSymmetry

State = dict[str, torch.Tensor]

_RADIUS = 0.3  # of the first step: its largest coordinate, mostly the logarithm of a scale
_GROWTH, _SHRINKING = 1.5, 0.5
_SHORTEST = 1e-3  # what is shorter than that is no step


@dataclass(frozen=True)
class Place:
    """One point of the orbit: its loss, the norm of its gradient and of its parameters.

    `objective` is log ‖∇L‖², or minus the largest eigenvalue of the Hessian.
    """

    loss: float
    gradient_norm: float
    parameter_norm: float
    objective: float


@dataclass(frozen=True)
class Teleported:
    """Where a teleport led; `str()` prints it.

    `path` are the coordinates of its steps, each from where the last one led, and `element` their
    product, for the action of a symmetry. `evaluations` counts what was paid for, and `ended` says
    why no further step was taken.
    """

    before: Place
    after: Place
    path: tuple[torch.Tensor, ...]
    element: GroupElement | None
    evaluations: int
    ended: str
    held: tuple[str, ...]

    @property
    def steps(self) -> int:
        """Steps taken."""
        return len(self.path)

    @property
    def loss_change(self) -> float:
        """How far the loss moved, relative to itself: rounding, for a symmetry."""
        return _relative(self.before.loss, self.after.loss)

    def __str__(self) -> str:
        pairs = [
            (name.replace("_", " "), getattr(self.before, name), getattr(self.after, name))
            for name in ("loss", "gradient_norm", "parameter_norm", "objective")
        ]
        lines = [f"{name:14}  {a:.6g} -> {b:.6g}" for name, a, b in pairs]
        lines.append(f"{self.steps} steps, {self.evaluations} evaluations; {self.ended}")
        if self.held:
            lines.append(f"held: {', '.join(self.held)}")
        return "\n".join(lines)


def teleport(
    model: torch.nn.Module,
    symmetry: ParameterSymmetry | Action,
    loss_fn: Callable[[Any], torch.Tensor],
    data: Inputs,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    *,
    objective: str = "gradient",
    bound: float = 1.5,
    steps: int = 16,
    outputs: Callable[[Any], Any] | None = None,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> Teleported:
    """Move a model along its orbit to where the gradient is larger, or the Hessian flatter.

    Steps go along the slope of the objective in coordinates of the group, the longest coordinate
    first 0.3, half of that wherever the objective would fall or the bound be passed, and then 1.5
    times as long after each success. Parameters and buffers are replaced in place at the end, when
    nothing can fail any more; gradients that parameters hold belong to the old point.

    Args:
        model: its trained parameters move; those that are frozen, and what would move them, stay.
        symmetry: what `find_symmetry` derived in the same mode, or another `Action` that keeps
            the loss.
        loss_fn: from what the model returns (what `outputs` chooses of it) to a real number.
        data: the inputs of the model, a tuple or a dict of keyword arguments.
        optimizer: whose momentum (and first moments of Adam) moves along, by the dual action; a
            list of them where several train the model. Second moments follow monomial moves alone,
            so that with them other spaces and shifts are held.
        objective: "gradient", ascent of log ‖∇L‖², or "sharpness", descent of the largest
            eigenvalue of the Hessian, found by conjugate gradients.
        bound: the largest new norm of all parameters that is allowed, relative to the old one; at
            least 1. Along scales the gradient grows without end, and the curvature with it.
        steps: evaluations of the objective at most, those of rejected steps included; each costs
            three to four steps of training.
        outputs: which tensors count as the function, as for `find_symmetry`.
        training: the mode in which the loss is evaluated.
        generator: from which the search for an eigenvector starts; by default one with seed 0.

    Returns:
        A `Teleported`.

    Raises:
        ValueError: an unknown objective; a bound below 1 or fewer than two evaluations; a loss that
            depends on parameters past the outputs, that the action does not keep, or that is
            random or not finite; a gradient that vanishes; an optimiser of other parameters or
            with entries whose action is not known. Nothing has been changed then.

    Source: Zhao, Dehmamy, Walters and Yu, "Symmetry teleportation for accelerated optimization"
    (2022); Zhao, Gower, Walters and Yu, "Improving convergence and generalization using parameter
    symmetries" (2023), for sharpness.
    """
    _require_choices(objective, bound, steps)
    loss = ModelLoss(model, loss_fn, data, "teleport", outputs, training)
    loss.require_of_outputs()
    loss.require_repeatable()
    if isinstance(symmetry, ParameterSymmetry):
        state = complete(symmetry, loss.state)
        action: Action = OrbitAction(at_rest_where_read(loss, symmetry))
        held = Held(loss.own, symmetry.ties, optimizer)
    else:
        state, action = loss.state, symmetry
        held = Held(loss.own, {}, optimizer)
    moments = held.moments()
    action = action.holding([n for n, p in loss.own.items() if not p.requires_grad], moments)
    of = Objective(loss, objective, generator or torch.Generator().manual_seed(0))
    ascent = _Ascent(of, action, state, moments, bound)
    with torch.no_grad():
        ascent.run(steps)
        _require_kept(loss, ascent)
        for name, tensor in loss.state.items():  # they share the memory of the model
            if ascent.state[name] is not tensor:
                tensor.copy_(ascent.state[name])
        held.write(ascent.moments)
    found = ascent.result()
    if found.element is None or not isinstance(symmetry, ParameterSymmetry):
        return found
    return replace(found, element=GroupElement(symmetry, found.element.parts))


class _Ascent:
    """Steps on the orbit, each accepted only if the objective grows within the bound."""

    def __init__(
        self, objective: Objective, action: Action, state: State, moments: Moments, bound: float
    ):
        self.objective, self.action = objective, action
        self.state, self.moments = state, moments
        self.limit = bound * self._norm(state)
        self.path: list[torch.Tensor] = []
        self.evaluations, self.ended = 0, ""
        self.here = self._evaluated(state)
        self.start = self._place(state, self.here)
        self.radius = _RADIUS

    def run(self, evaluations: int) -> None:
        """Climb until the evaluations are spent, or no step is left."""
        slopes = self.action.slopes(self.state, self.here.derivative)
        while self.evaluations < evaluations:
            steepest = float(slopes.abs().max()) if slopes.numel() else 0.0
            if not steepest:
                self.ended = "nothing that moves changes the objective"
                return
            found = self._within(slopes / steepest)
            if found is None:
                return
            coordinates, state = found
            try:
                there = self._evaluated(state)
            except NotFinite:  # an overflow: the loss itself is the same
                there = None
            if there is None or there.value <= self.here.value:
                self.radius *= _SHRINKING
                continue
            self.moments = self.action.carried(self.state, coordinates, self.moments)
            self.path.append(coordinates)
            self.state, self.here = state, there
            self.radius *= _GROWTH
            slopes = self.action.slopes(self.state, self.here.derivative)
        self.ended = "all evaluations are spent"

    def _within(self, direction: torch.Tensor) -> tuple[torch.Tensor, State] | None:
        """The first of ever shorter steps that stays within the bound, and where it leads."""
        self.ended = "no step makes the objective grow"
        while self.radius >= _SHORTEST:
            state = self.action.moved(self.state, self.radius * direction)
            if self._norm(state) <= self.limit:  # false also where numbers overflow
                return self.radius * direction, state
            self.ended = "the bound on the norm is reached"
            self.radius *= _SHRINKING
        return None

    def _evaluated(self, state: State) -> Evaluation:
        self.evaluations += 1
        return self.objective.at({n: state[n] for n in self.objective.loss.state})

    def _norm(self, state: State) -> float:
        return math.hypot(*(float(state[n].norm()) for n in self.objective.loss.params))

    def _place(self, state: State, at: Evaluation) -> Place:
        return Place(at.loss, at.gradient_norm, self._norm(state), at.value)

    def result(self) -> Teleported:
        """What is left to say when all is done."""
        element, held = None, ()
        if isinstance(self.action, OrbitAction):
            element, held = self.action.symmetry.identity(), tuple(sorted(self.action.held))
            for coordinates in self.path:
                element = self.action.element(self.state, coordinates) @ element
        after = self._place(self.state, self.here)
        path = tuple(self.path)
        return Teleported(self.start, after, path, element, self.evaluations, self.ended, held)


def _relative(before: float, after: float) -> float:
    return abs(after - before) / (abs(before) or 1.0)


def _require_choices(objective: str, bound: float, steps: int) -> None:
    if objective not in OBJECTIVES:
        raise ValueError(
            f"teleport(objective={objective!r}): it is none of {[*OBJECTIVES]}. A gradient "
            "to be made large or a sharpness to be made small was expected. Pass one of the two."
        )
    if not 1 <= bound < math.inf:
        raise ValueError(
            f"teleport(bound={bound}): a finite number of at least 1 was expected, the new norm of "
            "the parameters relative to the old one. Leave it at 1.5; descent may diverge past 5."
        )
    if steps < 2 or steps != int(steps):
        raise ValueError(
            f"teleport(steps={steps}): a whole number of evaluations was expected, at least two: "
            "one here and one at the end of a step. Leave it at 16."
        )


def _require_kept(loss: ModelLoss, ascent: _Ascent) -> None:
    """Refuse to go where the loss is another one."""
    allowed = math.sqrt(torch.finfo(loss.dtype).eps)
    change = _relative(ascent.start.loss, ascent.here.loss)
    if change > allowed:
        raise ValueError(
            f"teleport(symmetry=…, training={loss.training}): the loss would move by {change:.0e} "
            f"of itself, and at most {allowed:.0e} was expected, since an orbit keeps it. Nothing "
            "was changed. The symmetry belongs to another mode or model; pass the same training=… "
            "and outputs=… to find_symmetry and here."
        )

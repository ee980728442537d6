"""Noether's theorem for training: what symmetries say of flows that have inertia.

A step of gradient descent of length ετ is, to second order in the time τ that it takes,

    θ̇ + (τ/2) θ̈ = −ε ∇L(θ).

Let X be a linear generator of a symmetry, and J = ⟨Xθ, θ̇⟩ its Noether current. As ⟨Xθ, ∇L⟩ = 0,

    J̇ = −(2/τ) J + ⟨Xθ̇, θ̇⟩.

For antisymmetric X the last term vanishes and J, an angular momentum, decays as e^{−2t/τ}. For
symmetric X, J is half the rate of Q = ⟨θ, Xθ⟩, and tends to (τ/2)⟨Xθ̇, θ̇⟩: in the time τ of a step Q
moves by τ²⟨Xθ̇, θ̇⟩, as it does under gradient descent. As τ → 0 all currents vanish, and gradient
flow, without inertia, conserves Q.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.integrate import DOP853

from paramsym.arguments import module_of
from paramsym.dynamics.flow import checked_step, checked_times, require_tolerance
from paramsym.dynamics.landscape import Landscape, LossFunction, Params
from paramsym.recording.record import Inputs
from paramsym.recording.running import preserved
from paramsym.structure.moment import pairings
from paramsym.structure.symmetry import ParameterSymmetry


@dataclass(frozen=True)
class SecondOrderFlow:
    """Parameters and velocities along a flow with inertia.

    Attributes:
        times: at which they were asked for, 0 in front.
        params: a complete state dict in float64 for each time.
        velocities: θ̇ for each time, of what flows.
        evaluations: how many gradients were taken.
    """

    times: tuple[float, ...]
    params: tuple[Params, ...]
    velocities: tuple[Params, ...]
    evaluations: int


def second_order_flow(
    model: torch.nn.Module,
    loss_fn: LossFunction,
    inputs: Inputs,
    times: Sequence[float],
    tau: float,
    epsilon: float = 1.0,
    velocity: Mapping[str, torch.Tensor] | None = None,
    tolerance: float = 1e-10,
    training: bool = False,
    progress: Callable[[float], None] | None = None,
) -> SecondOrderFlow:
    """The flow θ̇ + (τ/2) θ̈ = −ε ∇L(θ) from the weights of a model, at requested times.

    Integrated in float64 by Runge–Kutta steps of order eight with error control, whose length τ
    bounds. Kinks are left to the error control: velocities are continuous there. The model is only
    read.

    Args:
        model: whose parameters flow, as far as they require a gradient.
        loss_fn: from what the model returns to a number.
        inputs: a tuple of positional inputs, or a dict of keyword arguments.
        times: increasing and positive; a 0 in front may be named or not.
        tau: τ, the time of one step of descent; positive.
        epsilon: ε, the rate of descent.
        velocity: θ̇ at time 0, by name; by default −ε∇L, what missing names have as well.
        tolerance: the error of one step, relative and absolute.
        training: run in training mode.
        progress: called after each step with its time.

    Raises:
        ValueError: times that do not increase, τ that is not positive, a tolerance that is none,
            a velocity of another name or shape or without numbers, or as `Landscape`.
        RuntimeError: the flow has blown up.

    Source: Zhao et al., "Symmetries, flat minima, and the conserved quantities of gradient flow"
    (2023), eq. (14).
    """
    asked = checked_times(times, "second_order_flow")
    require_tolerance(tolerance, "second_order_flow")
    if not 0 < tau < math.inf or not math.isfinite(epsilon):
        raise ValueError(
            f"second_order_flow(tau={tau}, epsilon={epsilon}): a positive time and a finite rate "
            "were expected. For τ = 0 there is no inertia: call gradient_flow."
        )
    model = module_of(model)
    with preserved(model, training), torch.enable_grad():
        loss = Landscape(model, loss_fn, inputs, "second_order_flow")
        count, gradients = len(loss.start), 0

        def field(t: float, y: np.ndarray) -> np.ndarray:
            nonlocal gradients
            gradients += 1
            slope = loss.gradient(torch.from_numpy(y[:count]))[1].numpy()
            return np.concatenate([y[count:], -2 / tau * (y[count:] + epsilon * slope)])

        pushed = -epsilon * loss.gradient(loss.start)[1]
        start = np.concatenate([loss.start.numpy(), _started(loss, pushed, velocity).numpy()])
        states = [start]
        solver = DOP853(field, 0.0, start, asked[-1], rtol=tolerance, atol=tolerance)
        while len(states) <= len(asked):
            checked_step(solver, loss.place)
            if progress is not None:
                progress(float(solver.t))
            dense = solver.dense_output()
            states += [dense(t) for t in asked[len(states) - 1 :] if t <= solver.t]
        params = tuple(
            {n: p.clone() for n, p in loss.params(torch.from_numpy(y[:count])).items()}
            for y in states
        )
        velocities = tuple(loss.parts(torch.from_numpy(y[count:].copy())) for y in states)
    return SecondOrderFlow((0.0, *asked), params, velocities, gradients)


def _started(
    loss: Landscape, pushed: torch.Tensor, velocity: Mapping[str, torch.Tensor] | None
) -> torch.Tensor:
    """The velocity at time 0 as one vector."""
    own = loss.parts(pushed)
    for name, given in (velocity or {}).items():
        came = tuple(given.shape) if isinstance(given, torch.Tensor) else type(given).__name__
        if name not in own or came != tuple(own[name].shape):
            shape = tuple(own[name].shape) if name in own else f"one of {[*own][:12]}"
            raise ValueError(
                f"{loss.place}: velocity[{name!r}] has the shape {came}, {shape} was expected. "
                "Name parameters that require a gradient, in their shapes."
            )
        if not given.isfinite().all():
            raise ValueError(
                f"{loss.place}: velocity[{name!r}] holds numbers that are not finite, finite ones "
                "were expected. Leave the name out to start with −ε∇L."
            )
        own[name] = given.detach().to(own[name])
    return torch.cat([v.reshape(-1) for v in own.values()])


def noether_currents(
    symmetry: ParameterSymmetry,
    params: Mapping[str, torch.Tensor],
    velocity: Mapping[str, torch.Tensor],
) -> dict[str, torch.Tensor]:
    """The Noether current J_j = ⟨X_j θ, θ̇⟩ of every generator of a symmetry.

    Under θ̇ + (τ/2)θ̈ = −ε∇L those of antisymmetric generators, the angular momenta, decay as
    e^{−2t/τ}; under gradient flow all are zero at all times.

    Args:
        symmetry: what `find_symmetry` derived.
        params: θ, the complete state dict.
        velocity: θ̇ by parameter; missing names count as at rest.

    Returns:
        By space and shift in the shapes of `moment_map`: matrices for bases, diagonals for scales.

    Raises:
        ValueError: a name that is no parameter, another shape, or as `act`.

    Source: Zhao et al., "Symmetries, flat minima, and the conserved quantities of gradient flow"
    (2023), eq. (16) and (17), whose Lagrangian belongs to θ̇ + τθ̈ = −ε∇L and decays as e^{−t/τ}.
    """
    return pairings(symmetry, params, velocity)

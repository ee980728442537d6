"""Whether autograd's derivative is the derivative of the function that the model computes.

A hand-written backward says one thing forwards and another in reverse (what is merely detached is
followed all the same, see `computed`). An audit would then count the null space of something else.
So a few random directions are walked by a small step, and the change of the outputs is compared
with the Jacobian's word. A function may also jump (a hard threshold, rounding): almost everywhere
its derivative is right, and does not see that moving the parameters moves the jumps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paramsym.checking.generic import Draws
from paramsym.checking.jacobian import Network
from paramsym.structure.tangent import as_real

_STEP = 1e-6  # relative to the size of each entry
_TRIALS = 5  # inputs with a direction each; a kink that is crossed spoils one of them
_WRONG = 1e-4  # differences of second order are near 1e-10
_WALKS = 8  # inputs at which a jump is looked for
_REACH = 0.1  # how far they walk, relative to the size of each entry
_HALVINGS = 30
_SMOOTH = 1e-3  # where so little of the first change is left, it shrinks with the step
_JUMP = 1e-4  # a change, relative to the outputs, that does not shrink with the step


@dataclass(frozen=True)
class Derivative:
    """`error`: by how much finite differences and autograd differ, relative to the difference.

    `jump`: the largest change of an output that did not shrink with the step, down to a billionth
    of the parameters, relative to the largest output; None where it was not looked for.
    """

    error: float
    jump: float | None = None

    @property
    def wrong(self) -> bool:
        """Autograd's derivative is not the function's."""
        return self.error > _WRONG

    @property
    def jumps(self) -> bool:
        """The function is not continuous in its parameters."""
        return self.jump is not None and self.jump > _JUMP


def check_derivative(network: Network, look_for_jumps: bool) -> Derivative:
    """Compare autograd with finite differences along random directions.

    Args:
        network: the model as a function of its parameters.
        look_for_jumps: also halve steps where the outputs bend most, until only jumps are left.
    """
    jump = max(_jumps(network, _WALKS)) if look_for_jumps else None
    return Derivative(sorted(_disagreements(network, _TRIALS))[_TRIALS // 2], jump)


def _directions(network: Network, count: int) -> list[torch.Tensor]:
    """Random directions, (count, *shape) for each parameter.

    Each entry by its own size, and by what is usual where that is small.
    """
    sizes = [as_real(network.state[n]).abs() for n in network.names]
    usual = float(torch.cat([size.reshape(-1).cpu() for size in sizes]).median()) or 1.0
    found = []
    for size in sizes:
        noise = torch.randn(count, *size.shape, generator=network.generator, dtype=size.dtype)
        least = max(float(size.median()), 1e-2 * usual)
        found.append(noise.to(size.device) * size.clamp_min(least))
    return found


def _shifted(
    network: Network, draws: Draws, directions: list[torch.Tensor], steps: torch.Tensor
) -> torch.Tensor:
    """The outputs of each call, (calls, outputs), its parameters moved by its step."""
    moved = [
        as_real(network.state[n]) + steps.to(d).reshape(-1, *[1] * (d.ndim - 1)) * d
        for n, d in zip(network.names, directions, strict=True)
    ]
    return network.values(moved, draws)


def _disagreements(network: Network, count: int) -> list[float]:
    """‖difference quotient − J·u‖ / ‖either‖ at so many inputs, beyond what rounding explains."""
    directions, at = _directions(network, count), network.draws([1.0] * count)
    step = torch.full((count,), _STEP, dtype=torch.float64)
    before = _shifted(network, at, directions, -step)
    after = _shifted(network, at, directions, step)
    found = []
    for k in range(count):
        values, leaves = network.outputs_at(at[k])
        flat = torch.cat([d[k].reshape(-1).cpu() for d in directions])
        rounding = 1e-14 * float(values.detach().norm()) / _STEP
        weights = torch.randn(8, values.numel(), generator=network.generator, dtype=values.dtype)
        weights = weights.to(values.device) / max(1, values.numel()) ** 0.5
        measured = (weights @ ((after[k] - before[k]) / (2 * _STEP))).cpu()
        if values.requires_grad:
            given = network.products(values, leaves, weights) @ flat
        else:
            given = torch.zeros_like(measured)
        if not bool(measured.isfinite().all()) or not bool(given.isfinite().all()):
            found.append(0.0)
            continue
        gap = max(0.0, float((measured - given).norm()) - rounding)
        found.append(gap / max(float(measured.norm()), float(given.norm()), 1e-300))
    return found


def _jumps(network: Network, count: int) -> list[float]:
    """The change of an output that is left after halving steps, where it bends most, 30 times.

    So many walks are made side by side; one that has shrunk with its step waits for the others.
    """
    directions, at = _directions(network, count), network.draws([1.0] * count)
    low = torch.full((count,), -_REACH, dtype=torch.float64)
    high = -low
    first = _shifted(network, at, directions, low)
    last = _shifted(network, at, directions, high)
    size = first.abs().amax(1).clamp_min(1e-300)
    whole = (last - first).abs().amax(1)
    walking = torch.ones(count, dtype=torch.bool)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        between = _shifted(network, at, directions, middle)
        left, right = between - first, last - between
        worst = (left - right).abs().argmax(1, keepdim=True)
        there = left.gather(1, worst).abs() > right.gather(1, worst).abs()
        last, first = torch.where(there, between, last), torch.where(there, first, between)
        here = there[:, 0].cpu()
        high, low = torch.where(here, middle, high), torch.where(here, low, middle)
        walking &= ((last - first).abs().amax(1) > _SMOOTH * whole).cpu()
        if not bool(walking.any()):
            break
    return torch.where(walking, ((last - first).abs().amax(1) / size).cpu(), 0.0).tolist()

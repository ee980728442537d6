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
    errors = sorted(_disagreement(network) for _ in range(_TRIALS))
    jump = max(_jump(network) for _ in range(_WALKS)) if look_for_jumps else None
    return Derivative(errors[_TRIALS // 2], jump)


def _direction(network: Network) -> dict[str, torch.Tensor]:
    """A random direction, each entry by its own size, and by what is usual where that is small."""
    sizes = {n: as_real(network.state[n]).abs() for n in network.names}
    usual = float(torch.cat([size.reshape(-1).cpu() for size in sizes.values()]).median()) or 1.0
    found = {}
    for name, size in sizes.items():
        noise = torch.randn(size.shape, generator=network.generator, dtype=size.dtype)
        least = max(float(size.median()), 1e-2 * usual)
        found[name] = noise.to(size.device) * size.clamp_min(least)
    return found


def _disagreement(network: Network) -> float:
    """‖difference quotient − J·u‖ / ‖either‖ at one input, beyond what rounding explains."""
    direction = _direction(network)
    flat = torch.cat([direction[n].reshape(-1).cpu() for n in network.names])
    at = network.fresh_inputs()
    values, leaves = network.outputs_at(at)
    before = network.shifted_outputs(at, direction, -_STEP)
    after = network.shifted_outputs(at, direction, _STEP)
    rounding = 1e-14 * float(values.detach().norm()) / _STEP
    weights = torch.randn(8, values.numel(), generator=network.generator, dtype=values.dtype)
    weights = weights.to(values.device) / max(1, values.numel()) ** 0.5
    measured = (weights @ ((after - before) / (2 * _STEP))).cpu()
    if values.requires_grad:
        given = network.products(values, leaves, weights) @ flat
    else:
        given = torch.zeros_like(measured)
    if not bool(measured.isfinite().all()) or not bool(given.isfinite().all()):
        return 0.0
    gap = max(0.0, float((measured - given).norm()) - rounding)
    return gap / max(float(measured.norm()), float(given.norm()), 1e-300)


def _jump(network: Network) -> float:
    """The change of an output that is left after halving a step, where it bends most, 30 times."""
    direction, at = _direction(network), network.fresh_inputs()
    low, high = -_REACH, _REACH
    first = network.shifted_outputs(at, direction, low)
    last = network.shifted_outputs(at, direction, high)
    size = max(float(first.abs().max()), 1e-300)
    whole = float((last - first).abs().max())
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        between = network.shifted_outputs(at, direction, middle)
        left, right = between - first, last - between
        worst = int((left - right).abs().argmax())
        if float(left[worst].abs()) > float(right[worst].abs()):
            high, last = middle, between
        else:
            low, first = middle, between
        if not float((last - first).abs().max()) > _SMOOTH * whole:
            return 0.0
    return float((last - first).abs().max()) / size

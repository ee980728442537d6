"""The ball in the maximum norm around inputs, in the range of the data: a box, rounded inward.

x − ε and x + ε are in general no numbers of the precision that x has. Rounded to the nearest ones
they lie up to half a spacing outside of the ball, in 16 bits more than half of ε; rounded inward
they never do.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor


def projection(x: Tensor, epsilon: float, clip: tuple[float, float]) -> Callable[[Tensor], Tensor]:
    """Into the ball around x and the range of the data.

    Args:
        x: the centre, (batch, …), in the range.
        epsilon: radius ε ≥ 0.
        clip: the range.

    Warns:
        UserWarning: entries that ε does not reach the next number of, and that hence rest.
    """
    low, high = _least(x, epsilon, clip[0]), -_least(-x, epsilon, -clip[1])
    rest = int((low == high).sum())
    if epsilon and rest:
        warnings.warn(
            f"attack(epsilon={epsilon!r}): {rest} of {x.numel()} entries cannot move, since the "
            f"next numbers of {x.dtype} are further away than that. Pass inputs and a model of "
            "higher precision, or do not count these entries as attacked.",
            stacklevel=3,
        )
    return lambda moved: torch.minimum(torch.maximum(moved.detach(), low), high)


def _least(x: Tensor, epsilon: float, bound: float) -> Tensor:
    """The least number of x's precision that is at least x − ε and at least the bound."""
    exact = x.detach().double()
    difference = exact - epsilon
    back = difference - exact
    lost = (exact - (difference - back)) + (-epsilon - back)  # x − ε = difference + lost, exactly
    wanted = difference.clamp(min=bound)
    made = wanted.to(x.dtype)
    outside = (made.double() < wanted) | (
        (made.double() == difference) & (lost > 0) & (wanted == difference)
    )
    return torch.where(outside, torch.nextafter(made, x.detach()), made)

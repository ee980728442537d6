"""Projected gradient descent in the maximum norm: steps along signs, back into the ball each."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from .slope import Slope


def projected_gradient(
    slope: Slope, start: Tensor, step: float, steps: int, into: Callable[[Tensor], Tensor]
) -> Tensor:
    """x ← Π(x + step · sign ∇L(x)), as often as `steps` says.

    Args:
        slope: ∇L, the gradient of what is climbed in the inputs.
        start: the first x.
        step: length of one step in each entry.
        steps: how many.
        into: Π, the projection into the ball and the range of the data.

    Source: Madry, Makelov, Schmidt, Tsipras and Vladu, "Towards deep learning models resistant to
    adversarial attacks" (2018).
    """
    x = start
    for _ in range(steps):
        x = into(x + step * slope(x).sign())
    return x

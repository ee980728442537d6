"""The fast gradient sign method: one step to the corner of the ε-ball that the gradient names."""

from __future__ import annotations

from torch import Tensor

from .slope import Slope


def fast_gradient_sign(slope: Slope, start: Tensor, size: float) -> Tensor:
    """start + size · sign ∇L(start).

    Args:
        slope: ∇L, the gradient of what is climbed in the inputs.
        start: where the gradient is taken.
        size: of the step.

    Source: Goodfellow, Shlens and Szegedy, "Explaining and harnessing adversarial examples" (2015).
    """
    return start + size * slope(start).sign()

"""The fast gradient sign method: one step to the corner of the ε-ball that the gradient names."""

from __future__ import annotations

import torch
from torch import Tensor

from .losses import Loss


def fast_gradient_sign(loss: Loss, start: Tensor, size: float) -> Tensor:
    """start + size · sign ∇L(start).

    Args:
        loss: what is climbed, as a function of the inputs.
        start: where the gradient is taken.
        size: of the step.

    Source: Goodfellow, Shlens and Szegedy, "Explaining and harnessing adversarial examples" (2015).
    """
    return start + size * gradient(loss, start).sign()


def gradient(loss: Loss, x: Tensor) -> Tensor:
    """∇L(x), without a trace in the parameters of the model.

    Raises `ValueError` where it is not finite.
    """
    with torch.enable_grad():
        given = x.detach().requires_grad_()
        (found,) = torch.autograd.grad(loss(given), given)
    if not bool(found.isfinite().all()):
        raise ValueError(
            "attack(model=…): the gradient of the loss has entries that are not finite; finite "
            "ones were expected, since their sign is the attack. Look at what the model answers "
            "to x: weights, logits or a logarithm of zero."
        )
    return found

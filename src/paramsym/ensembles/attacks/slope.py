"""The gradient of a loss in the inputs, and a count of the samples that it says nothing about."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from .losses import Loss
from .refusals import require_slope


class Slope:
    """∇L in the inputs, without a trace in the parameters of the model.

    Attributes:
        flat: for each sample whether its gradient was zero in all entries whenever it was asked.

    Args:
        loss: a function of the inputs.

    Raises:
        ValueError: when called, where the gradient is not finite, or there is none.
    """

    def __init__(self, loss: Loss):
        self.loss = loss
        self.flat: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            given = x.detach().requires_grad_()
            loss = self.loss(given)
            require_slope(loss)
            (found,) = torch.autograd.grad(loss, given, materialize_grads=True)
        if not bool(found.isfinite().all()):
            raise ValueError(
                "attack(model=…): the gradient of the loss has entries that are not finite; finite "
                "ones were expected, since their sign is the attack. Look at what the model "
                "answers to x: weights, logits or a logarithm of zero."
            )
        flat = (found == 0).reshape(len(x), x[:1].numel()).all(-1)
        self.flat = flat if self.flat is None else self.flat & flat
        return found

    def tell(self, through: str) -> None:
        """Warn of samples that were not attacked, since sign(0) is no direction."""
        if self.flat is None or not bool(self.flat.any()):
            return
        way = "look for saturated or dead units" if through == "margin" else "pass through='margin'"
        warnings.warn(
            f"attack(through={through!r}): the gradient is zero in every entry for "
            f"{int(self.flat.sum())} of {len(self.flat)} samples, which were hence not attacked. "
            f"Do not count them as robust; {way}.",
            stacklevel=3,
        )

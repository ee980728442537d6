"""The accuracy that is left under the strongest of several attacks, sample by sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paramsym.ensembles.members import MemberEnsemble


@dataclass(frozen=True)
class RobustAccuracy:
    """What attacks leave of the accuracy.

    Attributes:
        value: the share of samples that every attempt left right.
        error: standard error of that share, √(p(1 − p)/n), for these samples.
        by_attack: for each attempt alone the share that it left right.
        right: for each sample whether every attempt left it right.
    """

    value: float
    error: float
    by_attack: dict[str, float]
    right: Tensor

    @property
    def strongest(self) -> str:
        """The one attempt that leaves least by itself."""
        return min(self.by_attack, key=lambda name: self.by_attack[name])


def robust_accuracy(
    predict: nn.Module | Callable[[Tensor], Tensor], labels: Tensor, attempts: Mapping[str, Tensor]
) -> RobustAccuracy:
    """The share of samples that are classified right whatever was tried.

    A sample counts if it is right on *all* attempts: an attack that fails on it says nothing as
    long as another one succeeds. The value is hence at most that of each attempt alone, and with
    the clean inputs among the attempts at most the clean accuracy.

    Args:
        predict: from inputs to classes, like `ensemble.vote`; or a network that returns logits; or
            an ensemble, which votes.
        labels: (batch,).
        attempts: by name the inputs that were tried, each (batch, …): clean ones, transferred and
            adaptive ones, of several losses and starts.

    Raises:
        ValueError: no attempt, or one whose answers are not one class for each label.
    """
    if not attempts:
        raise ValueError(
            "robust_accuracy(attempts={}): no attempt came; at least one was expected. Pass "
            "{'clean': x, 'fgsm': attack(…), 'pgd': attack(…)}."
        )
    by_attack, right = {}, torch.ones_like(labels, dtype=torch.bool)
    for name, tried in attempts.items():
        with torch.no_grad():
            found = _classes(predict, tried)
        if found.shape != labels.shape or found.is_floating_point():
            raise ValueError(
                f"robust_accuracy(attempts[{name!r}]): answers {found.dtype} of shape "
                f"{tuple(found.shape)} came; one class for each of {tuple(labels.shape)} labels "
                "was expected. Pass a function from inputs to classes, as ensemble.vote."
            )
        correct = found == labels
        by_attack[name] = float(correct.double().mean())
        right &= correct
    value = float(right.double().mean())
    return RobustAccuracy(value, math.sqrt(value * (1 - value) / len(labels)), by_attack, right)


def _classes(predict: nn.Module | Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    if isinstance(predict, MemberEnsemble):
        return predict.vote(inputs)
    made = predict(inputs)
    return made.argmax(-1) if isinstance(predict, nn.Module) else made

"""The accuracy that is left under the strongest of several attacks, sample by sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paramsym.ensembles.members import MemberEnsemble
from paramsym.ensembles.voting import majority_vote

from .modes import evaluating


@dataclass(frozen=True)
class RobustAccuracy:
    """What attacks leave of the accuracy.

    Attributes:
        value: the share of samples that every attempt left right.
        error: standard error of that share, √(p(1 − p)/n), for these samples.
        by_attack: for each attempt alone the share that it left right.
        right: for each sample whether every attempt left it right.
        undefined: for each attempt at how many samples the network, or a member, answered NaN;
            these are counted as wrong.
    """

    value: float
    error: float
    by_attack: dict[str, float]
    right: Tensor
    undefined: dict[str, int]

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
            an ensemble, which votes. A network, or that of a bound method, is run in evaluation
            mode, as `attack` runs it, and keeps its modes and statistics.
        labels: (batch,).
        attempts: by name the inputs that were tried, each (batch, …): clean ones, transferred and
            adaptive ones, of several losses and starts.

    Raises:
        ValueError: no attempt, no labels, an attempt that is not finite,
            or answers that are not one class for each label.
    """
    _require_attempts(attempts, labels)
    by_attack, undefined = {}, {}
    right = torch.ones_like(labels, dtype=torch.bool)
    for name, tried in attempts.items():
        with torch.no_grad(), _as_judged(predict):
            found, unclear = _classes(predict, tried)
        _require_classes(found, labels, name)
        correct = (found == labels) & ~unclear
        by_attack[name] = float(correct.double().mean())
        undefined[name] = int(unclear.sum())
        right &= correct
    value = float(right.double().mean())
    error = math.sqrt(value * (1 - value) / len(labels))
    return RobustAccuracy(value, error, by_attack, right, undefined)


def _as_judged(predict: nn.Module | Callable[[Tensor], Tensor]) -> AbstractContextManager[None]:
    """Evaluation mode for a network, also where it comes as one of its methods."""
    model = getattr(predict, "__self__", predict)
    return evaluating(model) if isinstance(model, nn.Module) else nullcontext()


def _classes(
    predict: nn.Module | Callable[[Tensor], Tensor], inputs: Tensor
) -> tuple[Tensor, Tensor]:
    """Classes, and at which samples there is none since an answer is NaN."""
    if isinstance(predict, MemberEnsemble):
        logits = predict.logits(inputs)
        unclear = logits.isnan().any(-1).any(0)
        return majority_vote(logits.masked_fill(unclear[..., None], 0.0)), unclear
    made = predict(inputs)
    if not isinstance(predict, nn.Module):
        return made, torch.zeros_like(made, dtype=torch.bool)
    return made.argmax(-1), made.isnan().any(-1)


def _require_attempts(attempts: Mapping[str, Tensor], labels: Tensor) -> None:
    if not attempts:
        raise ValueError(
            "robust_accuracy(attempts={}): no attempt came; at least one was expected. Pass "
            "{'clean': x, 'fgsm': attack(…), 'pgd': attack(…)}."
        )
    if not labels.numel() or labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(
            f"robust_accuracy(labels=…): {labels.dtype} of shape {tuple(labels.shape)} came; one "
            "class for each of at least one sample was expected. Pass the true labels as integers."
        )
    for name, tried in attempts.items():
        if tried.is_floating_point() and not bool(tried.isfinite().all()):
            raise ValueError(
                f"robust_accuracy(attempts[{name!r}]): entries that are not finite came; finite "
                "ones were expected, since NaN is within no distance of an input. Leave this "
                "attempt out, or look at how it was made."
            )


def _require_classes(found: Tensor, labels: Tensor, name: str) -> None:
    if found.shape != labels.shape or found.is_floating_point():
        raise ValueError(
            f"robust_accuracy(attempts[{name!r}]): answers {found.dtype} of shape "
            f"{tuple(found.shape)} came; one class for each of {tuple(labels.shape)} labels "
            "was expected. Pass a function from inputs to classes, as ensemble.vote."
        )

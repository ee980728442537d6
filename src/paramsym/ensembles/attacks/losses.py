"""The losses that an attack climbs: of one network, and of an ensemble through its members.

An ensemble answers by a vote, which has no gradient. An adaptive attack climbs a loss of what the
vote is made of; which of these is the strongest differs between ensembles, so try all.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, nll_loss

from paramsym.ensembles.members import MemberEnsemble

Loss = Callable[[Tensor], Tensor]


def through_mean_logits(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of the mean of the logits."""
    return cross_entropy(logits.mean(0), labels, reduction="sum")


def through_mean_probabilities(logits: Tensor, labels: Tensor) -> Tensor:
    """Minus the logarithm of the mean probability of the label."""
    mean = torch.logsumexp(log_softmax(logits, -1), 0) - math.log(len(logits))
    return nll_loss(mean, labels, reduction="sum")


def through_mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean over members of their cross-entropies, which no confident member saturates alone."""
    every = labels.expand(len(logits), *labels.shape)
    return cross_entropy(logits.flatten(0, 1), every.flatten(), reduction="sum") / len(logits)


THROUGH: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean-logits": through_mean_logits,
    "mean-probabilities": through_mean_probabilities,
    "mean-loss": through_mean_loss,
}


def loss_of(model: nn.Module, labels: Tensor, through: str) -> Loss:
    """The loss of a batch as a function of its inputs: a sum, so that no sample's gradient is
    scaled by the size of the batch.

    Args:
        model: an ensemble, or one network that returns logits (batch, classes).
        labels: (batch,).
        through: a name in `THROUGH`; for one network all are the same.
    """
    score = THROUGH[through]
    if isinstance(model, MemberEnsemble):
        return lambda x: score(model.logits(x), labels)
    return lambda x: score(model(x)[None], labels)

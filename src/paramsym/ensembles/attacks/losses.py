"""The losses that an attack climbs: of one network, and of an ensemble through its members.

An ensemble answers by a vote, which has no gradient. An adaptive attack climbs a loss of what the
vote is made of; which of these is the strongest differs between ensembles, so try all.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from paramsym.ensembles.members import MemberEnsemble

from .refusals import require_answers

Loss = Callable[[Tensor], Tensor]


def margins(logits: Tensor, labels: Tensor) -> Tensor:
    """z_j − z_y of the other classes j, and −∞ for the label: (…, batch, classes)."""
    own = labels.expand(logits.shape[:-1])[..., None]
    label = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, own, True)
    return (logits - logits.gather(-1, own)).masked_fill(label, -torch.inf)


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """log(1 + Σ_j exp(z_j − z_y)) over the other classes j: (…, batch).

    In this form the gradient keeps its direction for as long as exp(z_j − z_y) is a number. With
    1 − p_y it would lose the logit of the label as soon as p_y is rounded to one.
    """
    return softplus(torch.logsumexp(margins(logits, labels), -1))


def through_mean_logits(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of the mean of the logits."""
    return cross_entropies(logits.mean(0), labels).sum()


def through_mean_probabilities(logits: Tensor, labels: Tensor) -> Tensor:
    """Minus the logarithm of the mean probability of the label."""
    mean = torch.logsumexp(-cross_entropies(logits, labels), 0) - math.log(len(logits))
    return -mean.sum()


def through_mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean over members of their cross-entropies, which no confident member saturates alone."""
    return cross_entropies(logits, labels).sum() / len(logits)


def through_margin(logits: Tensor, labels: Tensor) -> Tensor:
    """The largest other logit minus that of the label, of the mean: it saturates nowhere."""
    return margins(logits.mean(0), labels).amax(-1).sum()


THROUGH: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean-logits": through_mean_logits,
    "mean-probabilities": through_mean_probabilities,
    "mean-loss": through_mean_loss,
    "margin": through_margin,
}


def loss_of(model: nn.Module, labels: Tensor, through: str) -> Loss:
    """The loss of a batch as a function of its inputs: a sum, so that no sample's gradient is
    scaled by the size of the batch.

    Args:
        model: an ensemble, or one network that returns logits (batch, classes).
        labels: (batch,).
        through: a name in `THROUGH`; for one network all but "margin" are the same.
    """
    score = THROUGH[through]

    def loss(x: Tensor) -> Tensor:
        if isinstance(model, MemberEnsemble):
            made = model.logits(x)
            require_answers(made, labels, 2)
            return score(made, labels)
        made = model(x)
        require_answers(made, labels, 1)
        return score(made[None], labels)

    return loss

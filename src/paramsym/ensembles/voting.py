"""One answer from many members."""

from __future__ import annotations

import torch
from torch import Tensor


def majority_vote(logits: Tensor) -> Tensor:
    """The class that most members choose; among equals the one of largest mean logit.

    Classes are compared by (votes, mean logit) in this order, so that a logit of −∞, of a class
    that one member has ruled out, loses no votes of others.

    Args:
        logits: (members, …, classes). A mean that does not exist, of +∞ and −∞, is less than all
            others.

    Returns:
        Classes, of shape (…).

    Raises:
        ValueError: no members, no classes, or NaN: a member that answers NaN chooses nothing.
    """
    _require_logits(logits)
    votes = torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).sum(0)
    most = votes == votes.amax(-1, keepdim=True)  # (…, classes)
    mean = logits.mean(0)
    mean = torch.where(most & ~mean.isnan(), mean, -torch.inf)
    return (most & (mean == mean.amax(-1, keepdim=True))).long().argmax(-1)


def _require_logits(logits: Tensor) -> None:
    if logits.ndim < 2 or not logits.shape[0] or not logits.shape[-1]:
        raise ValueError(
            f"majority_vote(logits=…): shape {tuple(logits.shape)} came; (members, …, classes) "
            "with at least one member and one class was expected. Stack what members answer along "
            "a first axis, as ensemble.logits(x) does."
        )
    if not logits.is_floating_point():
        raise ValueError(
            f"majority_vote(logits=…): {logits.dtype} came; real logits were expected, since "
            "equal votes are decided by their mean. Pass what members answer, not their classes."
        )
    unclear = logits.isnan().any(-1)
    if bool(unclear.any()):
        raise ValueError(
            f"majority_vote(logits=…): {int(unclear.any(0).sum())} samples have members that "
            f"answer NaN; numbers were expected, since NaN chooses no class. Look at the inputs "
            "and weights; robust_accuracy(ensemble, …) counts such samples as wrong."
        )

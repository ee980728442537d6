"""One answer from many members."""

from __future__ import annotations

import torch
from torch import Tensor


def majority_vote(logits: Tensor) -> Tensor:
    """The class that most members choose; among equals the one of largest mean logit.

    Args:
        logits: (members, …, classes).

    Returns:
        Classes, of shape (…).
    """
    classes = logits.shape[-1]
    votes = torch.nn.functional.one_hot(logits.argmax(-1), classes).sum(0)  # (…, classes)
    fewer = votes < votes.amax(-1, keepdim=True)
    return logits.mean(0).masked_fill(fewer, -torch.inf).argmax(-1)

"""The order of classes, from how often each occurs.

A key permutes the classes of the targets, ỹ = π(y), and the number of samples per class moves
along. Whoever knows roughly how frequent the classes are, from public targets of the same kind,
sorts both lists: for costs |p_j − p̃_i|² of a line that is the best assignment. Where frequencies
are even, nothing is learned.
"""

from __future__ import annotations

import torch
from torch import Tensor


def counts_of(targets: Tensor, classes: int) -> Tensor:
    """How many samples each class has.

    Args:
        targets: class indices of any shape; negative ones stand for ignored samples.
        classes: how many there are.

    Returns:
        A tensor of shape (classes,).

    Raises:
        ValueError: the targets are no class indices below `classes`.
    """
    if targets.is_floating_point() or targets.is_complex():
        raise ValueError(
            f"counts_of(targets, {classes}): targets of {targets.dtype} came, and class indices "
            "(integers) were expected. Targets of a regression have no classes to count."
        )
    flat = targets.flatten()
    flat = flat[flat >= 0]
    if flat.numel() and int(flat.max()) >= classes:
        raise ValueError(
            f"counts_of(targets, {classes}): a class {int(flat.max())} came, and indices below "
            f"{classes} were expected. Pass the number of outputs of the model."
        )
    return torch.bincount(flat, minlength=classes)


def matched_by_frequencies(
    public: Tensor, secret: Tensor, classes: int, generator: torch.Generator
) -> Tensor:
    """Which public class each secret class is, when both are sorted by how often they occur.

    Args:
        public, secret: class indices; the two need not be of one size.
        classes: how many there are.
        generator: breaks ties, so that equal frequencies say nothing.

    Returns:
        An order of shape (classes,): secret class i is public class order[i].
    """
    ranked = []
    for targets in (public, secret):
        shuffled = torch.randperm(classes, generator=generator)
        ranked.append(shuffled[counts_of(targets, classes)[shuffled].argsort(stable=True)])
    order = torch.empty(classes, dtype=torch.long)
    order[ranked[1]] = ranked[0]
    return order


def evened(targets: Tensor, classes: int, generator: torch.Generator) -> Tensor:
    """Indices of samples in which each class that occurs is as frequent as the rarest of them.

    Args:
        targets: class indices of shape (samples,).
        classes: how many there are.
        generator: draws the samples that stay.
    """
    counts = counts_of(targets, classes)
    fewest = int(counts[counts > 0].min()) if targets.numel() else 0
    shuffled = torch.randperm(len(targets), generator=generator)
    kept = [shuffled[targets[shuffled] == c][:fewest] for c in range(classes)]
    return torch.cat(kept).sort().values

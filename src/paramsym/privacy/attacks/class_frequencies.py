"""The order of classes, from how often each occurs.

A key permutes the classes of the targets, ỹ = π(y), and the number of samples per class moves
along. Whoever knows roughly how frequent the classes are, from public targets of the same kind,
sorts both lists: for costs |p_j − p̃_i|² of a line that is the best assignment. Where frequencies
are even, nothing is learned.
"""

from __future__ import annotations

from time import process_time

import torch
from torch import Tensor

from paramsym.privacy.attacks.attempt import Attempt, NotApplicable
from paramsym.privacy.attacks.chance import FEWEST, beyond_chance
from paramsym.privacy.coding import labels_of
from paramsym.privacy.job import Job


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
        targets: class indices of any shape; negative ones stand for ignored samples.
        classes: how many there are.
        generator: draws the samples that stay.

    Returns:
        Indices into the flattened targets.
    """
    targets = targets.flatten()
    counts = counts_of(targets, classes)
    fewest = int(counts[counts > 0].min()) if targets.numel() else 0
    shuffled = torch.randperm(len(targets), generator=generator)
    kept = [shuffled[targets[shuffled] == c][:fewest] for c in range(classes)]
    return torch.cat(kept).sort().values


# -- the attempt -----------------------------------------------------------------------------------


def attempt(job: Job) -> Attempt:
    """Name the classes of the job's targets by the frequencies of `job.public_targets`.

    It succeeds where more classes are named rightly than a random order would name but once in a
    thousand times.

    Raises:
        NotApplicable: no labels on both sides, classes that the key leaves in place, or too few.
    """
    public, sent, true = classes_of(job)
    classes = len(true)
    generator = torch.Generator().manual_seed(job.seed)
    began = process_time()
    found = matched_by_frequencies(public, sent, classes, generator)
    seconds = process_time() - began
    one, other = (x.flatten()[evened(x, classes, generator)] for x in (public, sent))
    none = matched_by_frequencies(one, other, classes, generator)
    value, control = (float((order == true).double().mean()) for order in (found, none))
    succeeded = beyond_chance(value, classes)
    return Attempt(
        attack="the order of classes from how frequent they are",
        claim="labels",
        needs="the labels that were sent, and how frequent classes are in public data",
        measure="share of classes named rightly",
        value=value,
        control=control,
        control_is="the same labels, thinned until all classes are equally frequent",
        succeeded=succeeded,
        control_failed=not beyond_chance(control, classes),
        seconds=seconds,
        says=(
            f"{value:.0%} of {classes} classes are named by their frequencies"
            + ("." if succeeded else ", which is no more than luck: they are nearly even.")
        ),
    )


def classes_of(job: Job) -> tuple[Tensor, Tensor, Tensor]:
    """Public labels, labels that were sent, and which public class each sent class is in truth.

    Raises:
        NotApplicable: there are none, the key leaves classes in place, or they are too few to tell
            a matching from luck.
    """
    sent = job.view.targets
    if job.public_targets is None or sent is None:
        raise NotApplicable("labels, and public labels, are needed")
    if sent.is_floating_point() or job.public_targets.is_floating_point():
        raise NotApplicable("the targets are no classes")
    renamed = labels_of(job.key)
    if not len(renamed):
        raise NotApplicable("the key leaves the classes in place")
    if len(renamed) < FEWEST:
        raise NotApplicable(f"{len(renamed)} classes: with fewer than {FEWEST} luck does it")
    return job.public_targets, sent, renamed.argsort()

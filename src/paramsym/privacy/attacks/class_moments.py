"""Any linear key, and the order of classes, from labelled public data of the same kind.

Labels go along with the inputs, and whatever they are called they say which samples belong
together. After whitening a key is one rotation Q, and with it turn the mean μ_c and the covariance
Σ_c of each class. Hence words in them are as good as known pairs,

    μ_c,  Σ_b μ_c,  Σ_a Σ_b μ_c     ↦     Q μ_c,  Q Σ_b μ_c,  Q Σ_a Σ_b μ_c,

up to what two samples of a population differ by; a few classes give thousands, which span
everything. One Procrustes problem finds Q, without a search. Before, the classes of both sides have
to be told apart, and no rotation changes

    ⟨μ_a, μ_b⟩,   tr Σ_a Σ_b,   μ_bᵀ Σ_a μ_b,

three tables of which one side is the other in another order of classes. Two classes alone of one
size are hardly told apart: once whitened, their means are opposite and their covariances mirrored.

An orthogonal key is a rotation before whitening, which only adds noise then. Both are tried, and
the coordinates are taken in which the words of the two sides agree better.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import process_time
from typing import NamedTuple

import torch
from torch import Tensor

from paramsym.privacy.job import Job

from .attempt import Attempt, NotApplicable
from .features import principal, public_rows, require_varying, rows_of
from .known_pairs import procrustes, row_errors

_STARTS = 10  # orders of classes from which swaps are tried
_WORDS = 20_000  # at most so many vectors


@dataclass(frozen=True, eq=False)
class ClassMoments:
    """Means (classes, r) and covariances (classes, r, r) of white rows, class by class."""

    means: Tensor
    covariances: Tensor

    def __getitem__(self, order: Tensor) -> ClassMoments:
        """The classes in another order."""
        return ClassMoments(self.means[order], self.covariances[order])


def class_moments(rows: Tensor, labels: Tensor, classes: int) -> ClassMoments:
    """The mean and the covariance of the rows of each class.

    Args:
        rows: (samples, r).
        labels: a class for each, (samples,).
        classes: how many there are; none may be empty.
    """
    groups = [rows[labels == label] for label in range(classes)]
    means = torch.stack([group.mean(dim=0) for group in groups])
    spreads = [g - m for g, m in zip(groups, means, strict=True)]
    return ClassMoments(means, torch.stack([s.T @ s / s.shape[0] for s in spreads]))


def class_invariants(moments: ClassMoments) -> Tensor:
    """Tables over pairs of classes that no rotation changes, (3, classes, classes), of norm one."""
    means = moments.means
    spread = moments.covariances - moments.covariances.mean(dim=0)  # what they share says nothing
    tables = (
        means @ means.T,
        torch.einsum("aij,bij->ab", spread, spread),
        torch.einsum("aij,bi,bj->ab", spread, means, means),
    )
    return torch.stack([t / t.norm().clamp_min(torch.finfo(t.dtype).tiny) for t in tables])


def matched_classes(
    ours: Tensor, theirs: Tensor, generator: torch.Generator, starts: int = _STARTS
) -> Tensor:
    """The order of classes in which the tables of one side come closest to those of the other.

    Two classes are swapped as long as that brings the tables closer, from several random orders.

    Args:
        ours: `class_invariants` of what is public.
        theirs: those of what was sent.
        generator: draws the orders from which the search starts.
        starts: how many.

    Returns:
        For each of our classes, theirs, (classes,).
    """
    found = [
        _swapped(ours, theirs, torch.randperm(ours.shape[-1], generator=generator))
        for _ in range(starts)
    ]
    return min(found, key=lambda order: _distance(ours, theirs, order))


def _swapped(ours: Tensor, theirs: Tensor, order: Tensor) -> Tensor:
    """An order that no swap of two classes improves."""
    least, better = _distance(ours, theirs, order), True
    while better:
        better = False
        for a, b in torch.combinations(torch.arange(len(order))).tolist():
            swapped = order.clone()
            swapped[[a, b]] = order[[b, a]]
            distance = _distance(ours, theirs, swapped)
            if distance < least * (1 - 1e-9):
                order, least, better = swapped, distance, True
    return order


def _distance(ours: Tensor, theirs: Tensor, order: Tensor) -> float:
    return float((ours - theirs[:, order[:, None], order]).square().sum())


def words(moments: ClassMoments, most: int = _WORDS) -> Tensor:
    """Means of classes, and their images under one and under two covariances: vectors that turn.

    Args:
        moments: of white rows.
        most: longer words are left out where there would be more.

    Returns:
        A tensor (words, r); the order of the words is the same for the same number of classes.
    """
    found = [moments.means]
    for _ in range(2):
        longer = len(moments.means) * found[-1].shape[0]
        if sum(layer.shape[0] for layer in found) + longer > most:
            break
        images = torch.einsum("cij,vj->cvi", moments.covariances, found[-1])
        found.append(images.flatten(0, 1))
    return torch.cat(found)


def recovered_from_classes(
    public: Tensor,
    public_labels: Tensor,
    sent: Tensor,
    sent_labels: Tensor,
    classes: int,
    generator: torch.Generator,
    precision: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """The plain rows of what was sent, and what its labels mean.

    Args:
        public: plain rows of the same kind, (public rows, n).
        public_labels: (public rows,).
        sent: rows that a linear key moved, (rows, n).
        sent_labels: labels in an order of classes of their own, (rows,).
        classes: how many there are, none empty on either side.
        generator: for `matched_classes`.
        precision: of which the rows were rounded.

    Returns:
        Rows (rows, n), and for each sent label the public one, (classes,).
    """
    ours, theirs = principal(public, precision), principal(sent, precision)
    tried = []
    for power in (0, 1):  # whitened, for any linear key; as they are, for an orthogonal one
        here, there = (side.white * side.deviations**power for side in (ours, theirs))
        found = _turned(
            class_moments(here, public_labels, classes),
            class_moments(there, sent_labels, classes),
            generator,
        )
        back = ours.axes.T * ours.deviations ** (1 - power)
        tried.append((found.residual, there @ found.rotation @ back.T, found.order))
    _, rows, order = min(tried, key=lambda each: each[0])
    return ours.mean + rows, order.argsort()


class _Turned(NamedTuple):
    """The rotation between two sides, how far words still are apart, and the order of classes."""

    rotation: Tensor
    residual: float
    order: Tensor


def _turned(ours: ClassMoments, theirs: ClassMoments, generator: torch.Generator) -> _Turned:
    """The order of classes, and the rotation from our coordinates to theirs."""
    order = matched_classes(class_invariants(ours), class_invariants(theirs), generator)
    known, moved = words(ours), words(theirs[order])
    length = known.norm(dim=1, keepdim=True).clamp_min(torch.finfo(known.dtype).tiny)
    known, moved = known / length, moved / length
    rotation = procrustes(known, moved)
    residual = float((known @ rotation.T - moved).norm() / moved.norm())
    return _Turned(rotation, residual, order)


@dataclass(frozen=True, eq=False)
class _Sides:
    """What the attack takes of a job: rows and labels of both sides, and the truth to score it."""

    plain: Tensor
    sent: Tensor
    sent_labels: Tensor
    public: Tensor
    public_labels: Tensor
    classes: int
    precision: torch.dtype

    def run(self, public_labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        return recovered_from_classes(
            self.public,
            public_labels,
            self.sent,
            self.sent_labels,
            self.classes,
            torch.Generator().manual_seed(seed),
            self.precision,
        )

    def shuffled(self, seed: int) -> Tensor:
        """Public labels that have lost their samples."""
        generator = torch.Generator().manual_seed(seed)
        return self.public_labels[torch.randperm(len(self.public_labels), generator=generator)]

    def error(self, recovered: Tensor) -> float:
        return float(row_errors(self.plain, recovered).median())


def attempt(job: Job) -> Attempt:
    """Recover the inputs from labelled public data of the same kind, whatever the linear key.

    It succeeds where the median relative error is at most half of that of guessing the public mean.
    Control: the same public data with shuffled labels.
    """
    sides = _sides(job)
    started = process_time()
    recovered, _ = sides.run(sides.public_labels, job.seed)
    seconds = process_time() - started
    value = sides.error(recovered)
    control = sides.error(sides.run(sides.shuffled(job.seed), job.seed)[0])
    guess = sides.error(sides.public.mean(dim=0).expand_as(sides.plain))
    return Attempt(
        attack="the input key from labelled public data",
        claim="data",
        needs=f"what was sent with labels, and {len(sides.public)} labelled public rows",
        measure="median relative error of samples",
        value=value,
        control=control,
        control_is="public data with shuffled labels",
        succeeded=value <= guess / 2,
        control_failed=control > guess / 2,
        seconds=seconds,
        says=f"Samples come out to {value:.0%}, where the mean of public ones is off by {guess:.0%}"
        " and no pair is known.",
    )


def attempt_labels(job: Job) -> Attempt:
    """Find what permuted labels mean, from labelled public data and under any linear input key.

    It succeeds where 90 % of the samples get their label back. Control: the same public data with
    shuffled labels.
    """
    sides = _sides(job)
    truth = job.targets
    if truth is None or torch.equal(truth, job.view.targets):  # pyright: ignore[reportArgumentType]
        raise NotApplicable("labels are sent as they are")
    truth = truth[truth >= 0]
    truth = _repeated(truth, len(sides.plain))
    started = process_time()
    _, meaning = sides.run(sides.public_labels, job.seed)
    seconds = process_time() - started
    _, blind = sides.run(sides.shuffled(job.seed), job.seed)
    value, control = (
        float((m[sides.sent_labels] == truth).double().mean()) for m in (meaning, blind)
    )
    return Attempt(
        attack="what labels mean, from moments of classes",
        claim="labels",
        needs=f"what was sent with labels, and {len(sides.public)} labelled public rows",
        measure="share of samples whose label is found",
        value=value,
        control=control,
        control_is="public data with shuffled labels",
        succeeded=value >= 0.9,
        control_failed=control < 0.9,
        seconds=seconds,
        says=f"{value:.0%} of the samples get their label back under the key of the inputs.",
    )


def _sides(job: Job) -> _Sides:
    rows = rows_of(job)
    labels, public, known = job.view.targets, job.public, job.public_targets
    if public is None or labels is None or known is None:
        raise NotApplicable("this needs labels, and public inputs with theirs")
    if not (_are_labels(labels, job.inputs) and _are_labels(known, public)):
        raise NotApplicable("this needs one label for each sample, and other targets came")
    require_varying(rows)
    everyone = public_rows(job, rows)
    ours, theirs = (
        _repeated(t >= 0, len(r)) for t, r in ((labels, rows.plain), (known, everyone))
    )  # a negative label says that a sample is ignored
    rows = replace(rows, plain=rows.plain[ours], sent=rows.sent[ours])
    everyone, labels, known = everyone[theirs], labels[labels >= 0], known[known >= 0]
    if not len(labels) or not len(known):
        raise NotApplicable("every sample of a side is ignored")
    classes = int(torch.cat([labels, known]).max()) + 1
    least = min(int(t.bincount(minlength=classes).min()) for t in (labels, known))
    if classes < 2 or least < 2 or min(len(everyone), len(rows.plain)) < 2 * rows.size:
        raise NotApplicable(
            f"there are {classes} classes of {least} samples and more, {len(everyone)} public "
            f"rows and {len(rows.plain)} sent ones; this needs two classes with two samples each, "
            f"and twice as many rows as features ({rows.size}) on both sides"
        )
    return _Sides(
        rows.plain,
        rows.sent,
        _repeated(labels, len(rows.plain)),
        everyone,
        _repeated(known, len(everyone)),
        classes,
        rows.precision,
    )


def _are_labels(targets: Tensor, inputs: Tensor) -> bool:
    """Whether targets are one class index for each sample."""
    integers = targets.dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    return integers and targets.shape == inputs.shape[:1]


def _repeated(labels: Tensor, rows: int) -> Tensor:
    """The label of each sample for all its positions."""
    return labels.repeat_interleave(rows // len(labels))

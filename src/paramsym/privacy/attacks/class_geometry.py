"""The order of classes, from how they lie to each other: no linear key changes that.

Let Y hold the targets one-hot, centred, and X the inputs, centred. The classes, seen from the
inputs, have the Gram matrix

    G = D^{-1/2} Yᵀ P Y D^{-1/2},    P = X X⁺ the projector on the columns of X,  D the counts

which is that of the whitened class means, D^{1/2} M Σ⁺ Mᵀ D^{1/2}. An invertible A on the inputs
leaves the columns of X A^T where they are, and so G: whatever key moves the inputs, a key that
permutes the classes only reorders G, and public data of the same kind have nearly the same G. A
quadratic assignment of C classes reads the order off.
"""

from __future__ import annotations

from time import process_time

import torch
from torch import Tensor

from paramsym.privacy.attacks.attempt import Attempt, NotApplicable
from paramsym.privacy.attacks.chance import beyond_chance
from paramsym.privacy.attacks.class_frequencies import classes_of, counts_of
from paramsym.privacy.attacks.quadratic_matching import PairStatistics, matched
from paramsym.privacy.job import Job

_ROUNDING = 1e-10  # relative singular values below it are rounding of float64, seen through A


def class_gram(inputs: Tensor, targets: Tensor, classes: int) -> Tensor:
    """The Gram matrix of the whitened class means, which no linear map of the inputs changes.

    Args:
        inputs: of shape (samples, n).
        targets: class indices of shape (samples,).
        classes: how many there are.

    Returns:
        A tensor of shape (classes, classes); its eigenvalues are squared canonical correlations of
        inputs and classes. Rows of classes that do not occur are zero.
    """
    counts = counts_of(targets, classes).double()
    member = torch.nn.functional.one_hot(targets.flatten(), classes).double()
    centred = inputs.detach().double() - inputs.detach().double().mean(0)
    # Columns to one length first, so that features on small scales are not taken for rounding.
    lengths = centred.norm(dim=0)
    centred = centred / lengths.where(lengths > 0, lengths.new_ones(()))
    left, sizes, _ = torch.linalg.svd(centred, full_matrices=False)
    left = left[:, sizes > _ROUNDING * sizes.max()]
    seen = left.T @ member / counts.clamp(min=1).sqrt()  # centred already, as the columns are
    return seen.T @ seen


def matched_by_geometry(
    public: tuple[Tensor, Tensor],
    secret: tuple[Tensor, Tensor],
    classes: int,
    generator: torch.Generator,
    restarts: int = 50,
) -> Tensor:
    """Which public class each secret class is, by the Gram matrices of the two sides.

    Args:
        public, secret: inputs of shape (samples, n) and class indices, each; n may differ, and
            the inputs of either side may have been moved by any invertible matrix.
        classes: how many there are.
        generator: draws where the search starts again.
        restarts: how often it does.

    Returns:
        An order of shape (classes,): secret class i is public class order[i].
    """
    # Only angles between classes count: the diagonal says how well a class is told from the rest,
    # and features that only a few samples have fit that to noise.
    known, sent = (
        gram - gram.diagonal().diag()
        for gram in (class_gram(*side, classes) for side in (public, secret))
    )
    # A start that knows neither side's numbering: rows of G, sorted, are the same on both sides.
    costs = torch.cdist(sent.sort(-1).values, known.sort(-1).values).square()[None]
    costs = costs + 1e-12 * torch.rand(costs.shape, generator=generator, dtype=costs.dtype)
    return matched(costs, [PairStatistics(known, sent)], generator, restarts).found.order


# -- the attempt -----------------------------------------------------------------------------------


def attempt(job: Job) -> Attempt:
    """Name the classes of the job's targets by how public classes lie to each other.

    It succeeds where more classes are named rightly than a random order would name but once in a
    thousand times.

    Raises:
        NotApplicable: no labels on both sides, one for each sample; classes that the key leaves in
            place, or too few; inputs that are no real numbers, or not more samples than features.
    """
    labels, sent_labels, true = classes_of(job)
    if job.public is None or not job.inputs.is_floating_point():
        raise NotApplicable("public inputs of real numbers are needed")
    public, sent = job.public.flatten(1), job.view.inputs.flatten(1)
    if labels.shape != public.shape[:1] or sent_labels.shape != sent.shape[:1]:
        raise NotApplicable("labels of whole samples are needed")
    if min(len(public), len(sent)) <= public.shape[1]:
        raise NotApplicable("more samples than features are needed, or any classes fit the inputs")
    classes = len(true)
    generator = torch.Generator().manual_seed(job.seed)
    began = process_time()
    found = matched_by_geometry((public, labels), (sent, sent_labels), classes, generator)
    seconds = process_time() - began
    shuffled = labels[torch.randperm(len(labels), generator=generator)]
    none = matched_by_geometry((public, shuffled), (sent, sent_labels), classes, generator)
    value, control = (float((order == true).double().mean()) for order in (found, none))
    succeeded = beyond_chance(value, classes)
    return Attempt(
        attack="the order of classes from how they lie to each other",
        claim="labels",
        needs="what was sent, and labelled data of the same kind",
        measure="share of classes named rightly",
        value=value,
        control=control,
        control_is="public data whose labels were shuffled",
        succeeded=succeeded,
        control_failed=not beyond_chance(control, classes),
        seconds=seconds,
        says=(
            f"{value:.0%} of {classes} classes are named, whatever linear key moves the inputs"
            + ("." if succeeded else ", which is no more than luck.")
        ),
    )

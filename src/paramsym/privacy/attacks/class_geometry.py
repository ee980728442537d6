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

import torch
from torch import Tensor

from paramsym.privacy.attacks.class_frequencies import counts_of
from paramsym.privacy.attacks.quadratic_matching import PairStatistics, matched

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

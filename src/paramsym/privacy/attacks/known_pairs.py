"""The input key from known pairs: a few samples that the attacker has on both sides.

A key moves every sample by the same map, x̃ = A x, and what is linear is known from a basis. With
known rows X (pairs, n) and what was sent of them, X̃ = X Aᵀ:

    least squares      A P = (X⁺ X̃)ᵀ               any A; P projects on the span of the rows of X
    Procrustes         A P = polar(X̃ᵀ X)            orthogonal A; the best under noise
    matched columns    column j of X̃ is ± column i of X    signed permutations; one generic pair

On the span of the known rows the first two are exact, and off it neither says anything: it is the
span that decides, whatever the method. Two further facts set them apart. Where pairs are known only
roughly, the errors of least squares grow with the condition of X, and those of Procrustes do not.
And an orthogonal A maps what is orthogonal to the span to what is orthogonal to its image, so that
the part of a sample in the span comes out undisturbed.
"""

from __future__ import annotations

from time import process_time

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from paramsym.algebra import SignedPermutation
from paramsym.privacy.job import Job

from .attempt import Attempt, NotApplicable
from .features import map_on_input, pseudo_inverse, relative_rounding, rows_of

_RECOVERED = 1e-3  # relative error of a sample below which it counts as recovered
_MOST = 5000  # rows on which a key that was found is tried


def least_squares(plain: Tensor, sent: Tensor, precision: torch.dtype = torch.float64) -> Tensor:
    """The map of least norm among those that fit the pairs best.

    Args:
        plain: known rows (pairs, n).
        sent: what was sent of each, (pairs, n).
        precision: of which the tensors were rounded; below it a direction counts as not spanned.

    Returns:
        A tensor (n, n): A on the span of the known rows, zero on its complement.
    """
    return (pseudo_inverse(plain, precision) @ sent).T


def procrustes(
    plain: Tensor,
    sent: Tensor,
    precision: torch.dtype = torch.float64,
    *,
    complete: bool = False,
) -> Tensor:
    """The isometry that takes known rows closest to those sent: min ‖X Aᵀ − X̃‖ over AᵀA = P.

    With X = U S Vᵀ cut to what it spans, the minimum is (polar factor of X̃ᵀ X V) Vᵀ.

    Args:
        plain: known rows (pairs, n).
        sent: what was sent of each, (pairs, n).
        precision: as for `least_squares`.
        complete: fill up the complement of the span by some orthogonal map, so that the result is
            orthogonal. Off the span that is a guess, worse than none: it adds a wrong part to what
            is missing.

    Returns:
        A tensor (n, n).

    Source: Schönemann, "A generalized solution of the orthogonal Procrustes problem" (1966).
    """
    _, values, right = torch.linalg.svd(plain, full_matrices=complete)
    rank = int((values > values[:1] * relative_rounding(plain, precision)).sum())
    spanned = right[:rank]  # (rank, n)
    image, _, turn = torch.linalg.svd(sent.T @ (plain @ spanned.T), full_matrices=complete)
    found = image[:, :rank] @ turn @ spanned
    return found + image[:, rank:] @ right[rank:] if complete else found


def matched_columns(plain: Tensor, sent: Tensor) -> Tensor:
    """The signed permutation that takes known rows closest to those sent.

    Columns of both sides are compared up to sign, and assigned at the least sum of squares. One
    pair whose entries differ in absolute value gives all of it; columns that the pairs do not tell
    apart are assigned anyhow.

    Args:
        plain: known rows (pairs, n).
        sent: what was sent of each, (pairs, n).

    Returns:
        A tensor (n, n) with one entry ±1 in each row and column.
    """
    # Differences, not products: two columns of one pair differ by less than a product resolves.
    same, opposite = (_distances(sent.T, sign * plain.T) for sign in (1, -1))  # (n, n)
    rows, columns = linear_sum_assignment(torch.minimum(same, opposite).square().numpy())
    found = torch.zeros_like(same)
    signs = torch.where(same > opposite, -1.0, 1.0).double()[rows, columns]
    found[rows, columns] = signs
    return found


def _distances(a: Tensor, b: Tensor) -> Tensor:
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


def fitted(
    plain: Tensor, sent: Tensor, precision: torch.dtype = torch.float64, noise: float = 0.0
) -> tuple[str, Tensor]:
    """The smallest family that explains the pairs, and its best map: no kind of key is given away.

    Signed permutations are tried first, by whether the columns match; then isometries, by whether
    the inner products of the pairs agree; then all linear maps.

    Args:
        plain: known rows (pairs, n).
        sent: what was sent of each, (pairs, n).
        precision: of which the tensors were rounded.
        noise: to which the pairs are known, relative to their norm.

    Returns:
        The name of the family, and a tensor (n, n).
    """
    near = max(noise, 4 * relative_rounding(plain, precision))
    # Sorted absolute values first: they are cheap, and all columns with all are not.
    apart = plain.abs().sort(dim=1).values - sent.abs().sort(dim=1).values
    if apart.norm() <= near * sent.norm():
        order = matched_columns(plain, sent)
        if (plain @ order.T - sent).norm() <= near * sent.norm():
            return "signed permutation", order
    gram = plain @ plain.T
    if (sent @ sent.T - gram).norm() <= near * gram.norm():
        return "orthogonal", procrustes(plain, sent, precision)
    return "general linear", least_squares(plain, sent, precision)


def undone(found: Tensor, sent: Tensor, precision: torch.dtype = torch.float64) -> Tensor:
    """Rows x = A⁺ x̃ from those sent; what the map does not reach is left out.

    Args:
        found: the map A, (n, n), of any rank.
        sent: rows (samples, n).
        precision: of which the map was rounded.
    """
    return sent @ pseudo_inverse(found, precision).T


def row_errors(plain: Tensor, recovered: Tensor) -> Tensor:
    """How far each row is off, relative to its norm; rows that are zero are left out."""
    norms = plain.norm(dim=1)
    some = norms > 0
    return (recovered - plain).norm(dim=1)[some] / norms[some]


def attempt(job: Job) -> Attempt:
    """Recover samples that the attacker does not know, from as many as there are features.

    Known rows are drawn at random, n of them or half of what there is. It succeeds where the median
    relative error of the others is at most 1e-3. Control: as many pairs of another key, that is
    this one followed by a random signed permutation.
    """
    rows = rows_of(job)
    if rows.plain.shape[0] < 2:
        raise NotApplicable("there is one row, and this needs one to know and one to recover")
    generator = torch.Generator().manual_seed(job.seed)
    order = torch.randperm(rows.plain.shape[0], generator=generator)
    pairs = min(rows.size, order.numel() // 2)
    known, new = order[:pairs], order[pairs : pairs + _MOST]
    plain, sent = rows.plain[known], rows.sent[known]
    started = process_time()
    family, found = fitted(plain, sent, rows.precision)
    recovered = undone(found, rows.sent[new], rows.precision)
    seconds = process_time() - started
    errors = row_errors(rows.plain[new], recovered)
    other = SignedPermutation(rows.size).sample(generator, dtype=torch.float64)
    assert other.order is not None and other.diagonal is not None
    _, wrong = fitted(plain, sent[:, other.order] * other.diagonal, rows.precision)
    apart = row_errors(rows.plain[new], undone(wrong, rows.sent[new], rows.precision))
    value, control = float(errors.median()), float(apart.median())
    matrix = map_on_input(job.key.acting, job.key.element, job.inputs.dim(), job.model.state_dict())
    off = float((found - matrix).norm() / matrix.norm())
    rank = int(torch.linalg.matrix_rank(plain, rtol=relative_rounding(plain, rows.precision)))
    return Attempt(
        attack="the input key from known pairs",
        claim="data",
        needs=f"{pairs} plain rows, with what was sent of them",
        measure="median relative error of other samples",
        value=value,
        control=control,
        control_is="as many pairs of another key",
        succeeded=value <= _RECOVERED,
        control_failed=control > _RECOVERED,
        seconds=seconds,
        says=f"{pairs} known rows span {rank} of {rows.size} features and show a key of the kind "
        f"{family}: other samples come out to {value:.1e}, the worst to {float(errors.max()):.1e}, "
        f"and A itself to {off:.1e}.",
    )

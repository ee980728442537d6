"""What an orthogonal key leaves plain: inner products, hence norms, distances and neighbours.

    X̃ X̃ᵀ = X Aᵀ A Xᵀ = X Xᵀ            for orthogonal A, to rounding and without any search
    X̃ (X̃ᵀX̃)⁺ X̃ᵀ = X (XᵀX)⁺ Xᵀ          for every invertible A

The second line is the same statement after whitening: the Mahalanobis distances, and the neighbours
and clusters by them, are plain for a general linear key as well. Signed permutations are
orthogonal. Whatever is a function of the Gram matrix (kernel methods, clustering, duplicates,
membership of a known group of samples) the receiver has as if the data were plain.
"""

from __future__ import annotations

from time import process_time

import torch
from torch import Tensor

from paramsym.algebra import GeneralLinear
from paramsym.privacy.job import Job

from .attempt import Attempt, NotApplicable
from .features import Rows, principal, require_varying, rows_of

_SAME = 1e-9  # relative; distances that are closer tie
_MOST = 2000  # samples, of which all pairs are compared
_PLAIN = 1e-4  # below that relative difference inner products count as plain
_SHARED = 0.99  # share of neighbours from which on they count as plain
_APART = 0x5DEECE66D
_STRETCH = 4.0  # of the general linear keys of the control: condition numbers of about ten


def gram_difference(plain: Tensor, sent: Tensor) -> float:
    """The largest difference of two Gram matrices, relative to the largest entry of the first.

    Args:
        plain: rows (samples, n).
        sent: rows (samples, m), one for each.
    """
    gram = plain @ plain.T
    return float((sent @ sent.T - gram).abs().max() / gram.abs().max())


def nearest_neighbours(rows: Tensor) -> Tensor:
    """For each row the number of the nearest other one, (samples,)."""
    return _distances(rows).argmin(dim=1)


def shared_neighbours(plain: Tensor, sent: Tensor) -> float:
    """The share of samples whose nearest neighbour among those sent is one among the plain ones.

    Args:
        plain: rows (samples, n); neighbours that tie there are all right.
        sent: rows (samples, m), one for each.
    """
    true = _distances(plain)
    found = true.gather(1, nearest_neighbours(sent)[:, None])[:, 0]
    return float((found <= true.amin(dim=1) * (1 + _SAME)).double().mean())


def neighbour_accuracy(rows: Tensor, labels: Tensor) -> float:
    """How often the nearest other row bears the same label; names of labels do not matter."""
    return float((labels[nearest_neighbours(rows)] == labels).double().mean())


def whitened(rows: Tensor, precision: torch.dtype = torch.float64) -> Tensor:
    """Centred rows with unit covariance, in as many coordinates as vary: the same for every key.

    Args:
        rows: (samples, n).
        precision: of which the rows were rounded; directions that vary less are left out.

    Returns:
        A tensor (samples, rank), known up to one rotation, which its inner products do not see.
    """
    return principal(rows, precision).white


def own_keys(rows: Tensor, generator: torch.Generator) -> Tensor:
    """Each row moved by a uniform orthogonal map of its own: of the row only the norm is left.

    The control in which attacks on the geometry must fail. A row's image under such a map is
    uniform on the sphere, and is drawn there.
    """
    direction = torch.randn(rows.shape, generator=generator, dtype=rows.dtype)
    return direction * (rows.norm(dim=1) / direction.norm(dim=1))[:, None]


def attempt(job: Job) -> Attempt:
    """Read the inner products of the plain inputs off those that were sent.

    It succeeds where the largest relative difference is at most 1e-4; against a general linear key
    it does not, and says so. Control: a general linear key of condition about ten.
    """
    rows = rows_of(job, _MOST)
    plain, sent = _by_sample(rows, rows.plain), _by_sample(rows, rows.sent)
    started = process_time()
    value = gram_difference(plain, sent)
    seconds = process_time() - started
    dense = GeneralLinear(rows.size).sample(_seeded(job), _STRETCH, dtype=torch.float64).matrix
    assert dense is not None
    control = gram_difference(plain, _by_sample(rows, rows.plain @ dense.T))
    holds = value <= _PLAIN
    return Attempt(
        attack="inner products of inputs",
        claim="data",
        needs="what was sent",
        measure="largest relative difference of Gram matrices",
        value=value,
        control=control,
        control_is="a general linear key",
        succeeded=holds,
        control_failed=control > _PLAIN,
        seconds=seconds,
        says="Norms, distances and angles of all inputs are plain to whoever receives them."
        if holds
        else "The key changes inner products; Mahalanobis distances it does not change.",
    )


def attempt_neighbours(job: Job) -> Attempt:
    """Find the nearest neighbour of each plain sample among those that were sent.

    It succeeds where 99 % of them are right. Control: a key of its own for each row, of which only
    the norm is left.
    """
    rows = rows_of(job, _MOST)
    plain, sent = _by_sample(rows, rows.plain), _by_sample(rows, rows.sent)
    started = process_time()
    value = shared_neighbours(plain, sent)
    seconds = process_time() - started
    control = shared_neighbours(plain, _by_sample(rows, own_keys(rows.plain, _seeded(job))))
    return Attempt(
        attack="nearest neighbours of inputs",
        claim="data",
        needs="what was sent",
        measure="share of nearest neighbours that are right",
        value=value,
        control=control,
        control_is="a key of its own for each sample",
        succeeded=value >= _SHARED,
        control_failed=control < _SHARED,
        seconds=seconds,
        says=f"{value:.0%} of the samples have the neighbour that they have plainly"
        f"{_labels(job, sent)}.",
    )


def attempt_whitened(job: Job) -> Attempt:
    """Read the Mahalanobis inner products of the plain inputs off those that were sent.

    They are plain for every key that acts linearly. It succeeds where the largest relative
    difference is at most 1e-4. Control: a key of its own for each row.
    """
    rows = rows_of(job, _MOST)
    if rows.plain.shape[0] < 2 * rows.size:
        raise NotApplicable(
            f"{rows.plain.shape[0]} rows of {rows.size} features are all alike once whitened, and "
            "this needs twice as many rows as features"
        )
    require_varying(rows)
    plain = _by_sample(rows, whitened(rows.plain, rows.precision))
    started = process_time()
    sent = _by_sample(rows, whitened(rows.sent, rows.precision))
    seconds = process_time() - started
    value = gram_difference(plain, sent)
    apart = whitened(own_keys(rows.plain, _seeded(job)), rows.precision)
    control = gram_difference(plain, _by_sample(rows, apart))
    holds = value <= _PLAIN
    return Attempt(
        attack="whitened inner products of inputs",
        claim="data",
        needs="what was sent",
        measure="largest relative difference of Gram matrices after whitening",
        value=value,
        control=control,
        control_is="a key of its own for each sample",
        succeeded=holds,
        control_failed=control > _PLAIN,
        seconds=seconds,
        says=f"Mahalanobis distances of all inputs are plain, whatever the key{_labels(job, sent)}."
        if holds
        else "Whitening does not undo the key to rounding.",
    )


def _by_sample(rows: Rows, features: Tensor) -> Tensor:
    """All positions of a sample in one row."""
    return features.reshape(rows.samples, -1)


def _seeded(job: Job) -> torch.Generator:
    # away from the seeds that data are made with: the same numbers would be no control
    return torch.Generator().manual_seed((job.seed + _APART) % (1 << 63))


def _labels(job: Job, sent: Tensor) -> str:
    """What neighbours say of labels that go along, whatever the names of classes are."""
    labels = job.view.targets
    if labels is None or labels.is_floating_point() or labels.dim() != 1:
        return ""
    labels = labels[:: -(-labels.shape[0] // _MOST)]
    return f"; nearest neighbours share the label for {neighbour_accuracy(sent, labels):.0%}"


def _distances(rows: Tensor) -> Tensor:
    """Distances of all pairs, infinite of each to itself; by differences, which ties survive."""
    found = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
    return found.fill_diagonal_(torch.inf)

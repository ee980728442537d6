"""What an orthogonal key leaves plain: inner products, hence norms, distances and neighbours.

    X̃ X̃ᵀ = X Aᵀ A Xᵀ = X Xᵀ            for orthogonal A, to rounding and without any search
    X̃ (X̃ᵀX̃)⁺ X̃ᵀ = X (XᵀX)⁺ Xᵀ          for every invertible A

The second line is the same statement after whitening: the Mahalanobis distances, and the neighbours
and clusters by them, are plain for a general linear key as well. Signed permutations are
orthogonal. Whatever is a function of the Gram matrix (kernel methods, clustering, duplicates,
membership of a known group of samples) the receiver has as if the data were plain.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .features import relative_rounding

_SAME = 1e-9  # relative; distances that are closer tie


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
    left, values, _ = torch.linalg.svd(rows - rows.mean(dim=0), full_matrices=False)
    rank = int((values > values[:1] * relative_rounding(rows, precision)).sum())
    return left[:, :rank] * rows.shape[0] ** 0.5


def own_keys(rows: Tensor, generator: torch.Generator) -> Tensor:
    """Each row moved by a uniform orthogonal map of its own: of the row only the norm is left.

    The control in which attacks on the geometry must fail. A row's image under such a map is
    uniform on the sphere, and is drawn there.
    """
    direction = torch.randn(rows.shape, generator=generator, dtype=rows.dtype)
    return direction * (rows.norm(dim=1) / direction.norm(dim=1))[:, None]


def _distances(rows: Tensor) -> Tensor:
    """Distances of all pairs, infinite of each to itself; by differences, which ties survive."""
    found = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
    return found.fill_diagonal_(torch.inf)

"""The change of basis that balances two Gram matrices: their geometric mean, in closed form."""

from __future__ import annotations

import torch
from torch import Tensor

_SHARE = 1e-6  # of the largest eigenvalue, added to all on the way to balance
_ROUNDING = 1e-11  # eigenvalues below this share of the largest are zero: Gram matrices are squares


def balancing_basis(covariant: Tensor, dual: Tensor) -> tuple[Tensor, int]:
    """The g with least tr(g G gᵀ) + tr(g⁻ᵀ G′ g⁻¹), copy by copy.

    With X = gᵀg the cost tr(X G) + tr(X⁻¹ G′) is convex along geodesics, and least at the geometric
    mean X = G^(−½) (G^½ G′ G^½)^½ G^(−½), where g G gᵀ = g⁻ᵀ G′ g⁻¹; g = X^½. If both matrices are
    singular, and the range of one meets the null space of the other in zero alone, the same holds
    between the ranges, after a change of basis that parts them from the null spaces.

    Args:
        covariant: G, of shape (copies…, n, n).
        dual: G′, of the same shape.

    Returns:
        g, of the same shape, and 0; or, where no g attains the infimum, the number of null
        directions along which the cost only falls, over all copies, with g the identity in those
        copies.

    Source: Bhatia, Positive Definite Matrices (2007), chapter 4.
    """
    size = covariant.shape[-1]
    flat = zip(covariant.reshape(-1, size, size), dual.reshape(-1, size, size), strict=True)
    found = [_one(g.double(), h.double()) for g, h in flat]
    return torch.stack([g for g, _ in found]).reshape(covariant.shape), sum(n for _, n in found)


def approaching_basis(covariant: Tensor, dual: Tensor) -> Tensor:
    """The balancing basis of the two matrices with 1e-6 of their norms added to the diagonal.

    It stretches no direction by more than about 1e3 against another, so that what is null up to
    rounding stays so, and brings closer what is only far from balance.

    Args:
        covariant: G, of shape (copies…, n, n).
        dual: G′, of the same shape.
    """

    def raised(matrix: Tensor) -> Tensor:
        matrix = matrix.double()
        largest = torch.linalg.matrix_norm(matrix, 2)[..., None, None].clamp(min=1e-300)
        return matrix + _SHARE * largest * torch.eye(matrix.shape[-1], dtype=torch.float64)

    return balancing_basis(raised(covariant), raised(dual))[0]


def _regular(g: Tensor, h: Tensor) -> Tensor | None:
    """X^½ where both matrices are well away from singular ones, by two factors and an SVD.

    With G = A Aᵀ, G′ = B Bᵀ and Bᵀ A = U S Vᵀ, the mean is X = A⁻ᵀ V S Vᵀ A⁻¹. An eigenvalue of G
    is at least 1 / ‖A⁻¹‖².
    """
    (a, failed), (b, fails) = torch.linalg.cholesky_ex(g), torch.linalg.cholesky_ex(h)
    if int(failed) or int(fails):
        return None
    eye = torch.eye(len(g), dtype=g.dtype)
    back, other = (torch.linalg.solve_triangular(x, eye, upper=False) for x in (a, b))
    for root, inverse in ((a, back), (b, other)):
        if not 10 * _ROUNDING * float(root.square().sum() * inverse.square().sum()) < 1:
            return None
    _, values, vectors = torch.linalg.svd(b.mT @ a)
    half = values.sqrt()[:, None] * vectors @ back
    return _root(half.mT @ half)


def _one(g: Tensor, h: Tensor) -> tuple[Tensor, int]:
    regular = _regular(g, h)
    if regular is not None:
        return regular, 0
    range_g, null_g = _parted(g)
    range_h, null_h = _parted(h)
    both = range_h.mT @ range_g
    shared = int((torch.linalg.svdvals(both) > 1e-6).sum()) if both.numel() else 0
    lost = range_g.shape[1] + range_h.shape[1] - 2 * shared
    if lost:
        return torch.eye(len(g), dtype=torch.float64), lost
    if not shared:  # nothing stands on these coordinates
        return torch.eye(len(g), dtype=torch.float64), 0
    if not null_g.shape[1]:
        return _root_of_mean(g, h), 0
    parting = torch.cat([range_h.mT, null_g.mT])  # rows: zero on null(G′), then zero on range(G)
    back = torch.linalg.inv(parting)
    first = _root_of_mean(
        (parting @ g @ parting.mT)[:shared, :shared], (back.mT @ h @ back)[:shared, :shared]
    )
    rest = torch.eye(len(g) - shared, dtype=torch.float64)
    return torch.block_diag(first, rest) @ parting, 0


def _parted(g: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal columns that span the range of a Gram matrix, and its null space."""
    values, vectors = torch.linalg.eigh(g)
    kept = values > _ROUNDING * max(float(values[-1]), 1e-300)
    return vectors[:, kept], vectors[:, ~kept]


def _root_of_mean(g: Tensor, h: Tensor) -> Tensor:
    """X^½ as in `_regular`, with factors by eigenvectors: no product of the two is formed, in which
    directions that are small in both would drown."""
    (a, back), (b, _) = _factor(g), _factor(h)
    _, values, vectors = torch.linalg.svd(b.mT @ a)
    _, sizes, axes = torch.linalg.svd(values.sqrt()[:, None] * vectors @ back)
    return (axes.mT * sizes) @ axes


def _factor(g: Tensor) -> tuple[Tensor, Tensor]:
    """A with A Aᵀ = G, and its inverse."""
    values, vectors = torch.linalg.eigh(g)
    roots = values.clamp(min=1e-3 * _ROUNDING * float(values[-1])).sqrt()
    return vectors * roots, (vectors / roots).mT


def _root(x: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh((x + x.mT) / 2)
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.mT

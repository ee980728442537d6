"""What an evaluator finds out from what one way sends to it; each beside a guess and a control.

Errors are medians over queries of ‖x̂ − x‖ / ‖x‖. Everybody has the public inputs, and whoever has
nothing else guesses their mean.
"""

from __future__ import annotations

import torch
from privacy_ways import State
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from paramsym.privacy.attacks.class_moments import recovered_from_classes

PENALTIES = (0.0, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
WHITENED = 1e-5  # of the largest singular value, below which a direction is rounding


def error(estimate: Tensor, x: Tensor) -> float:
    return float(((estimate - x).norm(dim=1) / x.norm(dim=1)).median())


def with_one(rows: Tensor) -> Tensor:
    return torch.cat([rows.double(), torch.ones(len(rows), 1, dtype=torch.float64)], 1)


def fitted(seen: Tensor, x: Tensor, penalty: float) -> Tensor:
    """M that minimises ‖seen M − x‖² + penalty ‖seen‖² ‖M‖² / columns; for 0 the shortest."""
    if not penalty:
        return torch.linalg.pinv(seen, rtol=1e-7) @ x
    gram = seen @ seen.T
    ridge = penalty * gram.diagonal().sum() / seen.shape[1]
    return seen.T @ torch.linalg.solve(gram + ridge * torch.eye(len(gram)).double(), x)


def known_pairs(seen: Tensor, x: Tensor, asked: Tensor) -> Tensor:
    """x̂ of other queries by a linear map through known pairs.

    The penalty is chosen on every fifth pair, so that the attack does what it can where the pairs
    are not linear, too.
    """
    rows, x = with_one(seen), x.double()
    held = torch.arange(len(rows)) % 5 == 0
    best = min(
        PENALTIES, key=lambda p: error(rows[held] @ fitted(rows[~held], x[~held], p), x[held])
    )
    return with_one(asked) @ fitted(rows, x, best)


def denoised(seen: Tensor, public: Tensor, strength: float) -> Tensor:
    """The best linear estimate of x from x + σ noise, by mean and covariance of public inputs."""
    if not strength:
        return seen.double()
    public = public.double()
    mean, covariance = public.mean(0), torch.cov(public.T)
    noise = strength**2 * torch.eye(len(mean)).double()
    return mean + (seen.double() - mean) @ torch.linalg.solve(covariance + noise, covariance)


def hidden_moves_undone(before: State, after: State) -> tuple[Tensor, Tensor]:
    """W₁A⁻¹ from the first matrix of parameters that came back, where the output is held fixed.

    W₂″ = W₂ Λ⁻¹Πᵀ has the columns of W₂ in another order and of other lengths. Columns that point
    the same way belong together, and their lengths give the scales.

    Returns:
        W₁, and W₁A⁻¹.
    """
    w1, _, w2, _ = (value.double() for value in before.values())
    moved1, _, moved2, _ = (value.double() for value in after.values())
    alike = (w2 / w2.norm(dim=0)).T @ (moved2 / moved2.norm(dim=0))
    order = torch.from_numpy(linear_sum_assignment(alike.numpy(), maximize=True)[1])
    scales = w2.norm(dim=0) / moved2[:, order].norm(dim=0)
    return w1, moved1[order] / scales[:, None]


def by_owner(before: State, after: State, seen: Tensor) -> Tensor:
    """x̂ by the owner of θ: A⁻¹ = W₁⁺ (W₁A⁻¹), and x = A⁻¹ x̃; the part of x that W₁ sees."""
    w1, moved = hidden_moves_undone(before, after)
    return seen.double() @ (torch.linalg.pinv(w1) @ moved).T


def by_labels(seen: Tensor, labels: Tensor, public: Tensor, public_labels: Tensor) -> Tensor:
    """x̂ from labelled public inputs, where queries come with labels in another order of classes."""
    width = public.shape[1]
    columns = torch.linspace(0, seen.shape[1] - 1, width).long()  # of a ciphertext, as many bytes
    classes = int(public_labels.max()) + 1
    generator = torch.Generator().manual_seed(0)
    names = torch.randperm(classes, generator=generator)
    return recovered_from_classes(
        public.double(), public_labels, seen.double()[:, columns], names[labels], classes,
        generator, torch.float32,
    )[0]  # fmt: skip


def gram(seen: Tensor, x: Tensor) -> float:
    """‖G̃ − G‖ / ‖G‖ of the inner products between centred queries, rescaled to fit best."""
    plain, there = (v.double() - v.double().mean(0) for v in (x, seen))
    plain, there = plain @ plain.T, there @ there.T
    scale = (plain * there).sum() / (there * there).sum()
    return float((scale * there - plain).norm() / plain.norm())


def whitened(seen: Tensor) -> Tensor:
    """Coordinates of unit covariance: equal up to a rotation for all bases of the inputs."""
    values = seen.double() - seen.double().mean(0)
    _, s, v = torch.linalg.svd(values, full_matrices=False)
    kept = s > s[0] * WHITENED
    return values @ v[kept].T / s[kept]


def neighbours(seen: Tensor, labels: Tensor, whiten: bool = True) -> float:
    """Share of queries whose nearest neighbour among those sent is of the same class.

    By distances as sent or, if `whiten`, after whitening, whichever shows more: the latter is what
    is left under a dense key.
    """
    found = []
    for rows in (seen.double(), whitened(seen)) if whiten else (seen.double(),):
        distances = torch.cdist(rows, rows).fill_diagonal_(torch.inf)
        found.append(float((labels[distances.argmin(1)] == labels).double().mean()))
    return max(found)

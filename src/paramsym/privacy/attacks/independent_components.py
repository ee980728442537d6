"""Blind recovery: the sources of a linear mixing, from nothing but what was sent.

Where the entries of x are independent and at most one is Gaussian, x̃ = A x determines A up to the
order, the signs and the scales of its columns. No pair, no parameter and no public sample is
needed. After whitening what is left is a rotation W, and its rows are the directions along which
the samples are furthest from Gaussian. The symmetric fixed point iteration finds them together:

    W ← E[g(W z) zᵀ] − diag(E[g′(W z)]) W,    W ← (W Wᵀ)^(−1/2) W,    g = tanh.

Real features are seldom independent. The components are a property of the data nevertheless, and
follow it: those of x̃ are those of x, whatever A. For images they are strokes and edges, not
pixels; who has public samples of the same kind knows what these look like.

Gaussian features give nothing beyond their covariance, for every rotation of whitened ones is as
good as another; that is the control.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import process_time

import torch
from scipy.linalg import svd
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from paramsym.algebra import GeneralLinear
from paramsym.privacy.job import Job

from .attempt import Attempt, NotApplicable
from .features import principal, require_varying, rows_of

_FOUND = 0.95  # mean correlation from which on features count as found
_MOST = 20_000  # rows that are used
_WIDEST = 256  # features; a step costs rows · features²
_STEPS, _TOLERANCE = 300, 1e-6
_STRETCH = 4.0  # of the key of the control: a condition number of about ten


@dataclass(frozen=True)
class Components:
    """What `independent_components` found: sources = (rows − mean) · unmixingᵀ.

    `mixing` (n, components) takes sources back to rows; `change` is how far the last step still
    turned a direction, 1 − |cos|, and `settled` whether that was below the tolerance.
    """

    unmixing: Tensor
    mixing: Tensor
    mean: Tensor
    steps: int
    change: float
    settled: bool

    def sources(self, rows: Tensor) -> Tensor:
        """Components of rows (samples, n), of unit variance on those that they were found on."""
        return (rows - self.mean) @ self.unmixing.T


def independent_components(
    rows: Tensor,
    generator: torch.Generator,
    *,
    steps: int = 500,
    tolerance: float = 1e-8,
    precision: torch.dtype = torch.float64,
    start: Tensor | None = None,
) -> Components:
    """The directions in which rows are furthest from Gaussian, all at once.

    Args:
        rows: (samples, n), mixed.
        generator: draws the rotation from which the iteration starts.
        steps: at most so many.
        tolerance: settled when no direction turns by more, in 1 − |cos|.
        precision: of which the rows were rounded; directions that vary less are left out.
        start: another start, (components, components).

    Raises:
        ValueError: there are fewer than two rows, or rows that are all the same.

    Source: Hyvärinen, "Fast and robust fixed-point algorithms for independent component analysis"
    (1999).
    """
    found = principal(rows, precision)
    rank = len(found.deviations)
    if not rank:
        raise ValueError(
            f"independent_components(rows, …): rows of shape {tuple(rows.shape)} that do not vary "
            "came, and two different samples at least were expected. Pass more samples."
        )
    turn = (
        torch.randn(rank, rank, generator=generator, dtype=rows.dtype) if start is None else start
    )
    turn, change, taken = _orthonormal(turn), 1.0, 0
    while taken < steps and change > tolerance:
        new = _orthonormal(_step(turn, found.white))
        change = float((1 - (new * turn).sum(dim=1).abs()).abs().max())
        turn, taken = new, taken + 1
    return Components(
        turn @ found.whitening,
        found.colouring @ turn.T,
        found.mean,
        taken,
        change,
        change <= tolerance,
    )


def _step(turn: Tensor, white: Tensor) -> Tensor:
    """One step of the fixed point iteration for all directions."""
    squashed = torch.tanh(white @ turn.T)  # (samples, rank)
    slope = (1 - squashed.square()).mean(dim=0)
    return squashed.T @ white / white.shape[0] - slope[:, None] * turn


def _orthonormal(matrix: Tensor) -> Tensor:
    """The nearest orthogonal matrix, (M Mᵀ)^(−1/2) M."""
    try:
        left, _, right = torch.linalg.svd(matrix)
    except RuntimeError:  # divide and conquer: now and then only iteration converges
        found = svd(matrix.numpy(force=True), lapack_driver="gesvd")
        left, _, right = (torch.from_numpy(part).to(matrix) for part in found)
    return left @ right


def correlations(a: Tensor, b: Tensor) -> Tensor:
    """Correlations of columns of two sets of rows, (n, m); zero for those that are constant."""
    a, b = (x - x.mean(dim=0) for x in (a, b))
    norms = a.norm(dim=0)[:, None] * b.norm(dim=0)[None]
    return torch.where(norms > 0, a.T @ b / norms.clamp_min(torch.finfo(a.dtype).tiny), 0.0)


def matched_correlation(plain: Tensor, recovered: Tensor) -> float:
    """The mean absolute correlation of features with their components, each matched to one other.

    Blind to order, sign and scale, as the recovery is: 1 says that every feature is found. Features
    that do not vary are left out.

    Args:
        plain: rows (samples, n).
        recovered: components (samples, m) of the same samples.
    """
    varying = plain[:, plain.std(dim=0) > 0]
    found = correlations(varying, recovered).abs()
    rows, columns = linear_sum_assignment(found.numpy(), maximize=True)
    return float(found[rows, columns].sum() / max(varying.shape[1], 1))


def amari_index(unmixing: Tensor, mixing: Tensor) -> float:
    """How far W A is from a scaled permutation: 0 for one, near 1 for a matrix without structure.

    With r = |W A|, each row and column sum is set against its largest entry:

        (1 / 2n(n−1)) · (Σ_i (Σ_j r_ij / max_j r_ij − 1) + Σ_j (Σ_i r_ij / max_i r_ij − 1)).

    Args:
        unmixing: W, (n, n).
        mixing: A, (n, n).

    Source: Amari, Cichocki and Yang, "A new learning algorithm for blind signal separation" (1996).
    """
    ratio = (unmixing @ mixing).abs()
    size = ratio.shape[0]
    rows = (ratio / ratio.amax(dim=1, keepdim=True)).sum(dim=1) - 1
    columns = (ratio / ratio.amax(dim=0, keepdim=True)).sum(dim=0) - 1
    return float((rows.sum() + columns.sum()) / (2 * size * (size - 1)))


def gaussian_twin(rows: Tensor, generator: torch.Generator) -> Tensor:
    """Gaussian rows of the same mean and covariance: the control in which blind recovery fails."""
    found = principal(rows)
    normal = torch.randn(found.white.shape, generator=generator, dtype=rows.dtype)
    return found.mean + normal @ found.colouring.T


def attempt(job: Job) -> Attempt:
    """Recover the features of the inputs from what was sent, and from nothing else.

    It succeeds where the components correlate with the features at 0.95 on average, each matched to
    one other. Control: Gaussian inputs of the same covariance, under a general linear key.

    Raises:
        NotApplicable: there is one feature, more than 256, too few rows for statistics, or all
            are one.
    """
    rows = rows_of(job)
    if not 1 < rows.size <= _WIDEST:
        raise NotApplicable(f"there are {rows.size} features, and this takes 2 to {_WIDEST}")
    if rows.plain.shape[0] < 4 * rows.size:
        raise NotApplicable(
            f"{rows.plain.shape[0]} rows came, and {rows.size} features need four times as many"
        )
    require_varying(rows)
    plain, sent = rows.some(_MOST)
    generator = torch.Generator().manual_seed(job.seed)
    started = process_time()
    found = independent_components(
        sent, generator, steps=_STEPS, tolerance=_TOLERANCE, precision=rows.precision
    )
    recovered = found.sources(sent)
    seconds = process_time() - started
    value = matched_correlation(plain, recovered)
    twin = gaussian_twin(plain, generator)
    dense = GeneralLinear(rows.size).sample(generator, _STRETCH, dtype=torch.float64).matrix
    assert dense is not None
    hidden = twin @ dense.T
    blind = independent_components(hidden, generator, steps=found.steps, precision=rows.precision)
    control = matched_correlation(twin, blind.sources(hidden))
    holds = value >= _FOUND
    return Attempt(
        attack="independent components of inputs",
        claim="data",
        needs="what was sent",
        measure="mean correlation of features with components",
        value=value,
        control=control,
        control_is="Gaussian inputs of the same covariance",
        succeeded=holds,
        control_failed=control < _FOUND,
        seconds=seconds,
        says="The features are independent, and come out up to order, sign and scale."
        if holds
        else "The features depend on one another: components of the data come out, not features.",
    )

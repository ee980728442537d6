"""Finite elements exp(tM) of what leaves a function unchanged to first order.

⟨∇F, Mθ⟩ = 0 almost everywhere says that F is constant along exp(tM)θ only if F is continuous and
∇F is its derivative. Where a function jumps, as a threshold does, or hides a factor from autograd,
the constraint holds and the function changes. So a random combination of all directions is followed
at fresh weights and inputs, forwards and backwards. If that fails, each field of a sparse basis is
followed by itself, and those that pass once more together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..algebras.sparse_basis import sparse_rows
from .ansatz import Ansatz
from .generators import Generator
from .noise import noise
from .sampling import Points, Sampler

_COMBINATIONS, _SAMPLES = 4, 24  # each of which goes both ways
_WIDE, _SPREAD = 64, 32.0  # further samples, of large inputs
_MOVE = (0.2, 1.0)  # ‖tMθ‖ / ‖θ‖ over the tensors that move, to first order
_LONGEST = 8.0  # t‖M‖ at most
_STEP = 4.0  # t‖M‖ of one series: its largest terms lose two digits
_ROUNDING = 1e-18  # of θ: the terms that are left out
_CHANGE, _RESIDUALS = (
    1e-8,
    1000.0,
)  # relative change of F that counts as none; in units of residuals
_NOISES, _DEAF = 64, 1e-2  # in units of rounding; an output of more rounding says nothing
_ROUNDINGS = 8  # of an output, where differences show less
_HEARD = 0.25  # of the samples must say something
_STOPS, _LIKE = 9, 32  # samples on the way of an element that failed, and others of its inputs
_FOLLOWED = 3  # of those that failed in one batch
_SPARSE = 1e-7


@dataclass(frozen=True)
class Finite:
    """Which directions a function does not change along, by finite elements.

    Attributes:
        kept: orthonormal columns, whose combinations keep the function.
        lost: orthonormal columns beside them: zero constraints, but a function that changes.
        change: the largest relative change of the function along kept ones.
        broken: and along lost ones.
        samples: elements that were tried.
    """

    kept: Tensor
    lost: Tensor
    change: float
    broken: float
    samples: int


@dataclass(frozen=True)
class Trial:
    """Finite elements of random combinations of some directions.

    Attributes:
        change: the largest relative change of F; infinite if it cannot be said, since at most
            samples F is no number or all rounding.
        limit: the change that counts as none.
        samples: how many elements were tried.
        suspects: samples on the way where F changed; None if it did not.
    """

    change: float
    limit: float
    samples: int
    suspects: Points | None

    @property
    def passed(self) -> bool:
        return self.change <= self.limit


def finite(sampler: Sampler, ansatz: Ansatz, vectors: Tensor, whole: Trial) -> Finite:
    """The directions, columns of coefficients, whose finite elements keep the function.

    Args:
        sampler: of weights and inputs.
        ansatz: of the coefficients.
        vectors: (unknowns, k), orthonormal.
        whole: the trial of all of them together.
    """
    none = vectors[:, :0]
    if whole.passed:
        return Finite(vectors, none, whole.change, 0.0, whole.samples)
    basis = torch.from_numpy(sparse_rows(vectors.T.contiguous().numpy(), _SPARSE)).T
    trials = [trial(sampler, ansatz, basis[:, [k]], whole.limit) for k in range(basis.shape[1])]
    broken = max([whole.change, *(t.change for t in trials)])
    good = [k for k, one in enumerate(trials) if one.passed]
    # sparse rows are rounded to fractions: back into the span, which is known to more digits
    kept = _orthonormal(vectors @ (vectors.T @ basis[:, good]))
    together = trial(sampler, ansatz, kept, whole.limit)
    kept = kept if together.passed else none
    samples = sum(t.samples for t in (whole, *trials, together))
    change = together.change if kept.shape[1] else 0.0
    return Finite(kept, _beside(vectors, kept), change, broken, samples)


def _orthonormal(columns: Tensor) -> Tensor:
    return torch.linalg.qr(columns).Q if columns.shape[1] else columns


def _beside(vectors: Tensor, kept: Tensor) -> Tensor:
    """An orthonormal basis of the part of a span that is orthogonal to some of its vectors."""
    left = vectors - kept @ (kept.T @ vectors)
    basis, _, _ = torch.linalg.svd(left, full_matrices=False)
    return basis[:, : vectors.shape[1] - kept.shape[1]]


def limit_for(residual: float, threshold: float | None) -> float:
    """The change of F that counts as none for generators of this residual.

    With a threshold of the user's, near-symmetries are asked for: changes are told, and none is
    too large.
    """
    return max(_CHANGE, _RESIDUALS * residual) if threshold is None else math.inf


def trial(sampler: Sampler, ansatz: Ansatz, vectors: Tensor, limit: float) -> Trial:
    """How much F changes along finite elements of random combinations of directions."""
    count, changes, suspects = vectors.shape[1], [], []
    for _ in range(min(count, _COMBINATIONS)):
        weights = torch.randn(count, generator=sampler.generator, dtype=torch.float64)
        field = ansatz.generator(vectors @ (weights / weights.norm()), 0.0, 0.0)
        for samples, spread in ((_SAMPLES, 1.0), (_WIDE, _SPREAD)):
            sampler.spread = spread
            points = sampler.points(samples)
            sampler.spread = 1.0
            moves = _moves(samples, sampler.generator)
            found = _changes(sampler, field, points, moves)
            changes.append(found)
            off = found > limit
            some = off.nonzero()[:_FOLLOWED, 0]
            if len(some):
                suspects += _on_the_way(sampler, field, points.among(some), moves[some])
    if not changes:
        return Trial(0.0, limit, 0, None)
    every = torch.cat(changes)
    heard = every[every.isfinite()]
    change = math.inf if len(heard) < _HEARD * len(every) else float(heard.max())
    return Trial(change, limit, len(every), Points.joined(suspects) if suspects else None)


def _moves(count: int, generator: torch.Generator) -> Tensor:
    """How far each sample moves, every other one backwards."""
    low, high = _MOVE
    drawn = torch.rand(count, generator=generator, dtype=torch.float64)
    drawn = low + (high - low) * drawn
    drawn[1::2] *= -1
    return drawn


def _on_the_way(sampler: Sampler, field: Generator, points: Points, moves: Tensor) -> list[Points]:
    """Samples at which a function that is continuous must have changed, and inputs like these."""
    found = [
        points.moved(flowed(field, points.weights, share * moves))
        for share in torch.linspace(0.0, 1.0, _STOPS).tolist()
    ]
    some = torch.randint(len(points), (_LIKE,), generator=sampler.generator)
    drawn = sampler.points(_LIKE)
    return [*found, Points(drawn.weights, points.among(some).leaves, drawn.covectors)]


def _changes(sampler: Sampler, field: Generator, points: Points, moves: Tensor) -> Tensor:
    """The relative change at each sample; NaN where it cannot be told from rounding."""
    before = sampler.all_values(points)
    moved = flowed(field, points.weights, moves)
    after = sampler.all_values(points.moved(moved))
    size, known = _sizes(before), before.isfinite() & after.isfinite()
    off = torch.where(known, (after - before).abs() / size, 0.0)
    if float(off.max()) > _CHANGE:
        errors = noise(
            lambda w: sampler.all_values(points.moved(w)), points.weights, sampler.generator
        )
        errors = (errors + _ROUNDINGS * torch.finfo(sampler.dtype).eps * before.abs()) / size
        known &= errors <= _DEAF  # neither NaN
        off = torch.where(known, (off - _NOISES * errors).clamp_min(0.0), 0.0)
    return torch.where(known.any(dim=1), off.amax(dim=1), math.nan)


def _sizes(values: Tensor) -> Tensor:
    """How much each output varies over the samples, or at one of them if this is more."""
    known = torch.where(values.isfinite(), values, math.nan)
    centre = known.nanmedian(dim=0).values
    away = (known - centre).abs()
    usual = away.nanmedian(dim=0).values
    return torch.maximum(away.nan_to_num(nan=0.0), usual.nan_to_num(nan=0.0)).clamp_min(1e-300)


def flowed(field: Generator, weights: dict[str, Tensor], moves: Tensor) -> dict[str, Tensor]:
    """exp(tM)θ for each sample, with ‖tMθ‖ ≈ |move| ‖θ‖ over the tensors that move.

    Args:
        field: Mθ + m.
        weights: name → (samples, *shape), real numbers.
        moves: (samples,), its sign is that of t.
    """
    touched = {n: weights[n] for n in field.touched}
    state = {n: w.double().flatten(1) for n, w in touched.items()}
    first = field.flat(state)
    speed, length = (
        torch.stack([d[n].square().sum(1) for n in first]).sum(0).sqrt() for d in (first, state)
    )
    norm = math.sqrt(sum(float(part.values.square().sum()) for part in field.parts))
    norm *= max(len(field.parts), 1) ** 0.5  # ‖Σ Mᵢ‖ ≤ Σ ‖Mᵢ‖
    times = (moves * length / speed.clamp_min(1e-300)).clamp(-_LONGEST / norm, _LONGEST / norm)
    steps = max(1, math.ceil(float(times.abs().max()) * norm / _STEP))
    for _ in range(steps):
        state = _stepped(field, state, times[:, None] / steps)
    moved = {n: state[n].reshape(w.shape).to(w.dtype) for n, w in touched.items()}
    return {**weights, **moved}


def _stepped(field: Generator, state: dict[str, Tensor], times: Tensor) -> dict[str, Tensor]:
    """Taylor's series of the flow: the derivatives of θ are Mθ + m, M(Mθ + m), …

    Each term is at most _STEP / order times as large as the one before.
    """
    found, order = dict(state), 1
    term = {n: times * d for n, d in field.flat(state).items()}
    size = sum(float(w.square().sum()) for w in state.values())
    while sum(float(d.square().sum()) for d in term.values()) > _ROUNDING**2 * size:
        found.update({n: found[n] + d for n, d in term.items()})
        order += 1
        term = {n: times / order * d for n, d in field.flat(term, linear=True).items()}
    return found

"""The orthogonal projection onto the range of an operator, by conjugate gradients.

For a linear map F with adjoint F*, the projection of v onto the range of F is Fc with

    F* F c = F* v,

which has a solution whatever the rank of F. Conjugate gradients on it (Hestenes and Stiefel, 1952,
section 10) need F and F* once in each step, and not c itself. What is left, e_k = Pv − v_k, obeys

    ‖e_k‖² = Σ_{j ≥ k} ‖v_{j+1} − v_j‖²,

for the steps are orthogonal to each other, preconditioned or not. The first terms of that sum
estimate the error of the vector itself, however F scales its columns, and rounding does not spoil
them (Strakoš and Tichý, 2002, On error estimation in the conjugate gradient method).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch

Vectors = Mapping[str, torch.Tensor]
Forwards = Callable[[torch.Tensor], Vectors]
Adjoint = Callable[[dict[str, torch.Tensor]], torch.Tensor]
Progress = Callable[[int, float], None]

_DELAY = 5  # steps whose lengths tell the error before them
_ROUNDING = 100.0  # units in the last place of the longest columns: shorter ones are no columns
_PROBES = 4  # random vectors that measure the lengths of columns


class NotConverged(ValueError):
    """Conjugate gradients did not reach their tolerance."""


def balanced(adjoint: Adjoint, like: Vectors, sizes: Sequence[int]) -> torch.Tensor:
    """One over the mean square length of the columns of F, block by block: a preconditioner.

    It is 0 for blocks that move nothing.

    Columns of one family are about as long, and families differ by orders of magnitude: an offset
    moves a whole matrix, a scale one row. For random ξ of independent entries of variance 1 the
    mean of (F* ξ)_j² is the square of the length of column j.

    Args:
        adjoint: F*.
        like: a vector with everything that F moves.
        sizes: of the blocks of columns, one after the other.
    """
    generator = torch.Generator().manual_seed(0)  # any draw gives the same projection

    def draw(x: torch.Tensor) -> torch.Tensor:
        return torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)

    draws = [adjoint({n: draw(x) for n, x in like.items()}) for _ in range(_PROBES)]
    squares = torch.stack(draws).square().mean(0)
    means = [part.mean().expand(part.shape) for part in squares.split(list(sizes))]
    lengths = torch.cat(means)
    # A family that cancels itself at these parameters moves them by rounding errors alone.
    least = lengths.amax() * (_ROUNDING * torch.finfo(lengths.dtype).eps) ** 2
    return torch.where(lengths > least, 1 / lengths, 0.0)


def onto_range(
    forwards: Forwards,
    adjoint: Adjoint,
    vector: Vectors,
    scales: torch.Tensor,
    tolerance: float,
    norm: float,
    steps: int,
    progress: Progress | None = None,
) -> dict[str, torch.Tensor]:
    """The projection of a vector onto the range of a linear map.

    Args:
        forwards: the map F.
        adjoint: F*, for the pairing Σ Re x̄ y.
        vector: v, with a name for everything that F moves.
        scales: a diagonal that preconditions the normal equations, from `balanced`.
        tolerance: the error that is accepted, relative to `norm`.
        norm: to which errors are relative.
        steps: the most steps that are taken.
        progress: called after each step with its number and the estimated relative error.

    Raises:
        NotConverged: the error is still larger.
    """
    left = {n: x.clone() for n, x in vector.items()}
    found = {n: torch.zeros_like(x) for n, x in vector.items()}
    slope = adjoint(left)
    direction = scales * slope
    descent = float(slope @ direction)
    lengths: list[float] = []  # of the steps taken, squared
    error = math.inf
    while len(lengths) < steps:
        velocity = forwards(direction)
        speed = _square(velocity)
        if not descent or not speed:
            return found  # nothing is left to descend
        rate = descent / speed
        for name, x in velocity.items():
            found[name].add_(x, alpha=rate)
            left[name].sub_(x, alpha=rate)
        lengths.append(rate * descent)
        error = math.sqrt(sum(lengths[-_DELAY:])) / (norm or 1.0)
        if progress is not None:
            progress(len(lengths), error)
        if len(lengths) >= _DELAY and error <= tolerance:
            return found
        slope = adjoint(left)
        steepest = scales * slope
        before, descent = descent, float(slope @ steepest)
        direction = steepest + (descent / before) * direction
    raise NotConverged(
        f"project(vector, tolerance={tolerance:.0e}, steps={steps}): the error is about "
        f"{error:.0e} of the vector after {len(lengths)} steps, and at most the tolerance was "
        "expected. Single precision reaches about 1e-5: pass parameters in float64, more steps, "
        "or a larger tolerance."
    )


def _square(vector: Vectors) -> float:
    """The squared norm; a complex entry counts as two real ones."""
    return sum(float(torch.linalg.vector_norm(x)) ** 2 for x in vector.values())

"""Powers that come nearest to a form, by damped Gauss–Newton steps on all of them at once.

The unknowns are unit vectors v_t and weights w_t of either sign, so that the sign of an even power
may change on the way. The residual in the norm of Bombieri is a sum of squares of polynomials in
them, whose Jacobian has the columns (v_tᵀx)^d and w_t d (v_tᵀx)^{d−1} x_j. Steps along v_t itself
and along w_t are one and the same; the damping decides between them.

There need not be a best point: the residual may fall as two vectors approach each other and their
weights grow, with opposite signs. Alternating least squares and Gauss–Newton steps both follow such
a valley, and the caller tells it by the size of the weights.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from .forms import Array, Form, powers, slopes

Mask = NDArray[np.bool_]

_STEPS = 250
_ENTRIES = 2e7  # of the Jacobians of all starts together
_EPSILON = float(np.finfo(np.float64).eps)
_ALIKE = 1e6  # cancellation of terms that double precision does not tell from one multiple term
_REACHED, _CANCELLED = 1e-13, 500  # residual and cancellation at most, where a search ends
_ARRIVED = 1e-10  # their product at most, for a start that comes before all that are not there
_LEAST_DAMPING, _LARGEST_DAMPING = 1e-12, 1e8


class Search(NamedTuple):
    """How long to look, and for what.

    Attributes:
        starts: how many random ones each rank has.
        tolerance: the relative residual that counts as zero.
        generator: of the starts.
    """

    starts: int
    tolerance: float
    generator: torch.Generator


class Found(NamedTuple):
    """Σ_t w_t (v_tᵀx)^d, with unit vectors.

    Attributes:
        weights, vectors: w of shape (r,) and v of shape (r, variables).
        residual: relative to the norm of the form.
        cancellation: Σ |w| relative to it.
    """

    weights: Array
    vectors: Array
    residual: float
    cancellation: float

    def is_exact(self, tolerance: float) -> bool:
        """Whether it is the form up to the tolerance: `is_exact` of its two numbers."""
        return is_exact(self.residual, self.cancellation, tolerance)

    def is_doubtful(self, tolerance: float) -> bool:
        """Whether it is no decomposition only because it cancels: too much to be sure, too little
        for terms that are one up to rounding, such as those of a double root."""
        small = self.residual <= tolerance and self.cancellation <= _ALIKE
        return small and not self.is_exact(tolerance)


def is_exact(residual: float, cancellation: float, tolerance: float) -> bool:
    """Whether terms are a decomposition, and no point of a sequence that diverges.

    Along such a sequence the residual falls like a power of the cancellation, down to rounding,
    which is in proportion to it: a small residual alone says nothing there, and the product of both
    does not become small.
    """
    return max(residual, _EPSILON * cancellation) * max(1.0, cancellation) <= tolerance


def cancelled(there: Found) -> str:
    """How large its terms are, in words."""
    return f"has terms {there.cancellation:.0e} times as large as the polynomial"


def found(form: Form, weights: Array, vectors: Array) -> Found:
    """The same powers of unit vectors, with their residual."""
    lengths = np.linalg.norm(vectors, axis=1)
    lengths[lengths == 0] = 1.0
    weights, vectors = weights * lengths**form.degree, vectors / lengths[:, None]
    residual = form.residual(weights, vectors)
    return Found(weights, vectors, residual, float(np.abs(weights).sum()) / form.norm)


def weighted(form: Form, vectors: Array) -> Array:
    """The weights with which powers of given vectors come nearest, of shape (r,)."""
    found = np.linalg.lstsq(powers(vectors, form.degree).T, form.coordinates, rcond=None)
    return np.asarray(found[0], np.float64)


class _Starts:
    """Several starts that descend side by side.

    Attributes:
        weights, vectors: of shape (starts, r) and (starts, r, variables).
        left: the residuals of a form of norm one, of shape (starts, monomials).
        cost: their squared norms.
        damping: relative to the diagonal of JᵀJ, one for each start.
    """

    def __init__(self, form: Form, weights: Array, vectors: Array):
        self.form = form
        self.weights, self.vectors = weights, vectors
        self.left = self.missing(weights, vectors)
        self.cost = (self.left**2).sum(1)
        self.damping = np.full(len(weights), 1e-2)

    def missing(self, weights: Array, vectors: Array) -> Array:
        made = powers(vectors, self.form.degree)
        return (weights[:, None] @ made)[:, 0] - self.form.coordinates

    def jacobian(self) -> Array:
        """Of shape (starts, monomials, r · (1 + variables))."""
        degree, (starts, rank, variables) = self.form.degree, self.vectors.shape
        along = self.weights[:, :, None, None] * slopes(self.vectors, degree)
        along = along.transpose(0, 2, 1, 3).reshape(starts, -1, rank * variables)
        return np.concatenate([powers(self.vectors, degree).transpose(0, 2, 1), along], 2)

    def step(self) -> None:
        """One damped step of each start that lowers its cost, or more damping."""
        starts, rank = self.weights.shape
        jacobian = self.jacobian()
        normal = jacobian.transpose(0, 2, 1) @ jacobian
        slope = (jacobian.transpose(0, 2, 1) @ self.left[:, :, None])[:, :, 0]
        diagonal = np.einsum("bii->bi", normal)
        scale = np.maximum(diagonal, 1e-6 * diagonal.max(1, keepdims=True))
        diagonal += self.damping[:, None] * scale  # a view: the matrix is damped
        step = np.linalg.solve(normal, -slope[:, :, None])[:, :, 0]
        weights = self.weights + step[:, :rank]
        vectors = self.vectors + step[:, rank:].reshape(self.vectors.shape)
        lengths = np.linalg.norm(vectors, axis=2)
        weights, vectors = weights * lengths**self.form.degree, vectors / lengths[..., None]
        left = self.missing(weights, vectors)
        cost = (left**2).sum(1)
        better = cost < self.cost
        self.weights = np.where(better[:, None], weights, self.weights)
        self.vectors = np.where(better[:, None, None], vectors, self.vectors)
        self.left = np.where(better[:, None], left, self.left)
        # less damping where most of the cost is gone: steps are then Gauss and Newton's
        fast = cost < 0.3 * self.cost
        factor = np.where(fast, 0.05, np.where(better, 0.3, 5.0))
        self.damping = np.clip(self.damping * factor, _LEAST_DAMPING, None)
        self.cost = np.where(better, cost, self.cost)

    def reached(self) -> Mask:
        """Which starts are there, with terms that do not cancel."""
        return (self.cost <= _REACHED**2) & (np.abs(self.weights).sum(1) <= _CANCELLED)

    def keep(self, which: Mask) -> None:
        for name in ("weights", "vectors", "left", "cost", "damping"):
            setattr(self, name, getattr(self, name)[which])


def descended(form: Form, weights: Array, vectors: Array) -> Found:
    """Where starts of shape (starts, r) and (starts, r, variables) lead: the best of them.

    Those that arrive with terms that do not cancel come first, then the least residual. The search
    ends with the first that arrives.
    """
    unit = form.scaled(1 / form.norm)
    size = form.coordinates.size * vectors[0].size
    chunk = max(1, int(_ENTRIES / size))
    best: Found | None = None
    for first in range(0, len(weights), chunk):
        starts = _Starts(unit, weights[first : first + chunk], vectors[first : first + chunk])
        for weight, vector in _rested(starts):
            there = found(form, weight * form.norm, vector)
            if best is None or _order(there) < _order(best):
                best = there
        if best is not None and best.is_exact(_ARRIVED):
            break
    assert best is not None
    return best


def _order(one: Found) -> tuple[bool, float]:
    return not one.is_exact(_ARRIVED), one.residual


def _rested(starts: _Starts) -> list[tuple[Array, Array]]:
    """The ends of all starts, or of the first that arrive."""
    ends: list[tuple[Array, Array]] = []
    for _ in range(_STEPS):
        starts.step()
        arrived = starts.reached()
        if arrived.any():
            return [*zip(starts.weights[arrived], starts.vectors[arrived], strict=True)]
        moving = starts.damping < _LARGEST_DAMPING
        if not moving.all():
            ends += zip(starts.weights[~moving], starts.vectors[~moving], strict=True)
            starts.keep(moving)
            if not moving.any():
                return ends
    return [*ends, *zip(starts.weights, starts.vectors, strict=True)]


def polished(form: Form, start: Found) -> Found:
    """A few Gauss–Newton steps by singular values, as long as the residual falls."""
    unit, best = form.scaled(1 / form.norm), start
    for _ in range(6):
        at = _Starts(unit, best.weights[None] / form.norm, best.vectors[None])
        step = np.linalg.lstsq(at.jacobian()[0], -at.left[0], rcond=1e-13)[0]
        rank = len(best.weights)
        weights = best.weights + form.norm * step[:rank]
        there = found(form, weights, best.vectors + step[rank:].reshape(best.vectors.shape))
        if not there.residual < best.residual:
            break
        best = there
    return best


def searched(form: Form, rank: int, search: Search) -> Found:
    """The best of random starts: vectors of uniform direction, with the weights that suit them."""
    shape = (search.starts, rank, form.variables)
    vectors = torch.randn(shape, generator=search.generator, dtype=torch.float64).numpy()
    vectors = vectors / np.linalg.norm(vectors, axis=2, keepdims=True)
    weights = np.stack([weighted(form, v) for v in vectors])
    return polished(form, descended(form, weights, vectors))

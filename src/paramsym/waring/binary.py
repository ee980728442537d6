"""Binary forms: Sylvester's algorithm, over the real numbers.

A form g = Σ q_j X^{r−j} Y^j is apolar to f if the derivative g(∂x, ∂y) f vanishes, which is to say
that q lies in the kernel of the catalecticant of f with r + 1 columns. f is a sum of powers of r
pairwise independent linear forms v_tᵀx if, and only if, some apolar form of degree r has these v_t
as its roots: r distinct ones, and real for real powers. All that is apolar to f are combinations of
multiples of two forms, of degrees r₁ ≤ r₂ with r₁ + r₂ = d + 2, so that below r₂ there are
multiples of the first alone.

Source: Sylvester (1851), as in Comas and Seiguer, "On the rank of a binary form" (2011). That a
form with τ real linear factors which is no power of one needs τ powers: Sylvester (1864), as in
Reznick, "On the length of binary forms" (2013).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from .decomposition import LowerBound
from .forms import Array, Form, multinomials
from .levenberg_marquardt import Found, Search, cancelled, found, polished, searched, weighted
from .real_factors import real_factors

_DRAWS = 100
_REAL = 1e-6  # what rounding may have left of an imaginary part, of a root on the unit circle
_APART = 1e-5  # the sine of the angle between two roots that are not one
_NEAR = 1e-6  # relative residual before a decomposition is polished


def binary(
    form: Form, limit: int, search: Search, given: bool
) -> tuple[Found | None, LowerBound, int]:
    """The fewest real powers that a binary form is a sum of.

    Args:
        form: in two variables, of degree three at least.
        limit: the largest number of powers that may be used.
        search: the tolerance, the generator, and the starts where drawing apolar forms finds no
            real roots.
        given: whether the coefficients are those that came, not rounded ones.

    Returns:
        The powers, or None if there are none within the limit, the lower bound, and the rank over
        the complex numbers.
    """
    tolerance = search.tolerance
    floors = form.floors(tolerance)
    least, by = len(floors), "the rank of the catalecticant"
    space = apolar(form, least, tolerance)
    complex_rank, tried = least, dict[int, str]()
    first = least
    if len(space) == 1:
        there = _at_roots(form, space[0])
        if there is not None and (there := polished(form, there)).is_exact(tolerance):
            return (there if least <= limit else None), LowerBound(least, by, floors), least
        first = form.degree + 2 - least
        if not _squarefree(space[0]):
            complex_rank = form.degree + 2 - least
        if there is not None and there.is_doubtful(tolerance):
            tried = dict.fromkeys(range(least, first), f"the only candidate {cancelled(there)}")
        else:
            by = f"the only apolar form of degree {least} has no {least} distinct real roots"
            least = first
    if given and len(floors) > 1 and (factors := real_factors(form.coefficients.tolist())) > least:
        least, by = factors, f"{factors} real linear factors"
    tried = {rank: how for rank, how in tried.items() if rank >= least}
    bound = LowerBound(least, by, floors, tried)
    for rank in range(max(first, least), min(limit, form.degree) + 1):
        there = _with_terms(form, rank, search)
        if there is not None:
            return there, bound, complex_rank
        tried[rank] = (
            f"numerically, no real roots among {_DRAWS} apolar forms, and no solution in "
            f"{search.starts} starts"
        )
    return None, bound, complex_rank


def apolar(form: Form, degree: int, tolerance: float) -> Array:
    """The apolar forms of a degree, as rows q of shape (dimension, degree + 1)."""
    _, sizes, right = np.linalg.svd(form.catalecticant(form.degree - degree))
    rank = int((sizes > tolerance * form.norm).sum())
    return right[rank:] * np.sqrt(multinomials(2, degree))


def roots(q: Array) -> NDArray[np.complex128]:
    """The roots (x, y) of Σ_j q_j x^{r−j} y^j, of shape (r, 2), as unit vectors whose larger entry
    is positive."""
    q = np.where(np.abs(q) > 1e-14 * np.abs(q).max(), q, 0.0)
    at_infinity = int(np.flatnonzero(q)[0])
    own = np.roots(q[at_infinity:]).astype(np.complex128)
    every = np.concatenate(
        [np.tile([1.0 + 0j, 0.0], (at_infinity, 1)), np.stack([own, np.ones_like(own)], 1)]
    )
    every /= np.linalg.norm(every, axis=1, keepdims=True)
    larger = every[np.arange(len(every)), np.abs(every).argmax(1)]
    return every * (np.abs(larger) / larger)[:, None]


def _squarefree(q: Array) -> bool:
    """Whether no two roots are one, by the determinants of all pairs."""
    every = roots(q)
    sines = np.abs(every[:, :1] * every[:, 1] - every[:, 1:] * every[:, 0])
    return bool((sines[np.triu_indices(len(every), 1)] > _APART).all())


def _at_roots(form: Form, q: Array) -> Found | None:
    """The powers at the roots of an apolar form, if all of them are real."""
    every = roots(q)
    if np.abs(every.imag).max() > _REAL:
        return None
    return found(form, weighted(form, every.real), every.real)


def _drawn(space: Array, generator: torch.Generator) -> Iterator[Array]:
    """Forms of a space, with as many random real roots as its dimension allows."""
    degree = space.shape[1] - 1
    for _ in range(_DRAWS):
        drawn = torch.rand(len(space) - 1, generator=generator, dtype=torch.float64)
        angles = np.pi * drawn.numpy()[:, None]
        values = np.cos(angles) ** np.arange(degree, -1, -1) * np.sin(angles) ** np.arange(
            degree + 1
        )
        yield np.linalg.svd(values @ space.T)[2][-1] @ space


def _with_terms(form: Form, rank: int, search: Search) -> Found | None:
    """A sum of so many powers: of those that draws meet, the one that cancels least."""
    met = (
        _at_roots(form, q) for q in _drawn(apolar(form, rank, search.tolerance), search.generator)
    )
    near = [there for there in met if there is not None and there.residual <= _NEAR]
    there = (
        polished(form, min(near, key=lambda one: one.cancellation))
        if near
        else searched(form, rank, search)
    )
    return there if there.is_exact(search.tolerance) else None

"""A form as a sum of powers, by the method that suits it, and the proof of the lower bound."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .binary import binary
from .decomposition import GROWN, LowerBound
from .diagonalisation import applies, diagonalised
from .forms import Array, Form
from .generic_rank import generic_rank
from .levenberg_marquardt import Found, Search, cancelled, found, searched
from .quadratic import by_eigenvalues

_ROUNDING = 1e-13  # of the form, that may be left out with a direction


class Shortest(NamedTuple):
    """The powers that were found for a form, and what is known of fewer.

    Attributes:
        found: the powers, or those that come nearest.
        bound: the lower bound.
        complex_rank: where it is known.
        upper: a number of powers that is always enough.
    """

    found: Found
    bound: LowerBound
    complex_rank: int | None
    upper: int


def shortest(form: Form, rank: int | None, search: Search) -> Shortest:
    """The fewest powers that add up to a form, of those found; or at most so many as `rank`.

    The method sees the form in the directions that it depends on. Their number is the rank of the
    first catalecticant, and no decomposition gains by others: projected, its terms are as many.
    """
    basis = _essential(form)
    few = basis.shape[1]
    whole = few == form.variables
    core = form if whole else form.restricted(basis)
    upper = few if form.degree == 2 else 2 * generic_rank(few, form.degree)
    if few == 2:
        upper = min(upper, form.degree)
    limit = upper if rank is None else rank
    if few == 1:
        there = found(core, core.coordinates, np.ones((1, 1)))
        bound, complex_rank = LowerBound(1, "it is not zero", (1.0,)), 1
    elif form.degree == 2:
        there, bound, complex_rank = _squares(core, limit, search)
    elif few == 2:
        there, bound, complex_rank = binary(core, limit, search, whole)
        there = there or searched(core, limit, search)
    else:
        there, bound, complex_rank = _general(core, rank, limit, search)
    there = there if whole else found(form, there.weights, there.vectors @ basis.T)
    return Shortest(there, bound, complex_rank, upper)


def _essential(form: Form) -> Array:
    """An orthonormal basis of the directions that the form depends on, as columns."""
    vectors, sizes, _ = np.linalg.svd(form.catalecticant(1), full_matrices=False)
    left = np.sqrt(np.cumsum(sizes[::-1] ** 2)[::-1])
    few = int((left > _ROUNDING * form.norm).sum())
    return vectors[:, :few] if few < form.variables else np.eye(form.variables)


def _squares(form: Form, limit: int, search: Search) -> tuple[Found, LowerBound, int]:
    values, vectors, floors = by_eigenvalues(form, search.tolerance)
    bound = LowerBound(len(values), "the eigenvalues that are not zero", floors)
    return found(form, values[:limit], vectors[:limit]), bound, len(values)


def _general(
    form: Form, rank: int | None, limit: int, search: Search
) -> tuple[Found, LowerBound, int | None]:
    """Diagonalisation at the lower bound, and a search from there on."""
    floors = form.floors(search.tolerance)
    least, by = len(floors), "the rank of the catalecticant"
    first, tried = least, dict[int, str]()
    if applies(form, least, search.tolerance):
        there = diagonalised(form, least, search.generator)
        if there.is_exact(search.tolerance) and least <= limit:
            return there, LowerBound(least, by, floors), least
        if there.is_doubtful(search.tolerance):
            tried[least] = f"the only candidate {cancelled(there)}"
            first += 1
        elif not there.is_exact(search.tolerance):
            by = f"simultaneous diagonalisation, by which {least} terms would be found"
            first = least = least + 1
    bound = LowerBound(least, by, floors, tried)
    best: Found | None = None
    for count in range(first, limit + 1) if rank is None else [rank]:
        there = searched(form, count, search)
        if there.is_exact(search.tolerance):
            # the catalecticants' bound holds for complex powers as well
            return there, bound, count if count == len(floors) else None
        if best is None or there.residual < best.residual:
            best = there
        if count >= least:
            bound.searched[count] = _failure(there, search)
    assert best is not None
    return best, bound, None


def _failure(there: Found, search: Search) -> str:
    """How a search ended, in words that claim no proof."""
    grown = there.cancellation > GROWN
    how = f", with terms {there.cancellation:.0e} times as large" if grown else ""
    residual = f"least residual {there.residual:.1e}"
    return f"numerically, no solution in {search.starts} starts, {residual}{how}"

"""`decompose`: a polynomial as a sum of signed powers of affine forms, and what is known of fewer.

It checks what came, makes it homogeneous, leaves the search to `methods`, and measures the terms as
they are returned.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from .coefficients import Coefficients, bombieri, degree_of, homogenised, read
from .decomposition import GROWN, Decomposition, Exactness, LowerBound, expand
from .forms import Array
from .generic_rank import generic_rank
from .levenberg_marquardt import Search, is_exact
from .methods import shortest
from .quadratic import completed
from .terms import Term

STARTS = 32
TOLERANCE = 1e-10


def decompose(
    polynomial: Coefficients,
    rank: int | None = None,
    *,
    degree: int | None = None,
    mixed: bool = False,
    starts: int = STARTS,
    tolerance: float = TOLERANCE,
    generator: torch.Generator | None = None,
) -> Decomposition:
    """A polynomial as a sum of few signed powers, f(x) = Σ_t s_t (a_tᵀx + b_t)^d, s_t = ±1.

    All powers have the degree d of the polynomial: made homogeneous with x₀ = 1, it is a form whose
    terms are powers of linear forms in one variable more, and a real Waring decomposition of it.
    Lower monomials come from the constants b_t, which are zero if f is homogeneous already. Fewer
    terms of several degrees may exist; of degree two, `mixed=True` finds the fewest of those.

    How it goes depends on the form, after a rotation that leaves out what it does not depend on:

    - two variables, so also every polynomial in one: Sylvester's algorithm, over the reals;
    - degree two: eigenvalues, which are as many and of the same signs in every shortest sum;
    - otherwise ranks go up from the catalecticants' lower bound. As many terms as that are unique
      where they are few enough for simultaneous diagonalisation, and found by it or ruled out.
      Other ranks are searched by damped Gauss–Newton steps on all terms at once, from random
      starts, to rounding. A search that fails rules nothing out, and the result says so. It is
      for small forms: with 70 coefficients a rank takes seconds, and with 126 minutes.

    Sums of r powers are no closed set. x y² is a limit of sums of two cubes, and no such sum; a
    search for two terms comes as near as one likes, with terms that grow and cancel. The result is
    then `DIVERGENT`, and is never taken for a decomposition.

    Args:
        polynomial: real coefficients by tuples of exponents, one for each variable:
            {(1, 2): 3.0, (0, 0): 1.0} is 3 x y² + 1.
        rank: the largest number of terms. If it is None the search goes up to twice the generic
            rank, where one always exists.
        degree: d, if it is not that of the polynomial but a larger one; a constant has degree one.
        mixed: for degree two: terms of degree two, and one of degree one that takes up the rest.
        starts: how many random starts a rank has before the next one is tried.
        tolerance: the relative residual that counts as zero, in the norm of Bombieri.
        generator: of the starts. If it is None, one with a fixed seed.

    Returns:
        The terms, the residual, which fewer were ruled out and how, and the generic rank.

    Raises:
        TypeError, ValueError: if the coefficients are not real and finite, the exponents no tuples
            of one length, or an argument is out of range.

    Source: Comon, Golub, Lim and Mourrain, "Symmetric tensors and symmetric tensor rank" (2008);
    catalecticants: Sylvester (1851), Iarrobino and Kanev, "Power sums, Gorenstein algebras and
    determinantal loci" (1999); x y²: de Silva and Lim (2008).
    """
    given = read(polynomial)
    _require_positive(rank=rank, degree=degree, starts=starts)
    _require_tolerance(tolerance)
    degree = _degree(given, rank, degree, mixed)
    search = Search(starts, tolerance, generator or torch.Generator().manual_seed(0))
    largest = max(map(abs, given.values()))
    scale = math.ldexp(1.0, math.frexp(largest)[1] - 1)  # a power of two: nothing is rounded
    if largest == 0:
        made = _Made([], LowerBound(0, "the polynomial is zero"), 0, 0)
    else:
        unit = {e: c / scale for e, c in given.items()}
        made = _mixed(unit, tolerance) if mixed else _pure(unit, rank, degree, search)
    return _measured(given, 2 if mixed else degree, made, scale, tolerance)


def _require_positive(**arguments: int | None) -> None:
    for name, value in arguments.items():
        if value is None and name != "starts":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            instead = f"{name}={STARTS}" if name == "starts" else f"{name}=None"
            raise ValueError(
                f"decompose({name}={value!r}): a positive integer was expected. Leave it out, for "
                f"{instead}, or pass one from 1 on."
            )


def _require_tolerance(tolerance: float) -> None:
    if not 0 < tolerance < 1:
        raise ValueError(
            f"decompose(tolerance={tolerance}): a number between zero and one was expected, the "
            "relative residual that counts as zero. Pass for example tolerance=1e-10."
        )


def _degree(given: Coefficients, rank: int | None, degree: int | None, mixed: bool) -> int:
    """The degree of the powers."""
    own = max(1, degree_of(given))
    if mixed and (own > 2 or degree is not None or rank is not None):
        raise ValueError(
            f"decompose(mixed=True, rank={rank}, degree={degree}): a polynomial of degree {own} "
            "came, and one of at most two was expected, without rank and degree, which eigenvalues "
            "decide. Leave mixed out, for powers of one degree."
        )
    if degree is not None and degree < own:
        raise ValueError(
            f"decompose(degree={degree}): the polynomial has degree {own}, and powers of at least "
            f"that degree were expected. Pass degree={own} or more, or leave it out."
        )
    return own if degree is None else degree


class _Made(NamedTuple):
    """Terms before they are measured, with what is known of fewer; see `methods.Shortest`."""

    terms: list[Term]
    bound: LowerBound
    complex_rank: int | None
    upper: int
    affine: bool = True


def _mixed(given: Coefficients, tolerance: float) -> _Made:
    """Squares, and one affine form where something is left over."""
    quadric = completed(given, tolerance)
    terms = [
        _power(2, w, np.append(u, shift))
        for w, u, shift in zip(quadric.weights, quadric.vectors, quadric.shifts, strict=True)
    ]
    if quadric.slope.any() or quadric.constant:
        terms.append(_power(1, 1.0, np.append(quadric.slope, quadric.constant)))
    by = "eigenvalues of the quadratic part and what it leaves, among powers of degree one and two"
    return _Made(terms, LowerBound(len(terms), by), len(terms), len(terms))


def _pure(given: Coefficients, rank: int | None, degree: int, search: Search) -> _Made:
    """Powers of one degree."""
    form, affine = homogenised(given, degree)
    there = shortest(form, rank, search)
    order = np.argsort(-np.abs(there.found.weights), kind="stable")
    terms = []
    for weight, vector in zip(there.found.weights[order], there.found.vectors[order], strict=True):
        ends = np.roll(vector, -1) if affine else np.append(vector, 0.0)  # x₀ is the first
        terms.append(_power(degree, float(weight), ends))
    return _Made(terms, there.bound, there.complex_rank, there.upper, affine)


def _power(degree: int, weight: float, ends: Array) -> Term:
    """weight · (aᵀx + b)^degree as a signed power, for a and b after each other.

    Odd degrees take the sign up. For even ones the sign of the affine form is free, and the largest
    entry made positive.
    """
    sign = -1 if weight < 0 else 1
    ends = abs(weight) ** (1 / degree) * ends
    if degree % 2:
        ends, sign = sign * ends, 1
    elif ends[np.abs(ends).argmax()] < 0:
        ends = -ends
    made = torch.from_numpy(ends)
    return Term(degree, sign, made[:-1].clone(), made[-1].clone())


def _measured(
    given: Coefficients, degree: int, made: _Made, scale: float, tolerance: float
) -> Decomposition:
    """The terms times the scale, with the residual that they have as they are returned."""
    variables = len(next(iter(given)))
    terms = [_scaled(term, scale) for term in made.terms]
    norm = bombieri(given, degree) or 1.0
    total = expand(terms, variables)
    left = {e: given.get(e, 0.0) - total.get(e, 0.0) for e in {*given, *total}}
    residual = bombieri(left, degree) / norm
    cancellation = sum(_size(term, degree) for term in terms) / norm
    status = Exactness.DIVERGENT if cancellation > GROWN else Exactness.APPROXIMATE
    minimal = False if len(terms) > made.upper else None
    if is_exact(residual, cancellation, tolerance):
        status = Exactness.EXACT
        minimal = True if len(terms) <= made.bound.rank else minimal
    return Decomposition(
        terms, variables, degree, status, residual, cancellation, made.bound,
        generic_rank(variables + made.affine, degree), made.complex_rank, minimal,
    )  # fmt: skip


def _size(term: Term, degree: int) -> float:
    """The norm of Bombieri of one term, made homogeneous of a degree."""
    if term.degree == degree:
        return float(term.weight.square().sum() + term.bias**2) ** (degree / 2)
    return bombieri(expand([term], len(term.weight)), degree)


def _scaled(term: Term, factor: float) -> Term:
    """factor · term, for a positive factor."""
    root = factor ** (1 / term.degree)
    return term._replace(weight=root * term.weight, bias=root * term.bias)

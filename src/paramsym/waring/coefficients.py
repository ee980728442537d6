"""Polynomials as they are given: coefficients by exponents, checked and made homogeneous."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real

import numpy as np

from .forms import Form, exponents, places

Coefficients = Mapping[tuple[int, ...], float]

_LARGEST = 3000  # coefficients of a form of degree above two
_HINT = "Pass for example {(1, 2): 3.0, (0, 0): 1.0} for 3 x y² + 1"


def read(polynomial: Coefficients, call: str = "decompose") -> dict[tuple[int, ...], float]:
    """The same polynomial in floats, with zero coefficients kept.

    Raises:
        ValueError, TypeError: for what is no real polynomial in a fixed number of variables.
    """
    if not isinstance(polynomial, Mapping):
        raise TypeError(
            f"{call}(polynomial=...): a {type(polynomial).__name__} came, and a dictionary from "
            f"exponents to real coefficients was expected. {_HINT}."
        )
    if not polynomial:
        raise ValueError(
            f"{call}(polynomial={{}}): no monomial came, and at least one was expected, which "
            f"says how many variables there are. {_HINT}, or {{(0, 0): 0.0}} for zero in two "
            "variables."
        )
    found: dict[tuple[int, ...], float] = {}
    for exponent, coefficient in polynomial.items():
        found[_exponent(exponent, call)] = _coefficient(exponent, coefficient, call)
    lengths = {len(e): e for e in found}
    if len(lengths) > 1:
        (m, first), (n, second) = [*lengths.items()][:2]
        raise ValueError(
            f"{call}(polynomial=...): the exponents {first} of {m} variables and {second} of {n} "
            "came, and one number of variables was expected in all monomials. Fill the shorter "
            "ones up with zeros."
        )
    return found


def _exponent(exponent: object, call: str) -> tuple[int, ...]:
    """One exponent for each variable."""
    right = isinstance(exponent, tuple) and exponent and all(
        isinstance(k, int) and not isinstance(k, bool) and k >= 0 for k in exponent
    )  # fmt: skip
    if not right:
        raise ValueError(
            f"{call}(polynomial=...): the exponent {exponent!r} came, and a tuple of integers from "
            f"zero on was expected, one for each variable. {_HINT}."
        )
    assert isinstance(exponent, tuple)
    return exponent


def _coefficient(exponent: tuple[int, ...], coefficient: object, call: str) -> float:
    """A finite number of double precision."""
    place = f"{call}(polynomial=...): the coefficient of {exponent} is {coefficient!r}"
    if isinstance(coefficient, complex):
        raise TypeError(
            f"{place}, a complex number, and real ones were expected: the affine forms of a layer "
            "are real. Decompose the real and the imaginary part one after the other."
        )
    if isinstance(coefficient, bool) or not isinstance(coefficient, Real):
        raise TypeError(
            f"{place}, a {type(coefficient).__name__}, and a real number was expected. Convert it, "
            "with float(...) or .item()."
        )
    try:
        value = float(coefficient)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise ValueError(
            f"{place}, and a finite number of double precision was expected. Correct it, or divide "
            "the polynomial by its largest coefficient."
        )
    if isinstance(coefficient, int) and int(value) != coefficient:
        raise ValueError(
            f"{place}, an integer that double precision rounds to {value!r}, and one that it holds "
            "was expected. Pass float(...) if that is near enough."
        )
    return value


def degree_of(polynomial: Coefficients) -> int:
    """The largest degree of a monomial that is not zero; of zero, 0."""
    return max((sum(e) for e, c in polynomial.items() if c), default=0)


def homogenised(polynomial: Coefficients, degree: int) -> tuple[Form, bool]:
    """The form of the degree that is the polynomial at x₀ = 1, and whether x₀ is among its
    variables, the first; a polynomial that is homogeneous of the degree has no need of it."""
    affine = any(c and sum(e) != degree for e, c in polynomial.items())
    variables = len(next(iter(polynomial))) + affine
    require_small(variables, degree)
    known = places(variables, degree)
    coefficients = np.zeros(len(known))
    for e, c in polynomial.items():
        if c:
            coefficients[known[(degree - sum(e), *e) if affine else e]] = c
    return Form.of(coefficients, variables, degree), affine


def require_small(variables: int, degree: int) -> None:
    """Catalecticants and Gauss–Newton steps are dense."""
    count = math.comb(variables + degree - 1, degree)
    if degree > 2 and count > _LARGEST:
        raise ValueError(
            f"decompose(polynomial=...): a form in {variables} variables of degree {degree} has "
            f"{count} coefficients, and at most {_LARGEST} were expected above degree two, where "
            "matrices between them are dense. Decompose parts in fewer variables."
        )


def expanded(form: Form, affine: bool) -> dict[tuple[int, ...], float]:
    """The polynomial of a form: with x₀, its first variable, put to one, if it is affine."""
    every = exponents(form.variables, form.degree)[:, int(affine) :].tolist()
    return {tuple(e): float(c) for e, c in zip(every, form.coefficients, strict=True)}


def bombieri(polynomial: Coefficients, degree: int) -> float:
    """The norm of Bombieri of a polynomial made homogeneous: √Σ c²/C(d; d − |α|, α)."""
    scale = max(map(abs, polynomial.values()), default=0.0)
    total = 0.0
    for e, c in polynomial.items():
        if c:
            ways = math.factorial(degree) // math.prod(map(math.factorial, (degree - sum(e), *e)))
            total += (c / scale) ** 2 / ways
    return scale * math.sqrt(total)

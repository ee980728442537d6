"""How many real linear factors a binary form has: exactly, by Sturm sequences of rationals."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

_Polynomial = list[Fraction]  # in one variable, the leading coefficient first, and not zero


def real_factors(coefficients: Sequence[float]) -> int:
    """The real linear factors of Σ_j c_j x^{d−j} y^j, each counted as often as it occurs.

    The coefficients are taken as the rational numbers that they are, so that no rounding decides
    what is a multiple root.

    Args:
        coefficients: c, of which one at least is not zero.

    Source: Sturm (1829).
    """
    p = [Fraction(float(c)) for c in coefficients]
    at_infinity = next(k for k, c in enumerate(p) if c)  # so often y is a factor
    total, p = at_infinity, p[at_infinity:]
    while len(p) > 1:
        total += _distinct_real_roots(p)
        p = _sturm(p)[-1]  # the greatest common divisor with p′: each root once less
    return total


def _sturm(p: _Polynomial) -> list[_Polynomial]:
    """p, p′, −(p mod p′), …, up to positive factors."""
    found = [p, [c * (len(p) - 1 - k) for k, c in enumerate(p[:-1])]]
    while rest := _remainder(found[-2], found[-1]):
        size = max(abs(c) for c in rest)
        found.append([-c / size for c in rest])
    return found


def _remainder(p: _Polynomial, q: _Polynomial) -> _Polynomial:
    """p modulo q, without leading zeros."""
    while len(p) >= len(q):
        ratio = p[0] / q[0]
        padded = q + [Fraction(0)] * (len(p) - len(q))
        p = [a - ratio * b for a, b in zip(p, padded, strict=True)][1:]
    return p[next((k for k, c in enumerate(p) if c), len(p)) :]


def _distinct_real_roots(p: _Polynomial) -> int:
    """By the changes of sign along Sturm's sequence, at both ends of the line."""
    every = _sturm(p)
    right = [c[0] > 0 for c in every]
    left = [(c[0] > 0) == (len(c) % 2 == 1) for c in every]
    before, after = (sum(a != b for a, b in pairwise(signs)) for signs in (left, right))
    return before - after

"""Short names of numbers: fractions and multiples of π, and sums that people can read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction


def short(value: float, closeness: float = 1e-7) -> float:
    """The fraction with denominator ≤ 12, or fraction of π, next to a number; else the number.

    Where much counts as close, only smaller denominators are short: each number is near to some
    fraction of a larger one.
    """
    if not math.isfinite(value):
        return value
    allowed = closeness * max(1.0, abs(value))
    largest = max(1, int(0.1 / math.sqrt(closeness))) if closeness > 1e-5 else 12
    for unit, most in ((1.0, min(12, largest)), (math.pi, min(6, largest))):
        if abs(value) > 1e4 * unit:
            continue
        near = float(Fraction(value / unit).limit_denominator(most)) * unit
        if abs(near - value) <= allowed:
            return near + 0.0  # no negative zero
    return value


def is_short(value: float) -> bool:
    """Whether a number is such a fraction, to the last digit."""
    return short(value * (1 + 1e-9)) == value


def spelled(value: float) -> str:
    """A number in the shortest exact form: 2, 1/3, π/2, 0.1234567."""
    sign, size = ("−" if value < 0 else ""), abs(value)
    fraction = Fraction(size).limit_denominator(12) if size < 1e6 else Fraction(0)
    if float(fraction) == size:
        return sign + str(fraction)
    of_pi = Fraction(size / math.pi).limit_denominator(6)
    if size < 1e5 and of_pi and abs(float(of_pi) * math.pi - size) <= 1e-15 * size:
        over = f"/{of_pi.denominator}" if of_pi.denominator > 1 else ""
        times = "" if of_pi.numerator == 1 else f"{of_pi.numerator}"
        return f"{sign}{times}π{over}"
    power = short(math.log(size), 1e-13) if size and math.isfinite(size) else 0.0
    if power and is_short(power) and abs(math.exp(power) - size) <= 4e-15 * size:
        return f"{sign}e" if power == 1 else f"{sign}e^{raised(power)}"
    return f"{sign}{size:.7g}"


def raised(power: float) -> str:
    """An exponent, in brackets unless it is one sign."""
    text = spelled(power)
    return text if len(text) == 1 else f"({text})"


def combination(terms: Sequence[tuple[float, str]], positive_first: bool = False) -> str:
    """Σ coefficient·unit as it is written: no zeros, no ones, one sign for each term."""
    kept = [(c, unit) for c, unit in terms if c != 0]
    if positive_first:
        kept.sort(key=lambda term: term[0] < 0)
    text = ""
    for c, unit in kept:
        number = spelled(abs(c))
        body = unit if unit and number == "1" else f"{number}·{unit}" if unit else number
        sign = "−" if c < 0 else "+"
        text += f" {sign} {body}" if text else ("−" if c < 0 else "") + body
    return text or "0"

"""Exact rational numbers at the door, `fmpq` inside, `Fraction` outside.

A float is read as the dyadic rational it is: `0.1` becomes 3602879701896397/36028797018963968.
Inside the package every exact number is a FLINT rational (`flint.fmpq`), ten to thirty times faster
than `Fraction`; whatever leaves the package is a `Fraction` again.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Iterable, Sequence
from fractions import Fraction

from paramsym.relu.arithmetic import fmpq, fmpq_mat, fmpz
from paramsym.relu.clock import tick
from paramsym.relu.errors import ReLUError

LONGEST = 4300  # digits of a number as text, and the largest power of ten: Python's own limit
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e([+-]?\d+))?|[+-]?\d+/\d+", re.ASCII | re.I)

ZERO = fmpq(0)
ONE = fmpq(1)
HALF = fmpq(1, 2)


def rational(value: object, where: str = "relu") -> fmpq:
    """Read one number exactly.

    Accepts integers, floats (as the dyadic rationals they are), `Fraction`, NumPy and Torch
    scalars, and strings such as `"-3/7"`, `"0.25"`, `"1e-9"`.

    Raises `ReLUError` for NaN, infinities and text that is not a rational.
    """
    if isinstance(value, fmpq):
        return value
    if isinstance(value, fmpz):
        return fmpq(value)
    if isinstance(value, str):
        read = _read(value.strip(), where)
        return fmpq(read.numerator, read.denominator)
    if isinstance(value, numbers.Rational):
        return fmpq(int(value.numerator), int(value.denominator))
    item = getattr(value, "item", None)
    if item is not None and not isinstance(value, float):
        try:
            value = item()
        except (ValueError, RuntimeError):
            raise ReLUError(
                f"an array of {type(value).__name__}", "one number", where, "Pass scalars here."
            ) from None
        if isinstance(value, int):
            return fmpq(int(value))
    if isinstance(value, numbers.Real):
        number = float(value)
        if not math.isfinite(number):
            raise ReLUError(
                f"the number {number}",
                "a finite number",
                where,
                "Check the training run or the file: NaN and infinities define no function.",
            )
        return fmpq(*number.as_integer_ratio())
    raise ReLUError(
        f"{value!r} of type {type(value).__name__}",
        "an integer, a float, a Fraction or a string such as '1/3'",
        where,
        "Convert the entry first.",
    )


def _read(text: str, where: str) -> Fraction:
    """The rational that a text writes, its exponent bounded before anything is computed."""
    found = _NUMBER.fullmatch(text) if len(text) <= 2 * LONGEST else None
    power = found and found[4]
    if len(text) > 2 * LONGEST or (power and (len(power) > 6 or abs(int(power)) > LONGEST)):
        raise ReLUError(
            f"the number {text[:40]!r}{' …' if len(text) > 40 else ''}",
            f"at most {LONGEST} digits and a power of ten between -{LONGEST} and {LONGEST}",
            where,
            "No float64 is beyond 1e308 or below 1e-324; check the entry.",
        )
    try:
        if found is None:
            raise ValueError(text)
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise ReLUError(
            f"the text {text[:40]!r}{' …' if len(text) > 40 else ''}",
            "a rational such as '3', '-1/3', '0.25' or '1e-9'",
            where,
            "Write the entry as numerator/denominator with a non-zero denominator.",
        ) from None


def fraction(value: fmpq) -> Fraction:
    """The same number as a `Fraction`."""
    return Fraction(int(value.p), int(value.q))


def fractions(values: Iterable[fmpq]) -> tuple[Fraction, ...]:
    """The same vector as a tuple of `Fraction`."""
    return tuple(fraction(v) for v in values)


def nearest_float(value: fmpq) -> float:
    """The nearest float; ±inf beyond the range of float64."""
    p, q = int(value.p), int(value.q)
    try:
        return p / q
    except OverflowError:
        return math.inf if p > 0 else -math.inf


def nearest_norm(values: Sequence[fmpq]) -> float:
    """|x| in floats; inf beyond the range of float64, where a sum of squares would raise."""
    return math.hypot(*map(nearest_float, values))


def dot(left: Sequence[fmpq], right: Sequence[fmpq]) -> fmpq:
    """Σ left_i right_i."""
    total = ZERO
    for a, b in zip(left, right, strict=True):
        if a and b:
            total += a * b
    return total


def along(start: Sequence[fmpq], step: fmpq, direction: Sequence[fmpq]) -> list[fmpq]:
    """start + step·direction."""
    return [p + step * v for p, v in zip(start, direction, strict=True)]


def positive_ratio(row: Sequence[fmpq], other: Sequence[fmpq]) -> fmpq | None:
    """s > 0 with other = s·row, 1 where both are zero; None if there is none."""
    lead = next((i for i, x in enumerate(row) if x), None)
    s = ONE if lead is None else other[lead] / row[lead]
    return s if s > 0 and all(y == s * x for x, y in zip(row, other, strict=True)) else None


def product(left: fmpq_mat, right: fmpq_mat) -> fmpq_mat:
    """left·right, in blocks of rows with a look at the clock between them.

    One call of FLINT cannot be interrupted, and a product of wide layers takes many seconds.
    """
    n, k, m = left.nrows(), left.ncols(), right.ncols()
    rows_at_once = max(1, 200_000 // max(1, k * m))
    if n <= rows_at_once:
        tick()
        return left * right
    entries: list[fmpq] = []
    table = left.tolist()
    for start in range(0, n, rows_at_once):
        tick()
        block = [v for row in table[start : start + rows_at_once] for v in row]
        entries += (fmpq_mat(len(block) // k, k, block) * right).entries()
    return fmpq_mat(n, m, entries)


def column(values: Sequence[fmpq]) -> fmpq_mat:
    """A column vector (n×1)."""
    return fmpq_mat(len(values), 1, list(values))


def sign(value: fmpq) -> int:
    """-1, 0 or 1."""
    return (value > 0) - (value < 0)


def rows(matrix: fmpq_mat) -> list[list[fmpq]]:
    """The rows of a matrix as lists."""
    return [list(r) for r in matrix.tolist()]


def matrix(table: Sequence[Sequence[fmpq]], width: int) -> fmpq_mat:
    """A matrix from its rows; `width` gives the number of columns where there is no row."""
    if not table:
        return fmpq_mat(0, width)
    return fmpq_mat(len(table), width, [v for r in table for v in r])


def small_rational(value: float, bits: int = 30) -> fmpq:
    """A nearby rational with a power of two as denominator, so that exact work stays cheap."""
    if value == 0 or not math.isfinite(value):
        return ZERO
    shift = bits - math.frexp(value)[1]
    scaled = round(math.ldexp(value, shift))
    return fmpq(scaled, 1) / (fmpz(1) << shift) if shift >= 0 else fmpq(scaled << -shift)

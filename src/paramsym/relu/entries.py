"""Arrays of exact numbers, each with what its storage leaves open.

Numbers stay in float64 as long as nothing has to be rounded, and are rationals (`fmpq` in an array
of objects) from then on: the arithmetic is exact either way. A product of two floats is one if
their significant bits fit into 53 together or one of them is a power of two; a sum, if its error
vanishes. So zeros, signs, averages over two or four and small integers never leave float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from paramsym.relu.arithmetic import fmpq
from paramsym.relu.clock import tick
from paramsym.relu.errors import ReLUError
from paramsym.relu.formats import COMPUTED, EXACT, UP, Format, format_of
from paramsym.relu.rationals import ZERO, nearest_float, rational

_AT_ONCE = 1 << 16


@dataclass(frozen=True, eq=False)
class Entries:
    """Exact `values` (float64, or rationals as objects) that stand for any within `slack` of them.

    `formats` are those that the numbers behind them are stored in.
    """

    values: np.ndarray
    slack: np.ndarray
    formats: frozenset[Format] = frozenset()

    @property
    def rational(self) -> bool:
        """Whether the values are rationals rather than floats."""
        return self.values.dtype == object

    @property
    def sizes(self) -> np.ndarray:
        """|values| in float64."""
        return np.abs(as_floats(self.values))

    def shaped(self, shape: tuple[int, ...]) -> Entries:
        """The same numbers, broadcast to a shape."""
        return Entries(
            np.broadcast_to(self.values, shape), np.broadcast_to(self.slack, shape), self.formats
        )

    def at(self, index: Any) -> Entries:
        """The entries that an index selects."""
        return Entries(self.values[index], self.slack[index], self.formats)

    def __neg__(self) -> Entries:
        return Entries(-self.values, self.slack, self.formats)


def zeros(count: int) -> Entries:
    """Zeros that stand for themselves."""
    return Entries(np.zeros(count), np.zeros(count))


def entries_of(source: Any, where: str) -> Entries:
    """Numbers of any kind as entries: a table, a tensor, an array, a number, or entries.

    Tables with a dtype stand for what rounds to them; numbers, `Fraction`s and texts for
    themselves.

    Raises `ReLUError` for NaN, infinities, and what is no number.
    """
    if isinstance(source, Entries):
        return source
    if hasattr(source, "detach"):
        source = source.detach().cpu()
        held = format_of(source)
        wide = source.dtype.is_floating_point or source.dtype.itemsize < 4
        values = (source.double() if wide else source).numpy()
    else:
        values = np.asarray(source)
        held = format_of(source) if hasattr(source, "dtype") else EXACT
    if values.dtype.kind == "f":
        values = values.astype(np.float64)
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            place = tuple(int(v) for v in bad[0])
            raise ReLUError(
                f"the number {values[place]} at {list(place)}", "finite numbers", where,
                "Check the training run or the file: NaN and infinities define no function.",
            )  # fmt: skip
    elif values.dtype.kind in "iub" and (values.dtype.itemsize < 8 or _small(values)):
        values = values.astype(np.float64)
    else:
        flat = [rational(v, where) for v in values.reshape(-1).tolist()]
        values = _objects(flat).reshape(values.shape)
    slack = held.rounding(np.abs(as_floats(values)))
    return Entries(values, slack, frozenset() if held is EXACT else frozenset({held}))


def _small(values: np.ndarray) -> bool:
    return not values.size or max(-int(values.min()), int(values.max())) <= 1 << 53


def _objects(numbers: list[fmpq]) -> np.ndarray:
    made = np.empty(len(numbers), dtype=object)
    made[:] = numbers
    return made


def as_floats(values: np.ndarray) -> np.ndarray:
    """Exact values in float64, each correctly rounded."""
    if values.dtype != object:
        return values
    flat = np.array([nearest_float(v) for v in values.reshape(-1)], dtype=np.float64)
    return flat.reshape(values.shape)


def as_rationals(values: np.ndarray) -> np.ndarray:
    """Exact values as rationals."""
    if values.dtype == object:
        return values
    flat: list[fmpq] = []
    whole = values.reshape(-1)
    for start in range(0, whole.size, _AT_ONCE):
        tick()
        part = whole[start : start + _AT_ONCE].tolist()
        flat += [fmpq(*v.as_integer_ratio()) if v else ZERO for v in part]
    return _objects(flat).reshape(values.shape)


def as_fractions(values: np.ndarray) -> list[Fraction]:
    """Exact values, flat, as `Fraction`s."""
    return [Fraction(int(v.p), int(v.q)) for v in as_rationals(values).reshape(-1)]


def _bits(values: np.ndarray) -> np.ndarray:
    """How many significant bits each float has (0 for zero)."""
    mantissas = np.abs(np.frexp(values)[0] * 2.0**53).astype(np.int64)
    lowest = mantissas & -mantissas
    return np.where(mantissas == 0, 0, 54 - np.frexp(lowest.astype(np.float64))[1])


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a·b, exactly, of two arrays of one shape."""
    if object not in (a.dtype, b.dtype):
        with np.errstate(all="ignore"):
            floats = a * b
        size = np.abs(floats)
        p, q = _bits(a), _bits(b)
        fits = (p + q <= 53) | (p == 1) | (q == 1)
        if (fits & (size < 1e300) & (size > 1e-290) | (a == 0) | (b == 0)).all():
            return floats
    return _with(np.multiply, a, b, (a != 0) & (b != 0))


def _with(operation: Any, a: np.ndarray, b: np.ndarray, where: np.ndarray) -> np.ndarray:
    """An operation on rationals at some places; zero elsewhere."""
    made = np.full(a.shape, ZERO, dtype=object)
    made[where] = operation(as_rationals(a[where]), as_rationals(b[where]))
    return made


def times(a: Entries, b: Entries) -> Entries:
    """The products a·b, entry by entry, of arrays of one shape."""
    u, v = a.slack, b.slack
    if u.any() or v.any():
        p, q = a.sizes, b.sizes
        slack = (p * v + u * (q + v)) * UP
        slack = np.where((v == 0) & (q == 1), u, np.where((u == 0) & (p == 1), v, slack))
    else:
        slack = np.zeros(a.values.shape)
    return Entries(_product(a.values, b.values), slack, a.formats | b.formats)


def _sum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a + b, exactly, of two arrays of one shape."""
    if object not in (a.dtype, b.dtype):
        with np.errstate(all="ignore"):
            floats = a + b
            # Two-sum: the error of a sum of floats is a float, and it is this one.
            part = floats - a
            error = (a - (floats - part)) + (b - part)
        if not error.any():  # it is NaN where a sum overflowed
            return floats
    return _objects(list((as_rationals(a) + as_rationals(b)).reshape(-1))).reshape(a.shape)


def plus(a: Entries, b: Entries) -> Entries:
    """The sums a + b, entry by entry, of arrays of one shape."""
    slack = a.slack + b.slack
    slack = np.where((a.slack == 0) | (b.slack == 0), slack, slack * UP)
    return Entries(_sum(a.values, b.values), slack, a.formats | b.formats)


def sums(terms: Entries, starts: np.ndarray) -> Entries:
    """The sums of consecutive entries of a flat array, one for each start of a run."""
    counts = np.diff(np.append(starts, len(terms.values)))
    if len(starts) == len(terms.values):
        return terms
    slack = np.add.reduceat(terms.slack, starts)
    slack = np.where((counts == 1) | (slack == 0), slack, slack * UP)
    values = terms.values[starts]
    for k in range(1, int(counts.max())):
        if values.dtype == object:
            values = np.add.reduceat(as_rationals(terms.values), starts)
            break
        more = np.flatnonzero(counts > k)
        following = _sum(values[more], terms.values[starts[more] + k])
        values = values if following.dtype != object else as_rationals(values)
        values[more] = following
    return Entries(values, slack, terms.formats)


def joined(parts: list[Entries]) -> Entries:
    """Flat arrays, one after the other."""
    exact = any(p.rational for p in parts)
    values = [as_rationals(p.values) if exact else p.values for p in parts]
    formats = frozenset().union(*(p.formats for p in parts))
    return Entries(np.concatenate(values), np.concatenate([p.slack for p in parts]), formats)


def reciprocal(a: Entries, where: str) -> Entries:
    """1/a, exactly; raises `ReLUError` where a zero is within the slack of some entry."""
    sizes = a.sizes
    if (sizes <= a.slack).any():
        raise ReLUError(
            "a division by a number that may be zero", "a divisor away from zero", where,
            "Check the scales: with such a divisor there is no function.",
        )  # fmt: skip
    powers = (not a.rational) and bool((_bits(a.values) == 1).all() and (sizes > 1e-290).all())
    if powers:
        values = 1.0 / a.values
    else:
        flat = [fmpq(1) / v for v in as_rationals(a.values).reshape(-1)]
        values = _objects(flat).reshape(a.values.shape)
    return Entries(values, a.slack / (sizes * (sizes - a.slack)) * UP, a.formats)


def normalising(gain: Entries, variance: Entries, epsilon: float) -> Entries:
    """gain/√(variance + epsilon), computed in float64, with the slack of both and of computing it.

    Raises `ReLUError` where the variance plus epsilon may not be positive.
    """
    shape = np.broadcast_shapes(gain.values.shape, variance.values.shape)
    gain, variance = gain.shaped(shape), variance.shaped(shape)
    numbers, spread = as_floats(gain.values), as_floats(variance.values) + epsilon
    if not (spread > variance.slack).all():
        raise ReLUError(
            "a variance that may be zero or negative", "variance + epsilon > 0", "batch norm",
            "Check the statistics: with such a variance there is no function.",
        )  # fmt: skip
    values = numbers / np.sqrt(spread)
    most = (np.abs(numbers) + gain.slack) / np.sqrt(spread - variance.slack)
    slack = (most - np.abs(values)) * UP + 8 * COMPUTED.unit * most
    return Entries(values, slack, gain.formats | variance.formats | {COMPUTED})

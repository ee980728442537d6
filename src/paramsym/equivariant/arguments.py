"""What may come in: numbers, matrices, second moments. Every public function asks here.

NaN passes every comparison with a bound, a negative tolerance accepts nothing, and a matrix that is
no second moment has an optimum below zero: none of them is an answer to anything.
"""

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .errors import (
    BadNumberError,
    NotASecondMomentError,
    NotFiniteError,
    RankTooLargeError,
    ShapeMismatchError,
)

Real = NDArray[np.float64]
ROUNDING = 1e-6  # of the largest entry: what sums in float32 over many samples leave
_TINY = float(np.finfo(np.float64).tiny)  # numbers below it have lost digits, and no sign is sure


def whole(value: Any, where: str, low: int | None = 0, high: int | None = None) -> int:
    """An integer, from `low` to `high`; None for no bound.

    Args:
        value: a Python or NumPy integer; 3.0 and True are none.
        where: the argument, as the caller writes it.
        low: the smallest one allowed.
        high: the largest one allowed.

    Raises:
        BadNumberError: something else.
    """
    try:
        number = None if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        number = None
    above = number is not None and (low is None or number >= low)
    if number is None or not above or (high is not None and number > high):
        raise BadNumberError(where, value, "an integer" + _range(low, high))
    return number


def real(value: Any, where: str, low: float = 0.0) -> float:
    """A finite number that is at least `low`.

    Args:
        value: anything that `float` takes, a text excepted.
        where: the argument, as the caller writes it.
        low: the smallest one allowed.

    Raises:
        BadNumberError: something else, NaN and infinity included.
    """
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (math.isfinite(number) and number >= low):
        raise BadNumberError(where, value, f"a finite number, at least {low:g}")
    return number


def rank_up_to(largest: int, value: Any, where: str) -> int:
    """A rank from 0 to the largest one.

    Raises:
        BadNumberError: no integer.
        RankTooLargeError: an integer outside the range.
    """
    rank = whole(value, where, low=None)
    if not 0 <= rank <= largest:
        raise RankTooLargeError(where, rank, largest)
    return rank


def finite_matrix(value: Any, where: str, shape: Sequence[int]) -> Real:
    """A real matrix of this shape in float64, from NumPy, torch or nested lists.

    Raises:
        ShapeMismatchError: another shape.
        NotFiniteError: an entry is NaN, infinite, complex, or no number.
    """
    if isinstance(value, torch.Tensor):
        value = value.detach().to("cpu", torch.float64).numpy()
    try:
        given = np.asarray(value)
    except ValueError:
        raise NotFiniteError(where, "rows of different lengths") from None
    if given.shape != tuple(shape):
        raise ShapeMismatchError(where, given.shape, shape)
    if given.dtype.kind not in "fiu":
        raise NotFiniteError(where, f"entries of type {given.dtype}")
    matrix = np.asarray(given, dtype=np.float64)
    bad = int((~np.isfinite(matrix)).sum())
    if bad:
        raise NotFiniteError(where, f"{bad} of {matrix.size} entries NaN or infinite")
    return matrix


def second_moment_matrix(value: Any, where: str, size: int | None = None) -> Real:
    """C = E[x xᵀ] (n × n): symmetric and positive semidefinite up to rounding; its symmetric part.

    Args:
        value: NumPy or torch.
        where: the argument, as the caller writes it.
        size: n; None for whatever the matrix says.

    Raises:
        ShapeMismatchError: not n × n.
        NotFiniteError: an entry is NaN or infinite.
        NotASecondMomentError: not symmetric, or with a negative eigenvalue, beyond 1e-6 of the
            largest entry.
    """
    if size is None:
        size = len(value) if hasattr(value, "__len__") else 0
    matrix = finite_matrix(value, where, (size, size))
    largest = float(np.abs(matrix).max(initial=0.0))
    skew = float(np.abs(matrix - matrix.T).max(initial=0.0))
    if skew > ROUNDING * largest + _TINY:
        raise NotASecondMomentError(where, f"|C − Cᵀ| up to {skew:.3g}, entries {largest:.3g}")
    symmetric = matrix / 2 + matrix.T / 2
    if largest:  # Cholesky takes a tenth of the time of the eigenvalues
        allowed = ROUNDING * float(np.trace(symmetric)) / size + ROUNDING * largest + _TINY
        try:
            np.linalg.cholesky(symmetric + allowed * np.eye(size))
        except np.linalg.LinAlgError:
            lowest = float(np.linalg.eigvalsh(symmetric)[0])
            found = f"the eigenvalue {lowest:.3g}, entries up to {largest:.3g}"
            raise NotASecondMomentError(where, found) from None
    return symmetric


def _range(low: int | None, high: int | None) -> str:
    if low is None and high is None:
        return ""
    if high is None:
        return f", at least {low}"
    return f" from {low} to {high}"

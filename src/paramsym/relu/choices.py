"""Choices by sign: comparisons, and what is chosen between; and how an operation is refused."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NoReturn

import numpy as np

from paramsym.relu.entries import Entries, as_fractions
from paramsym.relu.errors import ReLUError
from paramsym.relu.forms import PLACE
from paramsym.relu.piecewise import Piecewise, rearranged

KNOWN = (
    "Piecewise linear are affine maps, convolutions, averages, batch norm in evaluation, and what "
    "ReLU, leaky ReLU, clamp, maximum, minimum, abs and max pooling make of them."
)


@dataclass(frozen=True, eq=False)
class Side:
    """Where a function is positive: a comparison. What it is at zero must not matter."""

    of: Piecewise


@dataclass(frozen=True)
class Jumping:
    """A result that jumps, such as the place of a maximum; whoever reads it is refused."""

    what: str


PLACES = Jumping("the places of a maximum")


def refused(came: str, todo: str = KNOWN) -> NoReturn:
    """Say that an operation makes no piecewise linear function."""
    raise ReLUError(came, "an operation that makes piecewise linear functions", PLACE, todo)


def varies(value: Any) -> bool:
    """Whether this is an array of functions of the input."""
    return isinstance(value, Piecewise)


def constant(value: Any, what: str) -> Any:
    """The value, which must not depend on the input."""
    if isinstance(value, (Piecewise, Side)):
        refused(f"{what} of two values that both depend on the input")
    return value


def greater(a: Any, b: Any) -> Side:
    return Side(a - b if varies(a) else -b + a)


def smaller(a: Any, b: Any) -> Side:
    return Side(b - a if varies(b) else -a + b)


def where(side: Any, a: Any, b: Any) -> Piecewise:
    """a where z > 0, b elsewhere; continuous if a - b = k·z, and then it is b + k·relu(z)."""
    if not isinstance(side, Side):
        return _chosen(side, a, b)
    b = b if varies(b) else Piecewise.of(b)
    jump, z = b * 0 + a - b, side.of
    shape = np.broadcast_shapes(jump.shape, z.shape)
    jump, z = jump.broadcast_to(shape), z.broadcast_to(shape)
    factors = []
    for of_jump, of_z in zip(_rows(jump), _rows(z), strict=True):
        factor = next((of_jump.get(key, Fraction(0)) / v for key, v in of_z.items()), Fraction(0))
        if of_jump != {key: factor * v for key, v in of_z.items() if factor}:
            refused("a choice between two functions that differ where it changes: a jump")
        factors.append(factor)
    table = np.empty(len(factors), dtype=object)
    table[:] = factors
    return b + z.relu() * table.reshape(shape)


def _chosen(mask: Entries, a: Any, b: Any) -> Piecewise:
    """a where a constant mask is true, b elsewhere."""
    parts = [p if varies(p) else Piecewise.of(p) for p in (a, b)]

    def choose(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return np.where(mask.values != 0, first, second)

    return rearranged(choose, parts)


def _rows(x: Piecewise) -> list[dict[Any, Fraction]]:
    """The non-zero coefficients of each entry."""
    made: list[dict[Any, Fraction]] = [{} for _ in range(x.size)]
    for row, value in enumerate(as_fractions(x.constant.values)):
        if value:
            made[row][None] = value
    for atoms, c in x.terms.items():
        places = zip(c.rows.tolist(), c.columns.tolist(), as_fractions(c.entries.values),
                     strict=True)  # fmt: skip
        for row, column, value in places:
            if value:
                made[row][atoms, column] = value
    return made

"""Values of an ONNX graph, functions of the input or constants, and two ways to compute with them.

Arithmetic is that of ATen operators, folded on constants (`constants`) and exact on what varies
(`operators`). What only moves entries is a function of their places, the same for both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from paramsym.relu import operators
from paramsym.relu.choices import Side, refused, varies
from paramsym.relu.constants import Constant, fold
from paramsym.relu.piecewise import Piecewise, rearranged

MOST_FUNCTIONS = 1 << 20
MOST_CONSTANTS = 1 << 24


def computed(target: Any, *args: Any) -> Any:
    """What an ATen operator makes: a fold of constants, or a function where an argument varies."""
    if not any(isinstance(a, (Piecewise, Side)) for a in args):
        return fold(target, args, {})
    given = [a.entries if isinstance(a, Constant) else a for a in args]
    return operators.apply(target, given, {})


def moved(function: Callable[..., np.ndarray], *arrays: Any) -> Any:
    """What a function that only moves, repeats or drops entries makes of arrays.

    Args:
        function: of arrays of places.
    """
    if any(varies(a) for a in arrays):
        return rearranged(function, [a.entries if isinstance(a, Constant) else a for a in arrays])
    sizes = [a.value.numel() for a in arrays]
    starts = np.cumsum([0, *sizes])
    places = [
        np.arange(n).reshape(tuple(a.value.shape)) + start
        for n, a, start in zip(sizes, arrays, starts, strict=False)
    ]
    index = torch.from_numpy(np.array(function(*places), order="C"))
    value = torch.cat([a.value.reshape(-1) for a in arrays])[index]
    slack = torch.cat([a.slack.reshape(-1) for a in arrays])[index]
    return Constant(value, slack, frozenset().union(*(a.formats for a in arrays)))


def check_room(count: int, *arrays: Any) -> None:
    """Raises `ReLUError` before an operator makes more entries than a decision could ever use.

    Args:
        count: of the entries that it makes of these arrays; functions take far more than constants.
    """
    check_entries(count, MOST_FUNCTIONS if any(varies(a) for a in arrays) else MOST_CONSTANTS)


def check_entries(count: int, limit: int) -> None:
    """Raises `ReLUError` for an array of more entries than a limit."""
    if count > limit:
        refused(f"an array of {count:,} entries, where at most {limit:,} are read",
                "Decide a smaller part of the network, or smaller inputs.")  # fmt: skip


def shape_of(x: Any) -> tuple[int, ...]:
    """The shape of functions or of a constant."""
    return x.shape if varies(x) else tuple(x.value.shape)


def lifted(x: Any) -> Piecewise:
    """Constants as functions."""
    return x if varies(x) else Piecewise.of(x.entries)


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the first; raises `ReLUError` where there is none."""
    if not -rank <= axis < rank:
        refused(f"the axis {axis} of an array with {rank} axes")
    return axis % rank

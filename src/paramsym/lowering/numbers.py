"""Constants of one entry beside tensors, which are numbers."""

from __future__ import annotations

import math
from typing import Any

from paramsym.lowering.builder import Builder, Tensor
from paramsym.lowering.recognisers.context import Context


def as_numbers(build: Builder, x: Any, y: Any) -> tuple[Any, Any]:
    """Two factors, where a constant of one entry beside a tensor that moves is a number."""
    for one, other in ((x, y), (y, x)):
        if (
            not (isinstance(one, Tensor) and isinstance(other, Tensor))
            or one.moves
            or not other.moves
        ):
            continue
        if math.prod(one.shape) != 1 or one.ndim > other.ndim or one.value is None:
            continue
        number = Context(build.graph).number(one.value)
        if number is not None and 0 < abs(number) < math.inf:
            return (number, y) if one is x else (x, number)
    return x, y

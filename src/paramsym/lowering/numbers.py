"""Constants whose entries are all equal, beside tensors: they are numbers."""

from __future__ import annotations

import math
from typing import Any

import torch

from paramsym.lowering.builder import Builder, Tensor
from paramsym.lowering.recognisers.context import Context


def as_numbers(build: Builder, x: Any, y: Any) -> tuple[Any, Any]:
    """Two operands; a constant beside a tensor that moves is the number that its entries are."""
    for one, other in ((x, y), (y, x)):
        if (
            not (isinstance(one, Tensor) and isinstance(other, Tensor))
            or one.moves
            or not other.moves
        ):
            continue
        if one.value is None or torch.broadcast_shapes(one.shape, other.shape) != other.shape:
            continue
        number = Context(build.graph).number(one.value)
        if number is not None and 0 < abs(number) < math.inf:
            return (number, y) if one is x else (x, number)
    return x, y

"""Elements number by number."""

from __future__ import annotations

from typing import Any

import torch

from paramsym import AlgebraElement, GroupElement
from paramsym.structure.element import Slide
from paramsym.structure.membership import tensors_of

Tensors = list[tuple[str, torch.Tensor]]


def numbers(element: GroupElement | AlgebraElement) -> Tensors:
    """Every tensor of an element with its place, in order."""
    if isinstance(element, AlgebraElement):
        found: list[tuple[str, Any]] = [*element.values.items(), *element.offsets.items()]
    else:
        found = [
            item
            for part in element.parts
            for item in ([(part.shift + str(part.inverse), part.offset)]
                         if isinstance(part, Slide) else part.items())
        ]  # fmt: skip
    return [
        (f"{name}.{field}", x)
        for name, value in found
        for field, x in ([("", value)] if isinstance(value, torch.Tensor) else tensors_of(value))
    ]


def real(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(x) if x.is_complex() else x


def same(one: Tensors, other: Tensors) -> bool:
    """Equal to the last digit, with dtypes and shapes."""
    return len(one) == len(other) and all(
        a == b and x.dtype == y.dtype and x.shape == y.shape and torch.equal(real(x), real(y))
        for (a, x), (b, y) in zip(one, other, strict=True)
    )

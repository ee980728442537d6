"""Numbers of typed tensors: their layout in storage, and traced calls run on other numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from paramsym.recording.graph import Call
from paramsym.recording.in_place import aside
from paramsym.recording.replay import run_call

Layout = tuple[Sequence[int], Sequence[int], int]  # shape, strides, offset


def laid_out(numbers: torch.Tensor, layout: Layout) -> torch.Tensor:
    """A storage that holds numbers in a given layout, which may repeat entries."""
    shape, strides, offset = layout
    at = torch.full(tuple(shape), offset, device=numbers.device)
    for k, (n, stride) in enumerate(zip(shape, strides, strict=True)):
        steps = torch.arange(n, device=numbers.device) * stride
        at = at + steps.reshape(-1, *[1] * (len(shape) - k - 1))
    storage = numbers.new_zeros(int(at.max()) + 1 if at.numel() else 0)
    storage[at.reshape(-1)] = numbers.reshape(-1)
    return storage


def read_off(numbers: torch.Tensor, layout: Layout, window: Layout) -> torch.Tensor:
    """The window on a storage in which numbers lie in a given layout."""
    return torch.as_strided(laid_out(numbers, layout), *window)


def spread(x: torch.Tensor, xs: list[int], y: torch.Tensor, ys: list[int]) -> torch.Tensor:
    """An operand with axes of length one stretched to those of the other."""
    sizes = dict(zip(ys, y.shape, strict=True))
    return x.expand([sizes.get(a, n) if n == 1 else n for a, n in zip(xs, x.shape, strict=True)])


def can_run(call: Call) -> bool:
    """Whether the target of a call makes its outputs: a write to a second argument is none."""
    return call.target is not None and not call.name.endswith(aside(""))


@dataclass(frozen=True, eq=False)
class Rerun:
    """Traced calls as one function of some of their operands (by id), in this order."""

    calls: tuple[Call, ...]
    operands: tuple[int, ...]
    output: int

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        known = dict(zip(self.operands, tensors, strict=True))
        for call in self.calls:
            run_call(call, known)
        return known[self.output]

"""The grids that weights are rounded to: b-bit integers times a step, one step for each group."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

MOST_BITS = 16
PER_TENSOR, PER_CHANNEL = "tensor", "channel"


@dataclass(frozen=True)
class Grid:
    """Integers of b bits, times a step that the weights of a group share.

    The step is the range of the group over the number of steps, so that its largest weight is on
    the grid:

        symmetric       range max|w|,               codes −(2ᵇ⁻¹ − 1) … 2ᵇ⁻¹ − 1
        not symmetric   range max w⁺ + max w⁻,      codes 0 … 2ᵇ − 1, one of which is zero

    Attributes:
        bits: b, from 2 to 16.
        groups: "tensor": one group; "channel": one for each index of the first axis, the output
            channels of linear and convolutional layers; n: all axes but the first are read in
            row-major order, n entries to a group; the last group of a row may be shorter.
        symmetric: whether the grid is symmetric about zero.

    Raises:
        ValueError: any other number of bits or kind of groups.
    """

    bits: int
    groups: Literal["tensor", "channel"] | int = PER_TENSOR
    symmetric: bool = True

    def __post_init__(self) -> None:
        whole = isinstance(self.bits, int) and not isinstance(self.bits, bool)
        if not whole or not 2 <= self.bits <= MOST_BITS:
            raise ValueError(
                f"Grid(bits={self.bits!r}): a whole number from 2 to {MOST_BITS} was expected: "
                "with one bit a symmetric grid has no step. Pass for example Grid(4)."
            )
        counted = isinstance(self.groups, int) and not isinstance(self.groups, bool)
        if self.groups not in (PER_TENSOR, PER_CHANNEL) and not (counted and self.groups >= 1):
            raise ValueError(
                f"Grid(groups={self.groups!r}): 'tensor', 'channel' or the number of weights in "
                "a group was expected. Pass for example Grid(4, groups=32)."
            )

    @property
    def steps(self) -> int:
        """The number of steps in the range of a group."""
        return 2 ** (self.bits - 1) - 1 if self.symmetric else 2**self.bits - 1

    def group_of(self, shape: tuple[int, ...]) -> Tensor:
        """For each entry of a tensor the number of its group, from 0 on, in its shape."""
        if self.groups == PER_TENSOR or not shape:
            return torch.zeros(shape, dtype=torch.int64)
        rows, width = shape[0], math.prod(shape[1:])
        if self.groups == PER_CHANNEL:
            return torch.arange(rows).reshape(-1, *[1] * (len(shape) - 1)).expand(shape)
        assert isinstance(self.groups, int)
        each = -(-width // self.groups)
        found = torch.arange(width) // self.groups + each * torch.arange(rows)[:, None]
        return found.reshape(shape)

    def ranges(self, tensor: Tensor) -> Tensor:
        """The range of each group, of shape (groups,), in double precision."""
        up, down = self.sides(tensor)
        return torch.maximum(up, down) if self.symmetric else up + down

    def sides(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        """The largest positive part of each group and the largest negative part, (groups,)."""
        index = self.group_of(tuple(tensor.shape)).reshape(-1)
        count = int(index.max()) + 1 if index.numel() else 0
        flat, zero = tensor.detach().reshape(-1).double(), torch.zeros(count, dtype=torch.float64)
        return (
            zero.scatter_reduce(0, index, flat.clamp(min=0), "amax"),
            zero.scatter_reduce(0, index, (-flat).clamp(min=0), "amax"),
        )

    def rounded(self, tensor: Tensor) -> Tensor:
        """The nearest points of the grid, in the shape and dtype of a real tensor.

        Raises:
            ValueError: numbers that are not real and finite.
        """
        if not tensor.is_floating_point() or not bool(tensor.isfinite().all()):
            raise ValueError(
                f"Grid.rounded(tensor): a {tensor.dtype} tensor of shape {tuple(tensor.shape)} "
                "with numbers that are not real and finite came; a range needs finite ones. Look "
                "where training broke, or leave this tensor as it is."
            )
        if not tensor.numel():
            return tensor
        index = self.group_of(tuple(tensor.shape))
        step = self.ranges(tensor) / self.steps
        step = torch.where(step > 0, step, torch.ones_like(step))
        codes = (tensor.double() / step[index]).round()  # nothing to clamp: see the class
        if not self.symmetric:
            zero = (self.sides(tensor)[1] / step).round()[index]
            codes = (codes + zero).clamp(0, self.steps) - zero
        return (codes * step[index]).to(tensor.dtype)

"""Nonlinearities that keep equivariance exact.

- Pointwise: any function of one number, applied where the group only permutes coordinates.
- Norm: ‖x‖ of a copy of an irreducible is invariant, so x ↦ x · φ(‖x‖) commutes with the group in
  adapted coordinates, where nothing else pointwise does.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from .blocks import Bundle


class NormGate(nn.Module):
    r"""x ↦ x · sigmoid(a‖x‖ + b) for each copy of each irreducible, with a and b learned.

    Args:
        bundles: the blocks in bundles of equal shape, with a and b (blocks × copies) for each.
        padded: the same blocks in the bundles of the values.
        space: the number of the space it acts on.
        dtype: of a and b.
    """

    def __init__(
        self,
        bundles: Sequence[Bundle],
        padded: Sequence[Bundle],
        space: int,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.sizes = [b.size for b in padded]
        self.slices = [b.slices for b in padded]
        shapes = [(len(b.blocks), b.copies[space]) for b in bundles]
        self.slopes = nn.ParameterList([torch.ones(shape, dtype=dtype) for shape in shapes])
        self.offsets = nn.ParameterList([torch.zeros(shape, dtype=dtype) for shape in shapes])
        numbers: dict[int, np.ndarray] = {}
        used = 0
        for b, (blocks, copies) in zip(bundles, shapes, strict=True):
            mine = used + np.arange(blocks * copies).reshape(blocks, copies)
            numbers |= zip(b.blocks, mine, strict=True)
            used += blocks * copies
        # A padded copy is zero, whatever its gate.
        self.shapes = [(len(b.blocks), b.copies[space]) for b in padded]
        place = [np.zeros(0, dtype=np.int64)]
        for b, shape in zip(padded, self.shapes, strict=True):
            rows = np.zeros(shape, dtype=np.int64)
            for row, i in enumerate(b.blocks):
                rows[row, : len(numbers[i])] = numbers[i]
            place.append(rows.ravel())
        self.register_buffer("place", torch.as_tensor(np.concatenate(place)), persistent=False)
        self.place: Tensor

    def _padded(self, parameters: nn.ParameterList) -> list[Tensor]:
        free = torch.cat([p.reshape(-1) for p in parameters]).index_select(0, self.place)
        pieces = free.split([a * b for a, b in self.shapes])
        return [piece.view(*shape, 1) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def forward(self, values: list[Tensor]) -> list[Tensor]:
        if not values:
            return []
        result = []
        slopes, offsets = self._padded(self.slopes), self._padded(self.offsets)
        for i, value in enumerate(values):
            blocks, rows, samples = value.shape
            size, slices = self.sizes[i], self.slices[i]
            x = value.reshape(blocks, rows // size, size, slices, samples // slices)
            # The derivative of a square root at 0 is not finite; the smallest normal number is.
            square = x.square().sum((2, 3)) + torch.finfo(x.dtype).tiny
            gate = torch.sigmoid(slopes[i] * square.sqrt() + offsets[i])
            result.append((x * gate[:, :, None, None]).reshape(value.shape))
        return result

"""Nonlinearities that keep equivariance exact.

- Pointwise: any function of one number, applied where the group only permutes coordinates.
- Norm: ‖x‖ of a copy of an irreducible is invariant, so x ↦ x · φ(‖x‖) commutes with the group in
  adapted coordinates, where nothing else pointwise does.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .blocks import Bundle


class NormGate(nn.Module):
    r"""x ↦ x · sigmoid(a‖x‖ + b) for each copy of each irreducible, with a and b learned.

    Args:
        bundles: the bundles of the network.
        space: the number of the space it acts on.
        dtype: of a and b (both of shape (blocks, copies) for each bundle).
    """

    def __init__(self, bundles: Sequence[Bundle], space: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.sizes = [b.size for b in bundles]
        self.slices = [b.slices for b in bundles]
        shapes = [(len(b.blocks), b.copies[space]) for b in bundles]
        self.slopes = nn.ParameterList([torch.ones(shape, dtype=dtype) for shape in shapes])
        self.offsets = nn.ParameterList([torch.zeros(shape, dtype=dtype) for shape in shapes])

    def forward(self, values: list[Tensor]) -> list[Tensor]:
        result = []
        for i, value in enumerate(values):
            blocks, rows, samples = value.shape
            size, slices = self.sizes[i], self.slices[i]
            x = value.reshape(blocks, rows // size, size, slices, samples // slices)
            # The derivative of a square root at 0 is not finite; the smallest normal number is.
            square = x.square().sum((2, 3)) + torch.finfo(x.dtype).tiny
            gate = torch.sigmoid(
                self.slopes[i][..., None] * square.sqrt() + self.offsets[i][..., None]
            )
            result.append((x * gate[:, :, None, None]).reshape(value.shape))
        return result

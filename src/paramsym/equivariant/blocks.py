r"""Equivariant linear maps in adapted coordinates: one small matrix over ℝ, ℂ or ℍ for each block.

Weights are kept in bundles of blocks of equal shape. They are multiplied in bundles of similar
shape: one batched product for each, with smaller matrices padded by zeros (see `padding`). A value
inside a network is a list of tensors, one for each of the latter, of shape
(blocks, copies·δ, slices·B): coordinates are rows and the slices of an irreducible are just more
samples, which is what I ⊗ realise(A) says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod, sqrt

import numpy as np
import torch
from torch import Tensor, nn

from .decomposition import Isotypic
from .division import MULTIPLICATION

Multiplicities = tuple[int, ...]


@dataclass(frozen=True)
class Bundle:
    """Isotypic blocks of equal shape in every layer, or padded to one.

    Args:
        size: δ.
        slices: p/δ.
        blocks: their numbers.
        copies: the multiplicity in each space along the network, of padded blocks the largest.
    """

    size: int
    slices: int
    blocks: tuple[int, ...]
    copies: tuple[int, ...]


def bundle(isotypics: Sequence[Isotypic], spaces: Sequence[Multiplicities]) -> tuple[Bundle, ...]:
    """Groups the blocks that are present in all spaces; the others carry nothing and are dropped.

    Args:
        isotypics: all blocks.
        spaces: the multiplicities of each block in each space along the network.
    """
    groups: dict[tuple[int, int, tuple[int, ...]], list[int]] = {}
    for i, v in enumerate(isotypics):
        copies = tuple(space[i] for space in spaces)
        if all(copies):
            groups.setdefault((v.size, v.slices, copies), []).append(i)
    return tuple(
        Bundle(size, slices, tuple(blocks), copies)
        for (size, slices, copies), blocks in groups.items()
    )


class BlockLinear(nn.Module):
    """One matrix A_i (e_i × d_i over D_i) for each block: the free parameters and nothing else.

    Args:
        bundles: the blocks in bundles of equal shape; weights stand in their order.
        padded: the same blocks in the bundles of the products.
        step: maps from space number `step` to `step + 1`.
        dtype: of the weights.
        generator: of the initial weights (variance 1/(d·δ), so that norms are kept on average).
    """

    def __init__(
        self,
        bundles: Sequence[Bundle],
        padded: Sequence[Bundle],
        step: int,
        dtype: torch.dtype,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        self.stored: list[tuple[int, int, int, int]] = []
        self.shapes: list[tuple[int, int, int]] = []
        weights = [torch.zeros(0, dtype=dtype)]
        # Every entry of a realised block is one weight with a sign: its number, from 1.
        labels: dict[int, np.ndarray] = {}
        used = 0
        for b in bundles:
            columns, rows = b.copies[step], b.copies[step + 1]
            shape = (len(b.blocks), rows, columns, b.size)
            weight = torch.randn(shape, dtype=dtype, generator=generator)
            weights.append(weight.reshape(-1) / sqrt(columns * b.size))
            self.stored.append(shape)
            numbers = used + np.arange(1, weight.numel() + 1).reshape(shape)
            table = MULTIPLICATION[b.size].astype(np.int64)
            realised = np.einsum("xedc,ckl->xekdl", numbers, table)
            labels |= zip(b.blocks, realised.reshape(shape[0], rows * b.size, -1), strict=True)
            used += weight.numel()
        # One parameter for all blocks: a step of training costs calls, and calls cost time.
        self.weight = nn.Parameter(torch.cat(weights))
        entries = [np.zeros(0, dtype=np.int64)]
        for b in padded:
            shape = (len(b.blocks), b.copies[step + 1] * b.size, b.copies[step] * b.size)
            self.shapes.append(shape)
            table = np.zeros(shape, dtype=np.int64)
            for row, i in enumerate(b.blocks):
                height, width = labels[i].shape
                table[row, :height, :width] = labels[i]
            entries.append(table.ravel())
        label = np.concatenate(entries)
        place, sign = np.maximum(np.abs(label) - 1, 0), np.sign(label)  # padding is 0 · weight 0
        self.register_buffer("place", torch.as_tensor(place), persistent=False)
        self.register_buffer("sign", torch.as_tensor(sign, dtype=dtype), persistent=False)
        self.place: Tensor
        self.sign: Tensor

    @property
    def weights(self) -> list[Tensor]:
        """The parts (blocks × e × d × δ) of the parameter that are the weights of each bundle."""
        pieces = self.weight.split([prod(shape) for shape in self.stored])
        return [piece.view(shape) for piece, shape in zip(pieces, self.stored, strict=True)]

    def realised(self) -> list[Tensor]:
        """The real matrices (blocks × e·δ × d·δ) of multiplication by the weights."""
        if not self.shapes:
            return []
        entries = self.weight.index_select(0, self.place) * self.sign
        sizes = [prod(shape) for shape in self.shapes]
        pieces = entries.split(sizes)
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def forward(self, values: list[Tensor]) -> list[Tensor]:
        return [torch.bmm(w, x) for w, x in zip(self.realised(), values, strict=True)]


def split_rows(rows: Tensor, bundles: Sequence[Bundle], space: int) -> list[Tensor]:
    """Coordinates of one space (rows × B) as one tensor for each bundle."""
    batch = rows.shape[1]
    heights = [len(b.blocks) * b.copies[space] * b.size * b.slices for b in bundles]
    return [
        piece.reshape(len(b.blocks), b.copies[space] * b.size, b.slices * batch)
        for b, piece in zip(bundles, rows.split(heights), strict=True)
    ]


def join_rows(values: Sequence[Tensor], bundles: Sequence[Bundle], space: int) -> Tensor:
    """The inverse of `split_rows`."""
    heights = [len(b.blocks) * b.copies[space] * b.size * b.slices for b in bundles]
    pairs = zip(values, bundles, heights, strict=True)
    return torch.cat([v.reshape(height, v.shape[2] // b.slices) for v, b, height in pairs])

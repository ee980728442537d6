r"""Equivariant linear maps in adapted coordinates: one small matrix over ℝ, ℂ or ℍ for each block.

Blocks of equal shape are bundled into one batched product. A value inside a network is a list of
tensors, one for each bundle, of shape (blocks, copies·δ, slices·B): coordinates are rows and the
slices of an irreducible are just more samples, which is what I ⊗ realise(A) says.
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
    """Isotypic blocks of equal shape in every layer.

    Args:
        size: δ.
        slices: p/δ.
        blocks: their numbers.
        copies: the multiplicity in each space along the network.
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
        bundles: the bundles of the network.
        step: maps from space number `step` to `step + 1`.
        dtype: of the weights.
        generator: of the initial weights (variance 1/(d·δ), so that norms are kept on average).
    """

    def __init__(
        self,
        bundles: Sequence[Bundle],
        step: int,
        dtype: torch.dtype,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        self.weights = nn.ParameterList()
        self.shapes: list[tuple[int, int, int]] = []
        places, signs, used = [], [], 0
        for b in bundles:
            columns, rows = b.copies[step], b.copies[step + 1]
            shape = (len(b.blocks), rows, columns, b.size)
            weight = torch.randn(shape, dtype=dtype, generator=generator)
            self.weights.append(nn.Parameter(weight / sqrt(columns * b.size)))
            # Every entry of a realised block is one weight with a sign: find it by its number.
            numbers = np.arange(1, weight.numel() + 1).reshape(shape)
            table = MULTIPLICATION[b.size].astype(np.int64)
            labels = np.einsum("xedc,ckl->xekdl", numbers, table).ravel()
            places.append(np.abs(labels) - 1 + used)
            signs.append(np.sign(labels))
            self.shapes.append((len(b.blocks), rows * b.size, columns * b.size))
            used += weight.numel()
        place = np.concatenate([*places, np.zeros(0, dtype=np.int64)])
        sign = np.concatenate([*signs, np.zeros(0, dtype=np.int64)])
        self.register_buffer("place", torch.as_tensor(place), persistent=False)
        self.register_buffer("sign", torch.as_tensor(sign, dtype=dtype), persistent=False)
        self.place: Tensor
        self.sign: Tensor

    def realised(self) -> list[Tensor]:
        """The real matrices (blocks × e·δ × d·δ) of multiplication by the weights."""
        if not self.shapes:
            return []
        free = torch.cat([w.reshape(-1) for w in self.weights])
        entries = free.index_select(0, self.place) * self.sign
        sizes = [prod(shape) for shape in self.shapes]
        pieces = entries.split(sizes)
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def forward(self, values: list[Tensor]) -> list[Tensor]:
        return [torch.bmm(w, x) for w, x in zip(self.realised(), values, strict=True)]


def split_rows(rows: Tensor, bundles: Sequence[Bundle], space: int) -> list[Tensor]:
    """Kept coordinates (rows × B) as one tensor for each bundle."""
    batch = rows.shape[1]
    heights = [len(b.blocks) * b.copies[space] * b.size * b.slices for b in bundles]
    return [
        piece.reshape(len(b.blocks), b.copies[space] * b.size, b.slices * batch)
        for b, piece in zip(bundles, rows.split(heights), strict=True)
    ]


def join_rows(values: Sequence[Tensor], bundles: Sequence[Bundle], batch: int) -> Tensor:
    """The inverse of `split_rows`."""
    heights = (v.shape[0] * v.shape[1] * b.slices for v, b in zip(values, bundles, strict=True))
    return torch.cat([v.reshape(h, batch) for v, h in zip(values, heights, strict=True)])


def fold_channels(rows: Tensor, bundles: Sequence[Bundle], channels: int, space: int) -> Tensor:
    """(rows × channels·B) → (channels·rows × B): the channels become further copies."""
    if channels == 1:
        return rows
    batch = rows.shape[1] // channels
    if not bundles:
        return rows.new_zeros(0, batch)
    pieces, start = [], 0
    for b in bundles:
        per_block = b.copies[space] // channels * b.size * b.slices
        height = len(b.blocks) * per_block
        piece = rows[start : start + height].reshape(len(b.blocks), per_block, channels, batch)
        pieces.append(piece.transpose(1, 2).reshape(height * channels, batch))
        start += height
    return torch.cat(pieces)


def unfold_channels(rows: Tensor, bundles: Sequence[Bundle], channels: int, space: int) -> Tensor:
    """The inverse of `fold_channels`."""
    if channels == 1:
        return rows
    batch = rows.shape[1]
    if not bundles:
        return rows.new_zeros(0, channels * batch)
    pieces, start = [], 0
    for b in bundles:
        per_block = b.copies[space] // channels * b.size * b.slices
        height = len(b.blocks) * per_block * channels
        piece = rows[start : start + height].reshape(len(b.blocks), channels, per_block, batch)
        pieces.append(piece.transpose(1, 2).reshape(height // channels, channels * batch))
        start += height
    return torch.cat(pieces)

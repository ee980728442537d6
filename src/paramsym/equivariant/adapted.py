r"""The change of basis Q of a decomposition: samples to the values of a block network and back.

Class by class of isomorphic orbits it is a product with the same small orthogonal matrix, computed
in the cheapest of the `forms`. Blocks that a network does not use are never computed.

Inside a network coordinates are rows and samples are columns. A value is one tensor for each
bundle, (blocks, channels·copies·δ, slices·B): its rows are in the order (channel, copy, coordinate
of the number), and the copies of a block are in the order (class, orbit, copy within the orbit).
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from .assembly import ClassBasis
from .blocks import Bundle
from .decomposition import Isotypic
from .forms.base import Columns, reorder
from .forms.choice import choose

Column = np.ndarray  # numbers of basis columns, (copies within an orbit, δ, slices)


def columns_of_blocks(
    classes: Sequence[ClassBasis], isotypics: Sequence[Isotypic], multiplicities: Sequence[int]
) -> list[list[Column]]:
    """The columns of the basis of each class that belong to each block: [block][class].

    Args:
        classes: the classes of orbits of one representation.
        isotypics: all blocks.
        multiplicities: of each block in this representation.
    """
    widths = [v.dimension * d for v, d in zip(isotypics, multiplicities, strict=True)]
    ends = np.cumsum(widths)
    found: list[list[Column]] = [[] for _ in isotypics]
    for c in classes:
        owner = np.searchsorted(ends, c.places[0], side="right")
        mine = np.split(
            np.argsort(owner, kind="stable"), np.bincount(owner, minlength=len(ends)).cumsum()[:-1]
        )
        for i, v in enumerate(isotypics):
            # Of one orbit, the columns stand in the order (copy, slice, coordinate).
            found[i].append(mine[i].reshape(-1, v.slices, v.size).transpose(0, 2, 1))
    return found


class AdaptedBasis(nn.Module):
    """Q restricted to some isotypic blocks, for one representation (n points).

    Args:
        classes: the classes of orbits of the representation.
        columns: the columns of the classes for each block, from `columns_of_blocks`.
        bundles: the blocks to keep; in one bundle each has as many copies in every class.
        dtype: of the bases.
        form: of the change of basis (see `forms.choice`); default the cheapest.
    """

    def __init__(
        self,
        classes: Sequence[ClassBasis],
        columns: Sequence[Sequence[Column]],
        bundles: Sequence[Bundle],
        dtype: torch.dtype,
        form: str | None = None,
    ) -> None:
        super().__init__()
        self.bundles = tuple(bundles)
        self.parts = nn.ModuleList(
            _Part(c, [row[k] for row in columns], bundles, dtype, form)
            for k, c in enumerate(classes)
        )
        self.widths = [c.orbits.size for c in classes]
        points = np.concatenate([*(c.orbits.ravel() for c in classes), np.zeros(0, dtype=np.intp)])
        self.in_order = bool((points == np.arange(len(points))).all())
        self.register_buffer("points", torch.as_tensor(points), persistent=False)
        self.register_buffer("unpoints", torch.as_tensor(np.argsort(points)), persistent=False)
        self.points: Tensor
        self.unpoints: Tensor

    def analyse(self, x: Tensor) -> list[Tensor]:
        """Qᵀx: from samples (B × channels × n) to the value of each bundle."""
        channels = x.shape[1]
        x = x if self.in_order else reorder(x, self.points, self.unpoints)
        if len(self.parts) == 1:
            return self._parts()[0].analyse(x)
        found = [
            part.analyse(orbits)
            for part, orbits in zip(self._parts(), x.split(self.widths, 2), strict=True)
        ]
        values = []
        for pieces in zip(*found, strict=True):
            copies = [piece.unflatten(1, (channels, -1)) for piece in pieces]
            values.append(torch.cat(copies, 2).flatten(1, 2))
        return values

    def synthesise(self, values: Sequence[Tensor], channels: int) -> Tensor:
        """Q: from the values of the bundles (at least one) to samples (B × channels × n)."""
        if len(self.parts) == 1:
            x = self._parts()[0].synthesise(values, channels)
        else:
            pieces = []
            for i, value in enumerate(values):
                heights = [part.height(i) for part in self._parts()]
                shaped = value.unflatten(1, (channels, sum(heights)))
                pieces.append([p.flatten(1, 2) for p in shaped.split(heights, 2)])
            found = zip(self._parts(), zip(*pieces, strict=True), strict=True)
            x = torch.cat([part.synthesise(piece, channels) for part, piece in found], 2)
        return x if self.in_order else reorder(x, self.unpoints, self.points)

    def _parts(self) -> "list[_Part]":
        return list(self.parts)  # type: ignore[arg-type]


class _Part(nn.Module):
    """The change of basis on one class of orbits: its own copies of every bundle."""

    def __init__(
        self,
        c: ClassBasis,
        columns: Sequence[Column],
        bundles: Sequence[Bundle],
        dtype: torch.dtype,
        form: str | None,
    ) -> None:
        super().__init__()
        self.count, self.size = c.orbits.shape
        self.bundles = bundles
        self.copies = [len(columns[b.blocks[0]]) for b in bundles]  # of a block in one orbit
        used = [columns[i].ravel() for b in bundles for i in b.blocks]
        flat = np.concatenate([*used, np.zeros(0, dtype=np.intp)]).astype(np.intp)
        self.form = choose(Columns(c, flat), dtype, form)
        self.rows = [
            len(b.blocks) * m * b.size * b.slices for b, m in zip(bundles, self.copies, strict=True)
        ]

    def height(self, bundle: int) -> int:
        """The rows of one channel that this class has in the value of a bundle."""
        return self.count * self.copies[bundle] * self.bundles[bundle].size

    def analyse(self, x: Tensor) -> list[Tensor]:
        """From samples on these orbits (B × channels × count·s) to their rows of each value."""
        batch, channels, _ = x.shape
        found = self.form.analyse(x.reshape(batch * channels * self.count, self.size))
        pieces = [found] if len(self.rows) == 1 else found.split(self.rows)
        values = []
        for b, m, piece in zip(self.bundles, self.copies, pieces, strict=True):
            shape = (len(b.blocks), m, b.size * b.slices, batch, channels, self.count)
            rows = channels * self.count * m * b.size
            piece = piece.view(shape).permute(0, 4, 5, 1, 2, 3)
            values.append(piece.reshape(len(b.blocks), rows, b.slices * batch))
        return values

    def synthesise(self, values: Sequence[Tensor], channels: int) -> Tensor:
        """The transpose of `analyse`."""
        batch = values[0].shape[2] // self.bundles[0].slices
        samples = batch * channels * self.count
        pieces = []
        for b, m, rows, value in zip(self.bundles, self.copies, self.rows, values, strict=True):
            shape = (len(b.blocks), channels, self.count, m, b.size * b.slices, batch)
            pieces.append(value.reshape(shape).permute(0, 3, 4, 5, 1, 2).reshape(rows, samples))
        found = self.form.synthesise(pieces[0] if len(pieces) == 1 else torch.cat(pieces))
        return found.reshape(batch, channels, self.count * self.size)

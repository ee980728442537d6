"""The span of random vectors in floating point, with a visible gap under what counts."""

from __future__ import annotations

import torch
from torch import Tensor

_LARGEST = 1e-9  # rounding of a row, relative to its length, with which it is left out
_LEAST = 1e-15  # rounding that is always expected
_SAFELY = 1e3  # how far what counts must stand above rounding
_VISIBLE = 30.0  # and how far above what does not count
_BLIND = 1e-7  # what counts where there is no such gap


class FloatSpan:
    """The span of row vectors in float64, grown batch by batch.

    All rows count together: what is left of the singular value decomposition of the earlier ones,
    all singular values included, is stacked on each batch. A direction that is faint at first and
    confirmed later is then one direction, and not two that differ by rounding.

    Attributes:
        rank: the dimension so far.
        noise: what rounding leaves of singular values, relative to the largest.
    """

    def __init__(self, columns: int):
        self.rows = torch.zeros(0, columns, dtype=torch.float64)
        self.relative = torch.zeros(0, dtype=torch.float64)
        self.noise, self.rank = _LEAST, 0

    def add(self, rows: Tensor, noise: float) -> int:
        """Add row vectors (count, columns); by how much the rank has grown.

        Args:
            rows: one vector each.
            noise: the length of what rounding does to them.
        """
        lengths = rows.norm(dim=1)
        kept = lengths > noise / _LARGEST
        if not kept.any():
            return 0
        self.noise = max(self.noise, noise / float(lengths[kept].min()))
        stacked = torch.cat([self.rows, rows[kept] / lengths[kept, None]])
        _, values, directions = torch.linalg.svd(stacked, full_matrices=False)
        self.rows, self.relative = values[:, None] * directions, values / values[0]
        before = self.rank
        least = _SAFELY * self.noise if self.clear else max(_BLIND, _SAFELY * self.noise)
        self.rank = max(before, int((self.relative > least).sum()))
        return self.rank - before

    @property
    def above(self) -> float:
        """The least singular value above rounding, relative to the largest."""
        above = self.relative[self.relative > _SAFELY * self.noise]
        return float(above.min()) if len(above) else 1.0

    @property
    def below(self) -> float:
        """The largest that is not."""
        below = self.relative[self.relative <= _SAFELY * self.noise]
        return float(below.max()) if len(below) else 0.0

    @property
    def clear(self) -> bool:
        """Whether there is a visible gap between the two."""
        return self.below * _VISIBLE < self.above

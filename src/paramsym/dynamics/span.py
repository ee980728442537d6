"""The span of random vectors in floating point, with a visible gap under what counts."""

from __future__ import annotations

import torch
from torch import Tensor

_FAINT = 1e-6  # rows shorter than this, relative to what is expected, are what rounding left
_COUNTS = 1e-8  # a direction of a unit row that others do not explain
_ROUNDING = 1e-10  # what is expected of directions that others do explain


class FloatSpan:
    """The span of row vectors in float64, grown batch by batch.

    A direction counts if it stands out of the others by 1e-8 of a unit vector, far above what
    rounding leaves. What lies between does not count, and is remembered.

    Attributes:
        rank: the dimension so far.
        above: the faintest direction that counts.
    """

    def __init__(self, columns: int):
        self.basis = torch.zeros(0, columns, dtype=torch.float64)
        self.above = 1.0
        self.doubtful = self.basis

    @property
    def rank(self) -> int:
        return len(self.basis)

    @property
    def below(self) -> float:
        """The strongest direction that was seen and does not count."""
        left = self._left(self.doubtful)
        return float(left.norm(dim=1).max()) if len(left) else 0.0

    @property
    def clear(self) -> bool:
        """Whether there is a visible gap between numbers and rounding."""
        return self.below < _ROUNDING

    def add(self, rows: Tensor, size: float) -> int:
        """Add row vectors (count, columns); by how much the rank has grown.

        Args:
            rows: one vector each.
            size: the length that is expected of them; much shorter ones are what rounding left.
        """
        lengths = rows.norm(dim=1)
        kept = lengths > _FAINT * size
        if not kept.any():
            return 0
        left = self._left(rows[kept] / lengths[kept, None])
        _, values, directions = torch.linalg.svd(left, full_matrices=False)
        counts = values > _COUNTS
        doubtful = ~counts & (values > _ROUNDING)
        self.doubtful = torch.cat([self.doubtful, values[doubtful, None] * directions[doubtful]])
        found = self._left(directions[counts])
        if len(found):
            self.above = min(self.above, float(values[counts].min()))
            self.basis = torch.cat([self.basis, found / found.norm(dim=1, keepdim=True)])
        return len(found)

    def _left(self, rows: Tensor) -> Tensor:
        """What the span does not explain; twice is enough."""
        for _ in range(2):
            rows = rows - (rows @ self.basis.T) @ self.basis
        return rows

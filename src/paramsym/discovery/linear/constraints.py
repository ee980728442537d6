"""The rows of a search: constraints of an ansatz at random samples, each of length one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from .ansatz import Ansatz
from .sampling import Points, Sampler

_KEPT = 1 << 26  # entries of all rows that are kept; more are drawn again for each pass
_PATIENCE = 64  # samples that are drawn for each row, until too few of them are finite
_SPARE_ROWS = 64
_OVERSAMPLING = 1.25  # rows per unknown
# Rows shorter than this share of the median count as so long: in a saturated network a gradient is
# the rounding of what cancelled, and scaled to one it would be noise of size one. In float32 all
# that are shorter than the median would be too noisy.
_SHORTEST = {torch.float64: 1e-3, torch.float32: 1.0}


class Constraints:
    """The same rows at every pass, batch by batch.

    Attributes:
        count: how many rows there are.
    """

    def __init__(self, sampler: Sampler, ansatz: Ansatz, generator: torch.Generator):
        self.sampler, self.ansatz = sampler, ansatz
        self.count = int(_OVERSAMPLING * ansatz.unknowns) + _SPARE_ROWS
        self.seed = int(torch.randint(1 << 62, (), generator=generator))
        self.kept: list[Tensor] = []
        self.zero = 0  # samples without any derivative
        self.median: float | None = None  # length of a row, of the first batch

    def __call__(self) -> Iterable[Tensor]:
        return self.kept or self._drawn()

    def _drawn(self) -> Iterator[Tensor]:
        self.sampler.generator = torch.Generator().manual_seed(self.seed)
        keeps = self.count * self.ansatz.unknowns <= _KEPT
        batches = []
        for rows, _ in self.rows(self.count):
            yield rows
            if keeps:
                batches.append(rows)
        self.kept = batches

    def rows(self, count: int) -> Iterator[tuple[Tensor, Points]]:
        """So many constraints at samples that are drawn now, and the samples."""
        found = drawn = 0
        while found < count:
            for size in self.sampler.batches(count - found):
                points = self.sampler.points(size)
                rows, good = self.at(points)
                found, drawn = found + len(rows), drawn + size
                if drawn > _PATIENCE * max(found, _SPARE_ROWS):
                    self._refuse(drawn - found, drawn)
                if len(rows):
                    yield rows, points.among(good)

    def _refuse(self, without: int, drawn: int) -> None:
        zero = f"{self.zero} of them zero, as where all units of a layer are closed; the others"
        raise ValueError(
            f"linear_symmetries(model={type(self.sampler.model).__name__}): at {without} of "
            f"{drawn} random weights and inputs there are no derivatives, {zero} NaN or infinite, "
            f"but numbers were expected at one in {_PATIENCE} at least. Look for a root, logarithm "
            "or division of what can be zero or negative, or choose other outputs with outputs=…."
        )

    def at(self, points: Points) -> tuple[Tensor, Tensor]:
        """Constraints at samples, and which samples gave one: not those without any derivative."""
        gradients = self.sampler.gradients(points)
        wide = {n: w.double().cpu() for n, w in points.weights.items()}
        rows = self.ansatz.rows(gradients, wide)
        length = torch.linalg.vector_norm(rows, dim=1)
        good = length.isfinite() & (length > 0)
        self.zero += int((length == 0).sum())
        if self.median is None and bool(good.any()):
            self.median = float(length[good].median())
        shortest = _SHORTEST[self.sampler.dtype] * (self.median or 0.0)
        return rows[good] / length[good, None].clamp_min(shortest), good

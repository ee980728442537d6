"""Sparse matrices of exact numbers: what a layer, a convolution or a pooling does to a vector."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from paramsym.relu.clock import tick
from paramsym.relu.entries import Entries, joined, sums, times, zeros
from paramsym.relu.errors import ReLUError

LARGEST = 1 << 26  # entries of one matrix, with the products that it is the sum of


@dataclass(frozen=True, eq=False)
class Coefficients:
    """A matrix of `height` rows by its entries, in order of rows, then columns, each place once."""

    height: int
    width: int
    rows: np.ndarray
    columns: np.ndarray
    entries: Entries

    @classmethod
    def identity(cls, size: int) -> Coefficients:
        """The unit matrix."""
        places = np.arange(size)
        return cls(size, size, places, places, Entries(np.ones(size), np.zeros(size)))

    @classmethod
    def summed(
        cls, height: int, width: int, rows: np.ndarray, columns: np.ndarray, entries: Entries
    ) -> Coefficients:
        """The matrix with these terms, in any order; several at one place are added."""
        place = rows * width + columns
        if (place[1:] <= place[:-1]).any():
            order = np.argsort(place, kind="stable")
            place, entries = place[order], entries.at(order)
            first = np.append(True, np.diff(place) > 0)
            starts = np.flatnonzero(first)
            place, entries = place[starts], sums(entries, starts)
            kept = (entries.values != 0) | (entries.slack != 0)
            rows, columns = np.divmod(place[kept], max(1, width))
            entries = entries.at(kept)
        return cls(height, width, rows, columns, entries)

    @property
    def starts(self) -> np.ndarray:
        """Where each row begins among the entries, and the end of the last one."""
        return np.searchsorted(self.rows, np.arange(self.height + 1))

    @property
    def used(self) -> np.ndarray:
        """The columns that have an entry."""
        return np.unique(self.columns)

    @property
    def selects(self) -> bool:
        """Whether every row is one unit."""
        values, slack = self.entries.values, self.entries.slack
        return (
            np.array_equal(self.rows, np.arange(self.height))
            and bool((values == 1).all())
            and not slack.any()
        )

    def take(self, index: np.ndarray) -> Coefficients:
        """The rows at a flat index; -1 is a row of zeros."""
        starts = self.starts
        first = np.where(index < 0, 0, starts[index])
        counts = np.where(index < 0, 0, starts[index + 1] - starts[index])
        rows, places = _runs(first, counts)
        return replace(
            self, height=len(index), rows=rows, columns=self.columns[places],
            entries=self.entries.at(places),
        )  # fmt: skip

    def scaled(self, factors: Entries) -> Coefficients:
        """Every row times its factor."""
        return replace(self, entries=times(self.entries, factors.at(self.rows)))

    def __neg__(self) -> Coefficients:
        return replace(self, entries=-self.entries)

    def __add__(self, other: Coefficients) -> Coefficients:
        return Coefficients.summed(
            self.height, self.width,
            np.concatenate([self.rows, other.rows]),
            np.concatenate([self.columns, other.columns]),
            joined([self.entries, other.entries]),
        )  # fmt: skip

    def __matmul__(self, other: Coefficients) -> Coefficients:
        """The matrix product."""
        if other.selects:  # products with ones: nothing to multiply, and no rounding to look for
            columns = other.columns[self.columns]
            return Coefficients.summed(self.height, other.width, self.rows, columns, self.entries)
        starts = other.starts
        counts = np.diff(starts)[self.columns]
        check_size(int(counts.sum()))
        left, right = _runs(starts[self.columns], counts)
        tick()
        return Coefficients.summed(
            self.height, other.width, self.rows[left], other.columns[right],
            times(self.entries.at(left), other.entries.at(right)),
        )  # fmt: skip

    def apply(self, vector: Entries) -> Entries:
        """The product with a vector (width,)."""
        counts = (vector.values != 0) | (vector.slack != 0)
        kept = np.flatnonzero(counts[self.columns])
        product = times(self.entries.at(kept), vector.at(self.columns[kept]))
        present, starts = np.unique(self.rows[kept], return_index=True)
        made = sums(product, starts) if len(starts) else product
        if len(present) == self.height:
            return made
        at = np.full(self.height, len(present))
        at[present] = np.arange(len(present))
        return joined([made, zeros(1)]).at(at)


def stacked(parts: list[Coefficients]) -> Coefficients:
    """Matrices of one width, one below the other."""
    below = np.cumsum([0, *(p.height for p in parts)])
    return Coefficients(
        int(below[-1]), parts[0].width,
        np.concatenate([p.rows + b for p, b in zip(parts, below, strict=False)]),
        np.concatenate([p.columns for p in parts]),
        joined([p.entries for p in parts]),
    )  # fmt: skip


def _runs(first: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(which run, place) for each place of the runs of `counts` places from `first` on."""
    runs = np.repeat(np.arange(len(counts)), counts)
    inside = np.arange(len(runs)) - np.repeat(np.cumsum(counts) - counts, counts)
    return runs, first[runs] + inside


def check_size(count: int) -> None:
    """Raises `ReLUError` before more numbers are held than a decision could ever use."""
    if count > LARGEST:
        raise ReLUError(
            f"a network whose layers, as matrices, take {count:,} numbers",
            f"at most {LARGEST:,}",
            "the reading of the network",
            "Decide a smaller part of it, or smaller inputs (and one or two rows of a batch).",
        )

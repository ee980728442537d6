r"""The change of basis axis by axis, for an orbit that is a grid ℤ/m₁ × … × ℤ/m_a.

The real characters of the product lie in the span of the products of those of the axes, so that

    q = (F₁ ⊗ … ⊗ F_a) Rᵀ,        R = qᵀ (F₁ ⊗ … ⊗ F_a),

with F_j (m_j × k_j) the real Fourier basis of the frequencies that occur along axis j. R has at
most 2^(a−1) entries in a row or column, for cos(α + β) = cos α cos β − sin α sin β: an image
of 64 × 64 with frequencies below 7 costs two thin products and a sum, and no matrix of 4,096 rows.
"""

from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from .base import Columns
from .costs import gather, product
from .pair import PairedForm


class Separable(PairedForm):
    """One thin product for each axis, and a sum of few coefficients."""

    take: Tensor
    put: Tensor
    take_weight: Tensor
    put_weight: Tensor
    order: Tensor
    back: Tensor

    def __init__(self, columns: Columns, dtype: torch.dtype) -> None:
        super().__init__(columns, dtype)
        order = _grid(columns)[1]
        self.straight = bool((order == np.arange(self.size)).all())
        self.register_buffer("order", torch.as_tensor(order), persistent=False)
        self.register_buffer("back", torch.as_tensor(np.argsort(order)), persistent=False)
        for name, index in self.indices.items():
            self.register_buffer(name, torch.as_tensor(index), persistent=False)

    @staticmethod
    def cost(columns: Columns) -> float | None:
        fourier = columns.basis.fourier
        if fourier is None or fourier.grid is None or sum(m > 1 for m in fourier.grid) < 2:
            return None
        widths = [sum(1 if 2 * t % m == 0 else 2 for t in u) for m, u in _frequencies(columns)]
        total, rest = 0.0, columns.size
        for m, width in zip(reversed(fourier.grid), reversed(widths), strict=True):
            rest = rest // m
            total += product(width, m, rest)
            rest *= width
        return total + gather(len(columns.used))

    def constants(self, columns: Columns) -> dict[str, np.ndarray]:
        grid, order = _grid(columns)
        axes = [_axis(m, used) for m, used in _frequencies(columns)]
        mixing = columns.matrix[order].T.reshape(-1, *grid)
        for axis in axes:  # contracts the first axis of the grid that is left
            mixing = np.tensordot(mixing, axis, axes=(1, 0))
        self.grid = grid
        self.products = int(np.prod([axis.shape[1] for axis in axes]))
        mixing = mixing.reshape(len(columns.used), self.products)
        found = {f"axis{j}": np.ascontiguousarray(axis.T) for j, axis in enumerate(axes)}
        take, take_weight = _few(mixing)
        put, put_weight = _few(mixing.T)
        self.indices = {"take": take, "put": put}
        return found | {"take_weight": take_weight, "put_weight": put_weight}

    def _axes(self) -> list[Tensor]:
        """F_jᵀ (k_j × m_j)."""
        return [getattr(self, f"axis{j}") for j in range(len(self.grid))]

    def transform(self, x: Tensor) -> Tensor:
        """qᵀ."""
        samples = x.shape[0]
        x = x if self.straight else x[:, self.order]
        rest = samples * self.size
        for axis in reversed(self._axes()):  # the last axis goes, and comes back in front as k_j
            width, m = axis.shape
            rest = rest // m
            x = axis @ x.reshape(rest, m).T
            rest = rest * width
        return _sum(x.reshape(self.products, samples), self.take, self.take_weight)

    def inverse(self, y: Tensor) -> Tensor:
        """q."""
        samples = y.shape[1]
        rest = samples * self.products
        y = _sum(y, self.put, self.put_weight)
        for axis in self._axes():
            width, m = axis.shape
            rest = rest // width
            y = y.reshape(width, rest).T @ axis
            rest = rest * m
        y = y.reshape(samples, self.size)
        return y if self.straight else y[:, self.back]


def _few(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The entries of a matrix with few in each row: columns and values (entries × rows)."""
    kept = np.abs(matrix) > 1e-9  # they are products of 1, √2 and 1/√2
    most = max(int(kept.sum(axis=1).max(initial=0)), 1)
    index = np.argsort(~kept, axis=1, kind="stable")[:, :most]
    values = np.take_along_axis(np.where(kept, matrix, 0.0), index, axis=1)
    return np.ascontiguousarray(index.T), np.ascontiguousarray(values.T)


def _sum(rows: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """Row i of the result is Σ_j weight_ji · row index_ji."""
    weights = weight[:, :, None]
    total = rows.index_select(0, index[0]) * weights[0]
    for j in range(1, len(index)):
        total = torch.addcmul(total, rows.index_select(0, index[j]), weights[j])
    return total


def _grid(columns: Columns) -> tuple[tuple[int, ...], np.ndarray]:
    fourier = columns.basis.fourier
    assert fourier is not None and fourier.grid is not None
    return fourier.grid, fourier.order


def _frequencies(columns: Columns) -> list[tuple[int, list[int]]]:
    """For each axis its length m and the frequencies 0 ≤ t ≤ m/2 that occur along it."""
    fourier = columns.basis.fourier
    assert fourier is not None and fourier.grid is not None
    of_column = np.repeat(np.arange(len(fourier.phases)), [c.shape[1] for c in fourier.columns])
    phases = [fourier.phases[i] for i in sorted(set(of_column[columns.used].tolist()))]
    return [
        (m, sorted({int(min(f[j], 1 - f[j]) * m) for f in phases}))
        for j, m in enumerate(fourier.grid)
    ]


def _axis(m: int, frequencies: list[int]) -> np.ndarray:
    """The orthonormal real Fourier basis (m × k) of these frequencies on ℤ/m."""
    places = np.arange(m)
    columns = []
    for t in frequencies:
        angle = 2 * np.pi * (places * t % m) / m
        if Fraction(2 * t, m).denominator == 1:
            columns.append(np.cos(angle) / np.sqrt(m))
        else:
            columns += [np.cos(angle) * np.sqrt(2 / m), np.sin(angle) * np.sqrt(2 / m)]
    return np.stack(columns, axis=1)

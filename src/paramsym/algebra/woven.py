"""Rotations that are woven from small ones: every number meets every other, in two quick steps.

n = k·m coordinates stand in a grid of k rows and m columns. Each row is rotated within itself, then
each column:

    Q[(a, b), (c, d)] = A_b[a, c] · B_c[b, d],  with k rotations B_c of m and m rotations A_b of k

Q is dense, and takes k + m multiplications for each number that it moves, where a matrix takes n.
It is a Monarch matrix (Dao et al., Monarch: Expressive Structured Matrices for Efficient and
Accurate Training, 2022) that is orthogonal. Whether a matrix is one is read off it, so that such a
rotation is stored, multiplied and inverted as any other: for each b and c, the k·m entries over a
and d are a product of two vectors.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from .following import is_followed

_GAIN = 4  # times fewer multiplications at least
_LEAST = 256  # coordinates, below which a product of matrices is as quick
_ULPS = 8  # by which the entries of a woven matrix may be rounded


class Woven(NamedTuple):
    """A rotation in two steps: rows, then columns; or the other way round, where it is undone."""

    rows: Tensor  # (k, m, m)
    columns: Tensor  # (m, k, k)
    rows_first: bool = True

    def matrix(self) -> Tensor:
        """Q, of shape (n, n)."""
        if not self.rows_first:
            return self.undone().matrix().mT
        n = self.rows.shape[0] * self.rows.shape[1]
        return torch.einsum("bac,cbd->abcd", self.columns, self.rows).reshape(n, n)

    def undone(self) -> Woven:
        """Q⁻¹ = Qᵀ."""
        return Woven(self.rows.mT, self.columns.mT, not self.rows_first)

    def times(self, x: Tensor, axis: int) -> Tensor:
        """Q along an axis of length n."""
        k, m = self.rows.shape[:2]
        front = x.movedim(axis, 0)
        grid = front.reshape(k, m, -1)
        if not self.rows_first:
            made = torch.bmm(
                self.rows, torch.bmm(self.columns, grid.transpose(0, 1)).transpose(0, 1)
            )
        elif is_followed(x) or is_followed(self.rows) or is_followed(self.columns):
            made = torch.bmm(self.columns, torch.bmm(self.rows, grid).transpose(0, 1))
            made = made.transpose(0, 1)
        else:  # the second product is written to its places
            made = x.new_empty(grid.shape)
            half = torch.bmm(self.rows, grid).transpose(0, 1)
            torch.bmm(self.columns, half, out=made.transpose(0, 1))
        return made.reshape(front.shape).movedim(0, axis)

    def framed(self, before: Tensor) -> Woven:
        """diag(before)⁻¹ Q diag(before), for a vector of gains without zeros."""
        k, m = self.rows.shape[:2]
        first = before.reshape(k, m)
        last = first.reciprocal()
        if self.rows_first:
            rows, columns = self.rows * first[:, None, :], self.columns * last.T[:, :, None]
        else:
            rows, columns = self.rows * last[:, :, None], self.columns * first.T[:, None, :]
        return Woven(rows, columns, self.rows_first)


@cache
def grid(n: int) -> tuple[int, int] | None:
    """The rows and columns of the grid of n coordinates; None where no grid is worth it."""
    rows = next((k for k in range(math.isqrt(n), 1, -1) if n % k == 0), 1)
    sides = rows, n // rows
    return sides if n >= _LEAST and _GAIN * sum(sides) <= n else None


_KNOWN: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def woven_of(matrix: Tensor) -> Woven | None:
    """The two steps of a matrix of shape (n, n) that is a woven rotation; None of any other.

    It is looked for once in a tensor, which other tensors are moved by again and again.
    """
    sides = grid(matrix.shape[-1]) if matrix.dim() == 2 else None
    if sides is None or matrix.is_meta or not matrix.is_floating_point():
        return None
    version = None if matrix.is_inference() else matrix._version
    known = _KNOWN.get(matrix)
    if known is not None and version is not None and known[0] == version:
        return known[1]
    found = _unwoven(matrix.detach(), *sides)
    if found is None and (undone := _unwoven(matrix.detach().mT, *sides)) is not None:
        found = undone.undone()
    _KNOWN[matrix] = version, found
    return found


def _unwoven(matrix: Tensor, k: int, m: int) -> Woven | None:
    """The steps of a matrix whose rows are rotated first."""
    rows, columns = matrix.new_empty(k, m, m), matrix.new_empty(m, k, k)
    level = _ULPS * torch.finfo(matrix.dtype).eps
    for b, held in enumerate(matrix.reshape(k, m, k, m).unbind(1)):  # (a, c, d) each
        parts = held.transpose(0, 1)  # for each c, a product of two vectors over a and d
        at = parts.flatten(1).abs().argmax(1)
        c = torch.arange(k, device=matrix.device)
        left, right = parts[c, :, at % m], parts[c, at // m]
        pivot = right.gather(1, (at % m)[:, None])
        size = right.norm(dim=1, keepdim=True)  # 1 for what was drawn, in the other vector too
        right, left = right / size, left * (size / pivot)
        apart = (left[:, :, None] * right[:, None] - parts).abs().max()
        if not bool((apart <= level) & ((left.norm(dim=1) - 1).abs().max() <= level)):
            return None
        rows[:, b], columns[b] = right, left.mT
    return Woven(rows, columns)

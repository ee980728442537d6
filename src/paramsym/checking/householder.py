"""Orthogonal factorisations in short steps, in place: what an audit can afford and an interrupt.

A Householder panel of b columns is I − V T Vᵀ with V below the diagonal and T triangular, so that
all that is not the panel itself is products of matrices. No call into LAPACK or BLAS does more than
`STEP` multiplications, a fraction of a second; Python sees an interrupt between two calls.

    span(rows)              an orthogonal Q = H₁ H₂ … whose first columns span the given rows
    Basis.rotate(rows)      rows · Q, in place: the part along the span, and the part along the rest
    triangular(matrix)      R of a QR, in place
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

PANEL = 128
STEP = 4e9  # multiplications and additions of one call
_BRIDGED = 16  # coordinates between two runs that are not worth a cut
_DEPENDENT = 1e-7  # a unit direction this near to the span of the others is in it

Advance = Callable[[float], None]  # is told the multiplications and additions of each step


def ignore(_: float) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True)
class Reflector:
    """H = I − V T Vᵀ for a panel of Householder vectors, on the coordinates where V is not zero."""

    support: tuple[slice, ...]  # runs of coordinates
    vectors: torch.Tensor  # (coordinates of the support, panel)
    factor: torch.Tensor  # (panel, panel), upper triangular

    def turn_rows(self, rows: torch.Tensor) -> None:
        """rows ← rows · H."""
        part = self._gathered(rows, 1)
        part.addmm_((part @ self.vectors) @ self.factor, self.vectors.T, alpha=-1)
        self._put(part, rows, 1)

    def turn_columns(self, columns: torch.Tensor, back: bool = False) -> None:
        """columns ← Hᵀ · columns, or H · columns to go `back`."""
        part = self._gathered(columns, 0)
        factor = self.factor if back else self.factor.T
        part.addmm_(self.vectors, factor @ (self.vectors.T @ part), alpha=-1)
        self._put(part, columns, 0)

    def _gathered(self, matrix: torch.Tensor, axis: int) -> torch.Tensor:
        """The part of a matrix on the support; a view where it is one run."""
        parts = [matrix.narrow(axis, run.start, run.stop - run.start) for run in self.support]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=axis)

    def _put(self, part: torch.Tensor, matrix: torch.Tensor, axis: int) -> None:
        if len(self.support) > 1:
            widths = [run.stop - run.start for run in self.support]
            for run, piece in zip(self.support, part.split(widths, axis), strict=True):
                matrix.narrow(axis, run.start, run.stop - run.start).copy_(piece)


def runs(moved: torch.Tensor, start: int = 0, bridged: int = 0) -> tuple[slice, ...]:
    """Ranges that hold all coordinates marked, counted from `start`; short gaps are bridged."""
    marked = moved.nonzero()[:, 0]
    if not len(marked):
        return (slice(start, start),)
    breaks = (marked.diff() > bridged + 1).nonzero()[:, 0].tolist()
    firsts = [0, *(k + 1 for k in breaks)]
    lasts = [*breaks, len(marked) - 1]
    places = marked.tolist()
    return tuple(
        slice(start + places[a], start + places[b] + 1) for a, b in zip(firsts, lasts, strict=True)
    )


def reflect(columns: torch.Tensor, start: int) -> tuple[Reflector, torch.Tensor]:
    """The panel that makes columns (coordinates from `start` on, panel) triangular, and that."""
    packed, scales = torch.geqrf(columns)
    width = min(columns.shape)
    vectors = packed[:, :width].tril(-1)
    vectors.diagonal().fill_(1.0)
    idle = scales == 0  # H = I: what was to be reflected is zero already
    vectors[:, idle] = 0.0
    inverse = (vectors.T @ vectors).triu(1) + torch.diag(1 / scales.masked_fill(idle, 1.0))
    eye = torch.eye(width, dtype=columns.dtype)
    factor = torch.linalg.solve_triangular(inverse, eye, upper=True)
    support = runs((vectors != 0).any(dim=1), start, _BRIDGED)
    vectors = torch.cat([vectors[run.start - start : run.stop - start] for run in support])
    return Reflector(support, vectors, factor), packed[:width].triu()


@dataclass
class Basis:
    """An orthogonal matrix Q = H₁ H₂ … whose first `rank` columns span given directions."""

    size: int  # coordinates
    rank: int = 0
    reflectors: list[Reflector] = field(default_factory=list)

    def add(self, rows: torch.Tensor) -> None:
        """Extend the span by rows (at most a panel, coordinates), each of unit length or zero.

        What is left of them beside the span is compressed to its large singular values first,
        so that directions that depend on each other count once.
        """
        columns = rows.T.clone()
        for reflector in self.reflectors:
            reflector.turn_columns(columns)
        rest, triangle = torch.linalg.qr(columns[self.rank :])
        left, values, _ = torch.linalg.svd(triangle, full_matrices=False)
        kept = values > _DEPENDENT
        if bool(kept.any()):
            reflector, _ = reflect(rest @ left[:, kept], self.rank)
            self.reflectors.append(reflector)
            self.rank += int(kept.sum())

    def rotate(self, rows: torch.Tensor, advance: Advance = ignore) -> None:
        """rows ← rows · Q, in place."""
        for part in rows.split(max(1, int(STEP / (4 * PANEL * max(1, self.size))))):
            for reflector in self.reflectors:
                reflector.turn_rows(part)
                advance(4.0 * part.shape[0] * reflector.vectors.numel())

    def back(self, coordinates: torch.Tensor) -> torch.Tensor:
        """Q · coordinates, of shape (size, directions)."""
        columns = coordinates.clone()
        for reflector in reversed(self.reflectors):
            reflector.turn_columns(columns, back=True)
        return columns


def span(rows: torch.Tensor, advance: Advance = ignore) -> Basis:
    """The basis whose first columns span rows of shape (directions, coordinates).

    Rows are scaled to unit length; those of zeros are left out. Where rows that move few
    coordinates come first, their reflectors are small: most families live in one layer.
    """
    basis = Basis(rows.shape[1])
    for part in rows.split(PANEL):
        if basis.rank == basis.size:
            break
        norms = torch.linalg.vector_norm(part, dim=1)
        part = part[norms > 0] / norms[norms > 0, None]
        if len(part):
            basis.add(part)
            advance(4.0 * part.numel() * (basis.rank + PANEL))
    return basis


def triangular(matrix: torch.Tensor, advance: Advance = ignore) -> torch.Tensor:
    """R of shape (columns, columns) with matrixᵀ·matrix = Rᵀ·R; the matrix is overwritten.

    There must be as many rows as columns, or more.
    """
    height, width = matrix.shape
    for start in range(0, width, PANEL):
        stop = min(start + PANEL, width)
        reflector, triangle = reflect(matrix[start:, start:stop], 0)
        matrix[start:, start:stop] = 0.0
        matrix[start : start + len(triangle), start:stop] = triangle
        step = max(1, int(STEP / (4 * PANEL * (height - start))))
        for columns in matrix[start:, stop:].split(step, dim=1):
            reflector.turn_columns(columns)
            advance(4.0 * reflector.vectors.numel() * columns.shape[1])
    return matrix[:width].contiguous()


def smallest(
    triangle: torch.Tensor, ceiling: float, block: int = 8, advance: Advance = ignore
) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest singular values of a triangular matrix, ascending, and their directions.

    Block inverse iteration, X ← R⁻¹ R⁻ᵀ X: what is small in R is large there, so that a few steps
    are enough. The block is doubled while it is full, that is until it holds a value above the
    ceiling. Diagonal entries at rounding are lifted to rounding, which lets the solution grow
    where a plain one would divide by zero.

    Returns:
        (values of shape (block,), directions of shape (columns, block)).
    """
    size = len(triangle)
    if not size:
        return triangle.new_zeros(0), triangle
    diagonal = triangle.diagonal()
    floor = torch.finfo(triangle.dtype).eps * float(torch.linalg.matrix_norm(triangle))
    guarded = triangle.clone()
    lifted = torch.where(diagonal.abs() < floor, floor, diagonal)
    guarded.diagonal().copy_(lifted)
    generator = torch.Generator().manual_seed(0)
    found = triangle.new_zeros(size, 0)
    while True:
        block = min(block, size)
        drawn = torch.randn(size, block - found.shape[1], generator=generator, dtype=found.dtype)
        found = torch.cat([found, drawn], dim=1)
        for _ in range(_SWEEPS):
            found = _unit(_solve(guarded, found, True, advance))
            found = torch.linalg.qr(_solve(guarded, found, False, advance)).Q
        image = torch.linalg.qr(triangle @ found).R
        _, values, turn = torch.linalg.svd(image)
        values, found = values.flip(0), (found @ turn.T).flip(1)
        if block == size or float(values[-1]) > ceiling:
            return values, found
        block *= 2


_SWEEPS = 4


def _solve(
    triangle: torch.Tensor, columns: torch.Tensor, transposed: bool, advance: Advance
) -> torch.Tensor:
    """R⁻¹ · columns, or R⁻ᵀ · columns."""
    width = max(1, math.floor(STEP / (4 * max(1, triangle.numel()))))
    solved = []
    for part in columns.split(width, dim=1):
        matrix = triangle.T if transposed else triangle
        solved.append(torch.linalg.solve_triangular(matrix, part, upper=not transposed))
        advance(float(triangle.numel()) * part.shape[1])
    return torch.cat(solved, dim=1)


def _unit(columns: torch.Tensor) -> torch.Tensor:
    """Columns of unit length: lengths of 1e16 do not pile up from step to step."""
    largest = columns.abs().amax(dim=0)
    return columns / largest

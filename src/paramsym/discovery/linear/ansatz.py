"""What a linear symmetry may look like: unknown coefficients, and the constraint that they obey.

An ansatz is a list of pieces. A piece stands for one family of matrices, M = Σ cᵢ Mᵢ, and knows two
things: the row ⟨∇F, Mᵢθ⟩ of a sample, and the part of a generator that coefficients stand for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from .generators import Block, Generator, Part, Shapes, Shift, Side, without_rounding

Samples = Mapping[str, Tensor]  # name → (samples, *shape)


class Piece(Protocol):
    """One family of velocities of one tensor."""

    @property
    def unknowns(self) -> int:
        """How many coefficients it has."""
        ...

    def rows(self, gradients: Samples, weights: Samples) -> Tensor:
        """⟨∇F, Mᵢθ⟩ for every sample and every unknown, (samples, unknowns)."""
        ...

    def part(self, coefficients: Tensor) -> Part:
        """What coefficients, (unknowns,), stand for."""
        ...


@dataclass(frozen=True)
class BlockPiece:
    """All matrices from the entries of one tensor to those of another, or of itself."""

    target: str
    source: str
    size: tuple[int, int]

    @property
    def unknowns(self) -> int:
        return self.size[0] * self.size[1]

    def rows(self, gradients: Samples, weights: Samples) -> Tensor:
        g, w = gradients[self.target].flatten(1), weights[self.source].flatten(1)
        return (g[:, :, None] * w[:, None, :]).flatten(1)

    def part(self, coefficients: Tensor) -> Part:
        return Block(self.target, self.source, coefficients.reshape(self.size))


@dataclass(frozen=True)
class SidePiece:
    """All matrices along one axis of one tensor."""

    target: str
    axis: int
    shape: tuple[int, ...]

    @property
    def unknowns(self) -> int:
        return self.shape[self.axis] ** 2

    def rows(self, gradients: Samples, weights: Samples) -> Tensor:
        # ⟨G, A W⟩ = Σ A_ij (G Wᵀ)_ij with the axis first and all others flat
        n = self.shape[self.axis]
        g, w = (
            s[self.target].movedim(self.axis + 1, 1).reshape(len(s[self.target]), n, -1)
            for s in (gradients, weights)
        )
        return (g @ w.mT).flatten(1)

    def part(self, coefficients: Tensor) -> Part:
        n = self.shape[self.axis]
        return Side(self.target, self.axis, coefficients.reshape(n, n), self.shape)


@dataclass(frozen=True)
class ShiftPiece:
    """A constant for every entry of one tensor."""

    target: str
    shape: tuple[int, ...]

    @property
    def unknowns(self) -> int:
        return math.prod(self.shape)

    def rows(self, gradients: Samples, weights: Samples) -> Tensor:
        return gradients[self.target].flatten(1)

    def part(self, coefficients: Tensor) -> Part:
        return Shift(self.target, coefficients.reshape(self.shape))


@dataclass(frozen=True)
class Ansatz:
    """A linear space of candidate generators.

    Attributes:
        level: its name.
        pieces: what it is the sum of.
        searched: in words, what it holds, and what it does not.
        shapes: of the tensors that it is about.
    """

    level: str
    shapes: Shapes
    pieces: Sequence[Piece]
    searched: str

    @property
    def unknowns(self) -> int:
        """How many coefficients there are."""
        return sum(piece.unknowns for piece in self.pieces)

    @cached_property
    def places(self) -> list[slice]:
        """Where the coefficients of each piece stand."""
        found, start = [], 0
        for piece in self.pieces:
            found.append(slice(start, start + piece.unknowns))
            start += piece.unknowns
        return found

    def rows(self, gradients: Samples, weights: Samples) -> Tensor:
        """The constraints of samples, one row each: (samples, unknowns)."""
        return torch.cat([piece.rows(gradients, weights) for piece in self.pieces], dim=1)

    def trivial(self) -> Tensor:
        """Coefficients whose matrix is zero, as orthonormal columns: (unknowns, k).

        Along the axes of one tensor Σ c_a I = 0 wherever Σ c_a = 0: one less than it has axes.
        Nothing else cancels, since matrices along different axes share only multiples of I.
        """
        sides: dict[str, list[tuple[slice, int]]] = {}
        for piece, place in zip(self.pieces, self.places, strict=True):
            if isinstance(piece, SidePiece):
                sides.setdefault(piece.target, []).append((place, piece.shape[piece.axis]))
        columns = []
        for axes in sides.values():
            for (first, n), (other, m) in zip(axes, axes[1:], strict=False):
                column = torch.zeros(self.unknowns, dtype=torch.float64)
                column[first] = torch.eye(n, dtype=torch.float64).reshape(-1)
                column[other] = -torch.eye(m, dtype=torch.float64).reshape(-1)
                columns.append(column)
        if not columns:
            return torch.zeros(self.unknowns, 0, dtype=torch.float64)
        return torch.linalg.qr(torch.stack(columns, dim=1)).Q

    def generator(self, coefficients: Tensor, residual: float, threshold: float) -> Generator:
        """The vector field that coefficients, (unknowns,), stand for."""
        parts = [
            piece.part(coefficients[place])
            for piece, place in zip(self.pieces, self.places, strict=True)
        ]
        return Generator(without_rounding(parts), residual, threshold)


def constants(shapes: Shapes, affine: bool) -> list[Piece]:
    """A shift of every tensor, if the ansatz is affine."""
    return [ShiftPiece(name, shape) for name, shape in shapes.items()] if affine else []


def and_constants(affine: bool) -> str:
    """What that adds to the words."""
    return ", and a constant for every entry" if affine else ""

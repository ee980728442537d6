"""Affine vector fields on parameter space as matrices of homogeneous coordinates.

    ξ(θ) = Mθ + m,        M̂ = (M m; 0 0),        ξ(θ) = M̂ (θ, 1)

With the last coordinate 1 an affine field is a linear one, and the bracket of two is a commutator:
[ξ_A, ξ_B](θ) = Dξ_B ξ_A − Dξ_A ξ_B = (BA − AB)(θ, 1) = −ξ_[A,B](θ).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy
import torch
from scipy.sparse import csr_array

WORK = 4_000_000_000  # numbers that are computed in all before matrices are refused
_CHUNK = 1 << 23  # of them at a time

Shapes = Mapping[str, tuple[int, ...]]


def order_of(matrix: csr_array) -> int:
    """The number of rows, those of a square matrix."""
    return len(matrix.indptr) - 1


class VectorField(Protocol):
    """A vector field on parameter space: θ ↦ the velocity of each tensor that moves."""

    def velocity(self, params: Mapping[str, torch.Tensor], /) -> dict[str, torch.Tensor]: ...


@dataclass(frozen=True)
class Coordinates:
    """The entries of all parameters in one row, tensor after tensor, and a last one that is 1."""

    shapes: Shapes

    @cached_property
    def places(self) -> dict[str, slice]:
        found, start = {}, 0
        for name, shape in self.shapes.items():
            found[name] = slice(start, start + math.prod(shape))
            start += math.prod(shape)
        return found

    @property
    def size(self) -> int:
        """P, the number of entries without the last."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def params(self, row: torch.Tensor) -> dict[str, torch.Tensor]:
        """The tensors of one row of P numbers."""
        return {n: row[s].reshape(self.shapes[n]) for n, s in self.places.items()}

    def row(self, velocity: Mapping[str, torch.Tensor], like: torch.Tensor) -> torch.Tensor:
        """One row of P numbers; tensors that are left out count as zero."""
        parts = [
            velocity[n].reshape(-1).to(like.dtype) if n in velocity
            else torch.zeros_like(like[s])
            for n, s in self.places.items()
        ]  # fmt: skip
        return torch.cat([like[:0], *parts])


def values_at(field: VectorField, coordinates: Coordinates, rows: torch.Tensor) -> torch.Tensor:
    """ξ at several points, (points, P) → (points, P)."""

    def one(row: torch.Tensor) -> torch.Tensor:
        return coordinates.row(field.velocity(coordinates.params(row)), row)

    return torch.func.vmap(one)(rows)


def homogeneous_matrix(
    field: VectorField,
    coordinates: Coordinates,
    generator: torch.Generator,
    tolerance: float,
    label: str = "the field",
) -> csr_array:
    """M̂ of one field, its entries below tolerance · max |M̂| set to zero.

    Raises:
        ValueError: a field that is not affine in θ, or whose velocities are not finite.
    """
    size = coordinates.size
    constant = values_at(field, coordinates, torch.zeros(1, size, dtype=torch.float64))[0]
    columns, step = [], max(1, _CHUNK // max(1, size))
    for low in range(0, size, step):
        count = min(step, size - low)
        rows = torch.zeros(count, size, dtype=torch.float64)
        rows[torch.arange(count), torch.arange(low, low + count)] = 1.0
        moved = (values_at(field, coordinates, rows) - constant).numpy()
        columns.append(_chopped(moved.T, tolerance))
    last = _chopped(constant.numpy()[:, None], 0.0)
    matrix = _stacked(columns, last, tolerance)
    _require_affine(field, coordinates, matrix, generator, tolerance, label)
    return matrix


def _chopped(block: numpy.ndarray, tolerance: float) -> csr_array:
    """Sparse, without what is far below the largest entry."""
    if not numpy.isfinite(block).all():
        return csr_array(block)
    largest = numpy.abs(block).max(initial=0.0)
    # rounding of 1e-16 · the largest of the block at least, the tolerance in the end
    return csr_array(numpy.where(numpy.abs(block) > min(tolerance, 1e-14) * largest, block, 0.0))


def _stacked(columns: list[csr_array], last: csr_array, tolerance: float) -> csr_array:
    from scipy.sparse import hstack, vstack

    upper = hstack([*columns, last], format="csr")
    matrix = csr_array(vstack([upper, csr_array((1, order_of(last) + 1))], format="csr"))
    largest = numpy.abs(matrix.data).max(initial=0.0)
    matrix.data[numpy.abs(matrix.data) <= tolerance * largest] = 0.0
    matrix.eliminate_zeros()
    return matrix


def _require_affine(
    field: VectorField, coordinates: Coordinates, matrix: csr_array,
    generator: torch.Generator, tolerance: float, label: str,
) -> None:  # fmt: skip
    point = torch.randn(coordinates.size, generator=generator, dtype=torch.float64)
    moved = values_at(field, coordinates, point[None])[0].numpy()
    expected = matrix @ numpy.append(point.numpy(), 1.0)
    error = numpy.linalg.norm(moved - expected[:-1])
    scale = numpy.linalg.norm(moved) + numpy.linalg.norm(matrix.data)
    bound = max(1e-10, 10 * tolerance * math.sqrt(max(1, matrix.nnz)))
    if not (math.isfinite(error) and error <= bound * max(scale, 1e-300)):
        raise ValueError(
            f"lie_algebra(fields): {label} differs by {error / max(scale, 1e-300):.1e} of its size "
            "from the affine field with the same values at the axes, and vector fields Mθ + m with "
            "finite numbers were expected. Give generators of linear_symmetries, or compare fields "
            "that depend on θ otherwise with .compare."
        )


def homogeneous_matrices(
    fields: Sequence[VectorField],
    coordinates: Coordinates,
    generator: torch.Generator,
    tolerance: float,
) -> list[csr_array]:
    """M̂ of every field.

    Raises:
        ValueError: fields that are not affine, or so many parameters that matrices take too long.
    """
    work = len(fields) * coordinates.size**2
    if work > WORK:
        raise ValueError(
            f"lie_algebra(fields): {len(fields)} fields on {coordinates.size:,} parameters have "
            f"{work:.1e} matrix entries to read, and at most {WORK:.0e} were expected. Give the "
            "fields of one submodule, or of a model with smaller layers."
        )
    return [
        homogeneous_matrix(field, coordinates, generator, tolerance, f"field {k}")
        for k, field in enumerate(fields)
    ]

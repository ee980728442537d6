"""Linear vector fields on parameters, θ ↦ Mθ + m, stored by what they do to which tensor.

A P × P matrix of a network is mostly zeros, and P² numbers are too many to keep. A generator is a
sum of parts, each of which gives a velocity to one tensor: a matrix between all entries of two
tensors, a matrix along one axis, or a constant.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from paramsym.structure.tangent import as_real

Params = Mapping[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]

_NEAR, _APART = 1e-8, 1000.0
_ZERO = 1e-12  # of the largest coefficient: a part below it is none


class Part(Protocol):
    """A velocity of one tensor that is affine in the parameters."""

    @property
    def target(self) -> str:
        """The tensor that moves."""
        ...

    @property
    def source(self) -> str:
        """The tensor that its velocity is made of; the target itself if it is constant."""
        ...

    @property
    def values(self) -> Tensor:
        """The coefficients."""
        ...

    def of(self, source: Tensor) -> Tensor:
        """The velocity, (…, entries of the target), by the source, (…, entries)."""
        ...

    def enter(self, matrix: Tensor, constant: Tensor, places: Mapping[str, slice]) -> None:
        """Add the part to M, (P, P), and to m, (P,)."""
        ...


@dataclass(frozen=True)
class Block:
    """d vec(T)/dt = B · vec(S): each entry of a tensor by all entries of a tensor."""

    target: str
    source: str
    values: Tensor  # (entries of the target, entries of the source)

    def of(self, source: Tensor) -> Tensor:
        return source @ self.values.to(source).T

    def enter(self, matrix: Tensor, constant: Tensor, places: Mapping[str, slice]) -> None:
        matrix[places[self.target], places[self.source]] += self.values


@dataclass(frozen=True)
class Side:
    """dT/dt = A acting on one axis of T: from the left of a matrix on axis 0, else from the right.

    Of a velocity W B of a matrix, the values are Bᵀ.
    """

    target: str
    axis: int
    values: Tensor  # (n, n), n the length of the axis
    shape: tuple[int, ...]  # of the target, real numbers

    @property
    def source(self) -> str:
        return self.target

    def of(self, source: Tensor) -> Tensor:
        after = math.prod(self.shape[self.axis + 1 :])
        along = source.reshape(*source.shape[:-1], -1, len(self.values), after)
        return (self.values.to(source) @ along).reshape(source.shape)

    def enter(self, matrix: Tensor, constant: Tensor, places: Mapping[str, slice]) -> None:
        before, after = math.prod(self.shape[: self.axis]), math.prod(self.shape[self.axis + 1 :])
        eye = {n: torch.eye(n, dtype=matrix.dtype) for n in (before, after)}
        acting = torch.kron(torch.kron(eye[before], self.values.to(matrix)), eye[after])
        matrix[places[self.target], places[self.target]] += acting


@dataclass(frozen=True)
class Shift:
    """dT/dt = C, a constant."""

    target: str
    values: Tensor  # of the shape of the target, real numbers

    @property
    def source(self) -> str:
        return self.target

    def of(self, source: Tensor) -> Tensor:
        return self.values.to(source).reshape(-1).expand(source.shape)

    def enter(self, matrix: Tensor, constant: Tensor, places: Mapping[str, slice]) -> None:
        constant[places[self.target]] += self.values.reshape(-1)


@dataclass(frozen=True)
class Generator:
    """One direction of a linear symmetry: the vector field θ ↦ Mθ + m, m = 0 if it is linear.

    Attributes:
        parts: what it does to which tensor; M is their sum.
        residual: the largest |⟨∇F, Mθ + m⟩| on samples that it was not found on, where the
            constraint and the coefficients have norm one.
        threshold: the residual up to which it was accepted.
    """

    parts: tuple[Part, ...]
    residual: float
    threshold: float

    @property
    def targets(self) -> tuple[str, ...]:
        """The tensors that move."""
        return tuple(dict.fromkeys(part.target for part in self.parts))

    @property
    def touched(self) -> tuple[str, ...]:
        """The tensors that move or by which others move."""
        return tuple(dict.fromkeys([*self.targets, *(part.source for part in self.parts)]))

    def velocity(self, params: Params) -> dict[str, Tensor]:
        """Mθ + m for each tensor that moves, in the shape, dtype and device of the tensor.

        Args:
            params: a complete state dict; buffers and ties are not looked at.
        """
        real = {n: as_real(params[n]) for n in self.touched}
        flat = self.flat({n: p.reshape(-1) for n, p in real.items()})
        found = {n: v.reshape(real[n].shape) for n, v in flat.items()}
        return {
            name: torch.view_as_complex(v.contiguous()) if params[name].is_complex() else v
            for name, v in found.items()
        }

    def flat(self, params: Params, linear: bool = False) -> dict[str, Tensor]:
        """Mθ + m of several θ at once, real numbers: name → (…, entries).

        Args:
            params: name → (…, entries); what is left out is zero.
            linear: leave out m.
        """
        found: dict[str, Tensor] = {}
        for part in self.parts:
            if part.source not in params or (linear and isinstance(part, Shift)):
                continue
            moved = part.of(params[part.source])
            found[part.target] = found[part.target] + moved if part.target in found else moved
        return found

    def dense(self, shapes: Shapes) -> tuple[Tensor, Tensor]:
        """M, (P, P), and m, (P,), over all entries of the named tensors in their order.

        Args:
            shapes: names and shapes of real numbers; `LinearSymmetries.shapes` has them.
        """
        places = places_of(shapes)
        size = sum(math.prod(shape) for shape in shapes.values())
        matrix = torch.zeros(size, size, dtype=torch.float64)
        constant = torch.zeros(size, dtype=torch.float64)
        for part in self.parts:
            part.enter(matrix, constant, places)
        return matrix, constant


def places_of(shapes: Shapes) -> dict[str, slice]:
    """Where each tensor stands in the vector of all entries."""
    found, start = {}, 0
    for name, shape in shapes.items():
        found[name] = slice(start, start + math.prod(shape))
        start += math.prod(shape)
    return found


def without_rounding(parts: Iterable[Part]) -> tuple[Part, ...]:
    """The parts that are more than rounding of the largest."""
    parts = tuple(parts)
    sizes = [float(part.values.abs().max()) for part in parts]
    largest = max(sizes, default=0.0)
    return tuple(p for p, size in zip(parts, sizes, strict=True) if size > _ZERO * largest)


@dataclass(frozen=True)
class Gap:
    """What separates generators from all other directions of the ansatz.

    Attributes:
        largest_null: the largest residual of a generator on fresh samples; 0 if there is none.
        next: the least root mean square of the constraints along a direction of norm one that is
            orthogonal to the generators; infinite if there is none.
    """

    largest_null: float
    next: float

    @property
    def clear(self) -> bool:
        """Whether the count can be trusted: what was rejected is no near-symmetry.

        Below 1e-8, or within a factor of 1000 of the generators' own residuals, a direction may be
        a generator that rounding hid, as in functions that saturate.
        """
        return self.next >= max(_NEAR, _APART * self.largest_null)

    def __str__(self) -> str:
        return f"{self.largest_null:.1e} | {self.next:.1e}"

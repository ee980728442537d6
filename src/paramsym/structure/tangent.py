"""The tangent space of an orbit: all velocities of the parameters, as a linear operator.

    coordinates  c = (one algebra element per copy of each space, one offset per shift)
    tangent(c)   = d/dt act(exp(t c), θ) at t = 0

Velocities are derivatives of `act` itself, and nothing about any group is written here. The adjoint
is read off the blocks of each tensor (`pairing`); the reverse pass through `act` is its twin in the
tests. The rank at θ is the dimension of the orbit through θ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import torch

from paramsym.algebra import first_order
from paramsym.arguments import checked
from paramsym.structure.action import act, check_parameters, infinitesimal
from paramsym.structure.coordinates import Generators, generators_of, split
from paramsym.structure.covector import covector_of
from paramsym.structure.element import AlgebraElement, GroupElement, Part, Slide, algebra_of
from paramsym.structure.pairing import paired
from paramsym.structure.projection import Adjoint, Forwards, Progress, balanced, onto_range
from paramsym.structure.rest import Basis, Equations, basis_at_rest
from paramsym.structure.symmetry import ParameterSymmetry

Vectors = dict[str, torch.Tensor]

_CHUNK = 1 << 23  # entries of one batch of velocities


@dataclass(frozen=True)
class TangentOperator:
    """Coordinates ↦ velocities of the parameters and floating buffers, at fixed parameters.

    A complex entry counts as two real ones, its real and its imaginary part.

    Rows of `dense()` are generators; `names` gives the order of its columns, which `columns`
    spells out. Tied names count once, under the name that the signature uses. With `basis`, from
    `at_rest`, coordinates are those of its directions instead of the generators.
    """

    symmetry: ParameterSymmetry
    params: Mapping[str, torch.Tensor]
    basis: Basis | None = None

    @cached_property
    def names(self) -> tuple[str, ...]:
        ties = self.symmetry.ties
        return tuple(
            n for n, p in self.params.items()
            if (p.is_floating_point() or p.is_complex()) and n not in ties
        )  # fmt: skip

    @cached_property
    def blocks(self) -> tuple[Generators, ...]:
        """The generators by space and shift, in the order of the coordinates."""
        return generators_of(self.symmetry, self.params)

    @property
    def shape(self) -> tuple[int, int]:
        """(generators, real entries of all parameters and floating buffers).

        At rest the independent directions count in place of the generators.
        """
        entries = sum(real_entries(self.params[n]) for n in self.names)
        generators = sum(block.size for block in self.blocks)
        return (generators if self.basis is None else self.basis.width), entries

    @cached_property
    def columns(self) -> dict[str, slice]:
        """Where each parameter stands among the columns of `dense()`."""
        found, start = {}, 0
        for name in self.names:
            found[name] = slice(start, start + real_entries(self.params[name]))
            start += real_entries(self.params[name])
        return found

    @property
    def zero(self) -> torch.Tensor:
        """The coordinates of the identity, at the precision of the parameters."""
        first = self.params[self.names[0]] if self.names else torch.zeros(())
        kinds = [self.params[n].dtype.to_real() for n in self.names]
        dtype = reduce(torch.promote_types, kinds, torch.float32)
        return torch.zeros(self.shape[0], dtype=dtype, device=first.device)

    def split(self, coordinates: torch.Tensor) -> list[tuple[Generators, torch.Tensor]]:
        """Coordinates of all generators, (generators,), block by block in the block's shape."""
        return split(self.blocks, coordinates)

    def algebra(self, coordinates: torch.Tensor) -> AlgebraElement:
        """The algebra element with these coordinates, of shape (generators,)."""
        if self.basis is not None:
            coordinates = self.basis.lifted(coordinates)
        return algebra_of(self.symmetry, self.blocks, coordinates)

    def matvec(self, coordinates: torch.Tensor) -> Vectors:
        """The velocity of each parameter that moves, for coordinates of shape (generators,)."""
        if not self.blocks:
            return {}
        zero = torch.zeros_like(coordinates)
        return torch.func.jvp(self._curve(self.names), (zero,), (coordinates,))[1]

    def rmatvec(self, covector: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """How a covector pairs with every generator: ⟨ξ, X_j θ⟩ for all j, of shape (generators,).

        The adjoint of `matvec`, ⟨ξ, matvec(c)⟩ = ⟨rmatvec(ξ), c⟩. For each axis that moves, the
        matrix Σ ξ xᵀ says how all velocities of its space pair; nothing is moved. The pairing is
        that of `columns`: Σ Re ξ̄ v over all entries, of tied tensors once.

        Args:
            covector: tensors by parameter or floating buffer, of its shape; missing names count as
                zero. Of tied names, that of the signature is read, and any other in its absence.

        Raises:
            ValueError: a name that is no parameter, another shape, complex numbers for real ones,
                or as `act`.
        """
        given = covector_of(self.symmetry, self.params, covector, "rmatvec")
        check_parameters(self.symmetry, self.params)
        zero = self.zero
        wide = {
            n: xi.to(torch.promote_types(self.params[n].dtype, zero.dtype))
            for n, xi in given.items()
        }
        pairs = paired(self.symmetry, self.params, wide)
        parts = [
            pairs[b.name].reshape(-1).to(zero.dtype) if b.name in pairs else zero.new_zeros(b.size)
            for b in self.blocks
        ]
        found = torch.cat([zero[:0], *parts])
        return found if self.basis is None else self.basis.lowered(found)

    def at_rest(self) -> TangentOperator:
        """The operator of the directions that leave every buffer where it is.

        In evaluation mode a buffer is a number that the network reads: a scale in front of a batch
        norm moves its running mean, and the loss is constant along parameters and buffers together
        only. Along these directions it is constant along the parameters alone, so that gradients
        pair to zero. They are the null space of (coordinates ↦ velocities of the buffers) in an
        orthonormal basis: `shape[0]` is their number, and every method is the restriction of that
        of all generators.
        """
        return self if self.basis is not None else replace(self, basis=self.basis_at_rest())

    def basis_at_rest(self, equations: Equations | None = None, reduced: bool = False) -> Basis:
        """The basis of `at_rest`, of the coordinates of all generators that satisfy equations.

        It is found in float64, whatever the parameters are: a running mean of 1e8 stands beside
        ones.

        Args:
            equations: what the coordinates satisfy besides.
            reduced: the reduced echelon basis in place of an orthonormal one.
        """
        buffers = [n for n in self.names if n in self.symmetry.buffers]
        kinds = {n: torch.promote_types(self.params[n].dtype, torch.float64) for n in buffers}
        wide = {n: self.params[n].to(kind) for n, kind in kinds.items()}
        exact = replace(self, params={**self.params, **wide}, basis=None)
        starts, total = {}, 0
        for block in self.blocks:
            starts[block.name] = total
            total += block.size
        sizes = [block.size for block in self.blocks]
        basis = basis_at_rest(
            self.symmetry, exact.params, starts, sizes, exact.rmatvec, equations, reduced
        )
        return replace(basis, values=basis.values.to(self.zero.dtype))

    def project(
        self,
        vector: Mapping[str, torch.Tensor],
        tolerance: float = 1e-8,
        steps: int = 1000,
        progress: Progress | None = None,
    ) -> Vectors:
        """The orthogonal projection of a vector onto the tangent space of the orbit.

        The velocity matvec(c) that comes nearest to the vector, by conjugate gradients on the
        normal equations of min ‖matvec(c) − v‖. They are consistent whatever the rank, and no
        matrix is formed: a step costs one pass through `act` forwards and one in reverse. Floating
        buffers are entries like those of parameters.

        Args:
            vector: tensors by name as in `rmatvec`; missing names count as zero.
            tolerance: the error that is accepted, relative to the norm of the vector. It is
                estimated from what the last steps added.
            steps: the most steps that are taken.
            progress: called after each step with its number and the estimated relative error.

        Returns:
            The projected vector, for every parameter that moves.

        Raises:
            NotConverged: the tolerance was not reached.
            ValueError: as `rmatvec`.
        """
        given = covector_of(self.symmetry, self.params, vector, "project")
        if not self.blocks:
            return {}
        with torch.no_grad():  # the parameters may be a model's own
            return self._projected(given, tolerance, steps, progress)

    def _projected(
        self, given: Vectors, tolerance: float, steps: int, progress: Progress | None
    ) -> Vectors:
        forwards, adjoint, rest = self._passes()
        start = {n: given[n].to(zero.dtype) if n in given else zero for n, zero in rest.items()}
        norm = math.sqrt(sum(float(torch.linalg.vector_norm(x)) ** 2 for x in given.values()))
        sizes = [b.size for b in self.blocks] if self.basis is None else self.basis.sizes
        scales = balanced(adjoint, rest, sizes)
        return onto_range(forwards, adjoint, start, scales, tolerance, norm, steps, progress)

    def _passes(self) -> tuple[Forwards, Adjoint, Vectors]:
        """`matvec`, `rmatvec`, and zero for every parameter that moves, to be used many times.

        What `act` computes is kept between calls. The adjoint is linear, so that its own reverse
        pass is `matvec`.
        """
        moved, pull = torch.func.vjp(self._curve(self.names), self.zero)[:2]
        rest = {n: torch.zeros_like(x) for n, x in moved.items()}
        push = torch.func.vjp(lambda covector: pull(covector)[0], rest)[1]
        return lambda c: push(c)[0], lambda covector: pull(covector)[0], rest

    def _curve(self, names: tuple[str, ...]) -> Callable[[torch.Tensor], Vectors]:
        """Coordinates ↦ those of some parameters that move, right to first order at zero."""

        def moved(coordinates: torch.Tensor) -> Vectors:
            a = self.algebra(coordinates)
            values = {space: first_order(velocity) for space, velocity in a.values.items()}
            parts: list[Part] = [values, *(Slide(name, d) for name, d in a.offsets.items())]
            found = act(self.symmetry, GroupElement(self.symmetry, tuple(parts)), self.params)
            return {n: found[n] for n in names if found[n] is not self.params[n]}

        return moved

    def velocity(self, block: Generators, coordinates: torch.Tensor) -> Vectors:
        """The velocity of each parameter for coordinates of one block, (block.size,)."""
        if block.is_shift:
            offsets = {block.name: coordinates.reshape(block.batch)}
            algebra = AlgebraElement(self.symmetry, {}, offsets)
        else:
            shaped = coordinates.reshape(*block.batch, block.width)
            value = self.symmetry.spaces[block.name].group.tangent(shaped)
            algebra = AlgebraElement(self.symmetry, {block.name: value}, {})
        found = infinitesimal(self.symmetry, algebra, self.params)
        return {n: v for n, v in found.items() if n not in self.symmetry.ties}

    def velocities(self, block: Generators) -> Iterator[Vectors]:
        """Velocities of a block's generators, in batches: name → (batch, *shape)."""
        first = next(iter(self.params[n] for n in self.names))
        moved = sum(self.params[n].numel() for n in block.parameters)
        step = max(1, _CHUNK // max(1, moved))
        for low in range(0, block.size, step):
            high = min(low + step, block.size)
            basis = torch.zeros(
                high - low, block.size, dtype=first.dtype.to_real(), device=first.device
            )
            basis[torch.arange(high - low), torch.arange(low, high)] = 1.0
            yield torch.func.vmap(lambda drawn: self.velocity(block, drawn))(basis)

    def dense(
        self, blocks: tuple[Generators, ...] | None = None, names: tuple[str, ...] | None = None
    ) -> torch.Tensor:
        """The matrix of generators × entries, for some blocks and some parameters if given.

        At rest the matrix of directions × entries, of all blocks.
        """
        if self.basis is not None:
            return self.basis.lowered(replace(self, basis=None).dense(None, names))
        blocks = self.blocks if blocks is None else blocks
        names = self.names if names is None else names
        places, width = {}, 0
        for name in names:
            places[name] = slice(width, width + real_entries(self.params[name]))
            width += real_entries(self.params[name])
        first = self.params[self.names[0]]
        matrix = torch.zeros(
            sum(b.size for b in blocks), width, dtype=first.dtype.to_real(), device=first.device
        )
        row = 0
        for block in blocks:
            for batch in self.velocities(block):
                count = next((len(v) for v in batch.values()), 0)
                for name, velocity in batch.items():
                    if name in places:
                        flat = as_real(velocity).reshape(count, -1)
                        matrix[row : row + count, places[name]] = flat
                row += count
        return matrix


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """Real and imaginary parts along a new last axis, for complex tensors."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def real_entries(tensor: torch.Tensor) -> int:
    """Real numbers in a tensor: two for each complex entry."""
    return tensor.numel() * (2 if tensor.is_complex() else 1)


@checked
def tangent(symmetry: ParameterSymmetry, params: Mapping[str, torch.Tensor]) -> TangentOperator:
    """The tangent operator of the orbit through `params` (a complete state dict)."""
    return TangentOperator(symmetry, dict(params))

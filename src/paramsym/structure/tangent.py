"""The tangent space of an orbit: all velocities of the parameters, as a linear operator.

    coordinates  c = (one algebra element per copy of each space, one offset per shift)
    tangent(c)   = d/dt act(exp(t c), θ) at t = 0

The operator's velocities are those of `infinitesimal`, which differentiates `act` itself; nothing
about any group is written here. Its rank at θ is the dimension of the orbit through θ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from paramsym.structure.action import infinitesimal
from paramsym.structure.element import AlgebraElement, batch_of
from paramsym.structure.symmetry import ParameterSymmetry

_CHUNK = 1 << 23  # entries of one batch of velocities


@dataclass(frozen=True)
class Block:
    """The generators of one space, with all its copies, or of one shift."""

    name: str
    batch: tuple[int, ...]  # copies; the shape of δ for a shift
    width: int  # dimension of the algebra of one copy; 1 for a shift
    is_shift: bool
    parameters: tuple[str, ...]

    @property
    def size(self) -> int:
        return math.prod(self.batch) * self.width


@dataclass(frozen=True)
class TangentOperator:
    """Coordinates ↦ velocities of the parameters and floating buffers, at fixed parameters.

    A complex entry counts as two real ones, its real and its imaginary part.

    Rows of `dense()` are generators; `names` gives the order of its columns, which `columns`
    spells out. Tied names count once, under the name that the signature uses.
    """

    symmetry: ParameterSymmetry
    params: Mapping[str, torch.Tensor]

    @cached_property
    def names(self) -> tuple[str, ...]:
        ties = self.symmetry.ties
        return tuple(
            n for n, p in self.params.items()
            if (p.is_floating_point() or p.is_complex()) and n not in ties
        )  # fmt: skip

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        symmetry = self.symmetry
        made = [
            Block(
                space.name,
                batch_of(symmetry, space),
                space.group.dimension,
                False,
                tuple(n for n in symmetry.parameters_of(space.name) if n in self.params),
            )
            for space in symmetry.spaces.values()
        ]
        made += [Block(s.name, s.shape, 1, True, s.parameters) for s in symmetry.shifts]
        return tuple(block for block in made if block.size)

    @property
    def shape(self) -> tuple[int, int]:
        """(generators, real entries of all parameters and floating buffers)."""
        entries = sum(real_entries(self.params[n]) for n in self.names)
        return sum(block.size for block in self.blocks), entries

    @cached_property
    def columns(self) -> dict[str, slice]:
        """Where each parameter stands among the columns of `dense()`."""
        found, start = {}, 0
        for name in self.names:
            found[name] = slice(start, start + real_entries(self.params[name]))
            start += real_entries(self.params[name])
        return found

    def algebra(self, coordinates: torch.Tensor) -> AlgebraElement:
        """The algebra element with these coordinates, of shape (generators,)."""
        values, offsets, start = {}, {}, 0
        for block in self.blocks:
            part = coordinates[start : start + block.size]
            start += block.size
            if block.is_shift:
                offsets[block.name] = part.reshape(block.batch)
            else:
                group = self.symmetry.spaces[block.name].group
                values[block.name] = group.tangent(part.reshape(*block.batch, block.width))
        return AlgebraElement(self.symmetry, values, offsets)

    def matvec(self, coordinates: torch.Tensor) -> dict[str, torch.Tensor]:
        """The velocity of each parameter that moves, for coordinates of shape (generators,)."""
        if not self.blocks:
            return {}
        return self._kept(infinitesimal(self.symmetry, self.algebra(coordinates), self.params))

    def velocities(self, block: Block) -> Iterator[dict[str, torch.Tensor]]:
        """Velocities of a block's generators, in batches: name → (batch, *shape)."""
        symmetry = self.symmetry
        first = next(iter(self.params[n] for n in self.names))

        def one(coordinates: torch.Tensor) -> dict[str, torch.Tensor]:
            if block.is_shift:
                algebra = AlgebraElement(
                    symmetry, {}, {block.name: coordinates.reshape(block.batch)}
                )
            else:
                shaped = coordinates.reshape(*block.batch, block.width)
                value = symmetry.spaces[block.name].group.tangent(shaped)
                algebra = AlgebraElement(symmetry, {block.name: value}, {})
            return self._kept(infinitesimal(symmetry, algebra, self.params))

        moved = sum(self.params[n].numel() for n in block.parameters)
        step = max(1, _CHUNK // max(1, moved))
        for low in range(0, block.size, step):
            high = min(low + step, block.size)
            basis = torch.zeros(
                high - low, block.size, dtype=first.dtype.to_real(), device=first.device
            )
            basis[torch.arange(high - low), torch.arange(low, high)] = 1.0
            yield torch.func.vmap(one)(basis)

    def _kept(self, velocity: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {n: v for n, v in velocity.items() if n not in self.symmetry.ties}

    def dense(
        self, blocks: tuple[Block, ...] | None = None, names: tuple[str, ...] | None = None
    ) -> torch.Tensor:
        """The matrix of generators × entries, for some blocks and some parameters if given."""
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


def tangent(symmetry: ParameterSymmetry, params: Mapping[str, torch.Tensor]) -> TangentOperator:
    """The tangent operator of the orbit through `params` (a complete state dict)."""
    return TangentOperator(symmetry, dict(params))

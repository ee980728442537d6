"""Coordinates of the Lie algebra of a symmetry: one real vector, in the order of its generators."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import torch

from paramsym.algebra import Tangent
from paramsym.structure.data import SymmetryData, batch_of


@dataclass(frozen=True)
class Generators:
    """The generators of one space, with all its copies, or of one shift."""

    name: str
    batch: tuple[int, ...]  # copies; the shape of δ for a shift
    width: int  # dimension of the algebra of one copy; 1 for a shift
    is_shift: bool
    parameters: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The coordinates of each copy, or the shape of δ."""
        return self.batch if self.is_shift else (*self.batch, self.width)

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def generators_of(
    symmetry: SymmetryData, params: Mapping[str, object] | None = None
) -> tuple[Generators, ...]:
    """The generators that move parameters (those given, if any are): spaces first, then shifts.

    A space that moves inputs and outputs alone has none.
    """
    found = [
        Generators(
            space.name, batch_of(symmetry, space), space.group.dimension, False,
            tuple(n for n in symmetry.parameters_of(space.name) if params is None or n in params),
        )
        for space in symmetry.spaces.values()
    ]  # fmt: skip
    found += [Generators(s.name, s.shape, 1, True, s.parameters) for s in symmetry.shifts]
    return tuple(each for each in found if each.size and each.parameters)


def split(
    generators: Sequence[Generators], coordinates: torch.Tensor
) -> list[tuple[Generators, torch.Tensor]]:
    """Coordinates of all generators, (generators,), block by block in the block's shape."""
    parts = coordinates.split([each.size for each in generators])
    return [(g, part.reshape(g.shape)) for g, part in zip(generators, parts, strict=True)]


def joined(
    symmetry: SymmetryData,
    values: Mapping[str, Tangent],
    offsets: Mapping[str, torch.Tensor],
) -> torch.Tensor:
    """The coordinates of a velocity, of shape (generators,); zero where it says nothing."""
    found = {name: symmetry.spaces[name].group.coordinates(value) for name, value in values.items()}
    found = {**found, **offsets}
    kinds = [x.dtype for x in found.values()]
    dtype = reduce(torch.promote_types, kinds, torch.float32)
    device = next((x.device for x in found.values()), torch.device("cpu"))

    def parts() -> Iterator[torch.Tensor]:
        yield torch.zeros(0, dtype=dtype, device=device)
        for each in generators_of(symmetry):
            zero = torch.zeros(each.shape, dtype=dtype, device=device)
            yield (zero + found.get(each.name, zero)).reshape(-1)

    return torch.cat(list(parts()))

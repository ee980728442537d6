"""The forms that a step makes of conserved quantities, read off tensors law by law.

For the field X θ = A (θ + o) + a of a law, B(x, y) = ⟨x, A y⟩ and c(x) = ⟨x, A o + a⟩.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from paramsym.structure.origin import added
from paramsym.structure.pairing import paired
from paramsym.structure.rest import Basis
from paramsym.structure.shift import Shift
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.walk import Block, Blocks
from paramsym.structure.whole import whole

from .conserved import ConservedQuantities

Make = Callable[[str], Tensor]


class Made(Mapping[str, Tensor]):
    """Tensors by name that are made when they are read, whole if they are spread over ranks; the
    last one is kept."""

    def __init__(self, names: tuple[str, ...], make: Make):
        self.names, self.make = names, make
        self.last: tuple[str, Tensor] | None = None

    def __getitem__(self, name: str) -> Tensor:
        if self.last is None or self.last[0] != name:
            if name not in self.names:
                raise KeyError(name)
            self.last = (name, whole(self.make(name)))
        return self.last[1]

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class Forms:
    """The forms B and c of all laws, evaluated law by law: vectors of shape (quantities,).

    Attributes:
        laws: whose they are.
        buffers: by name, for shifts that read them.
    """

    laws: ConservedQuantities
    buffers: Mapping[str, Tensor]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The parameters that the laws speak of."""
        shifted = {n for s in self._linear.shifts for n in s.parameters}
        held = self.laws.symmetry.buffers
        return tuple(
            n for n in self.laws.operator.names
            if n not in held and (n in self._quadratic or n in shifted)
        )  # fmt: skip

    @cached_property
    def held(self) -> set[str]:
        """The buffers that the laws would move or read."""
        movers, symmetry = self._moving, self.laws.symmetry
        read = {n for s in self._linear.shifts for t in s.terms for f in t.factors for n in f.reads}
        return {n for n in symmetry.buffers if n in read or symmetry.movers.get(n, set()) & movers}

    @cached_property
    def twice(self) -> Tensor:
        """1 for laws of spaces and 0 for those of shifts, which have no B."""
        return (self.laws.degrees.to(self.laws.operator.zero.device) - 1).double()

    @cached_property
    def is_affine(self) -> bool:
        """Whether X₀ ≠ 0 for a law of a space."""
        symmetry, basis = self.laws.symmetry, self._basis
        if any(symmetry.offsets.get(n, 0.0) for n in self._quadratic):
            return True
        mixed = (basis.rows >= self.laws._spaces) & (self.twice[basis.columns] > 0)
        return bool((mixed & (basis.values != 0)).any())

    def bilinear(self, x: Mapping[str, Tensor], y: Mapping[str, Tensor]) -> Tensor:
        """B(x, y); y may name fewer tensors. Pass the same object twice where they are."""
        return self._lowered(paired(self._spaces_alone, x, y, self._quadratic))

    def size(self, x: Mapping[str, Tensor]) -> Tensor:
        """B(x, x) if nothing cancelled, between the two sides of an interface."""
        return self._lowered(paired(self._spaces_alone, x, x, self._unsigned))

    def constant(self, y: Mapping[str, Tensor]) -> Tensor:
        """c(y)."""
        names = tuple(n for n in y if n in self._quadratic and self.laws.symmetry.offsets.get(n))

        def origin(name: str) -> Tensor:
            return added(torch.zeros_like(y[name]), self.laws.symmetry.offsets[name])

        found = self._lowered(paired(self._linear, {**self.buffers}, y, {}))
        if names:
            at, some = Made(names, origin), Made(names, y.__getitem__)
            found = found + self.bilinear(at, some)
        return found

    @cached_property
    def at_zero(self) -> Tensor:
        """What Q − c(θ)·d − B(θ, θ) is: ⟨o, A o⟩ + 2 ⟨a, o⟩, or ⟨a, o⟩; for equal rates."""
        symmetry, params = self.laws.symmetry, self.laws.operator.params
        names = tuple(n for n in self.names if symmetry.offsets.get(n, 0.0))

        def origin(name: str) -> Tensor:
            zero = torch.zeros_like(whole(params[name]), dtype=torch.promote_types(
                params[name].dtype, torch.float64))  # fmt: skip
            return added(zero, symmetry.offsets[name])

        at = Made(names, origin)
        shift = self._lowered(paired(self._linear, {**self.buffers}, at, {}))
        return self.bilinear(at, at) + shift * (self.twice + 1.0)

    def _lowered(self, pairs: Mapping[str, Tensor]) -> Tensor:
        laws, zero = self.laws, self.laws.operator.zero
        parts = [
            pairs[b.name].reshape(-1).double() if b.name in pairs
            else torch.zeros(b.size, dtype=torch.float64, device=zero.device)
            for b in laws.operator.blocks
        ]  # fmt: skip
        none = torch.zeros(0, dtype=torch.float64, device=zero.device)
        return self._basis.lowered(torch.cat([none, *parts]))

    @cached_property
    def _basis(self) -> Basis:
        """The combinations in float64, without what rounding has left of zeros."""
        values = self.laws.basis.values.double()
        dust = values.abs() <= 1e-14 * values.abs().max() if len(values) else values.bool()
        return replace(self.laws.basis, values=values.masked_fill(dust, 0.0))

    @cached_property
    def _moving(self) -> set[str]:
        """The spaces and shifts that some law moves."""
        rows = self._basis.rows[self._basis.values != 0]
        found, first = set(), 0
        for block in self.laws.operator.blocks:
            if bool(((rows >= first) & (rows < first + block.size)).any()):
                found.add(block.name)
            first += block.size
        return found

    @cached_property
    def _spaces_alone(self) -> ParameterSymmetry:
        return replace(self.laws.symmetry, shifts=(), offsets={})

    @cached_property
    def _linear(self) -> ParameterSymmetry:
        """The shifts of laws; what reads parameters cancels in each law, and is left out."""
        own = self.laws.symmetry
        held = {*own.buffers}

        def constant(shift: Shift) -> Shift:
            terms = (t for t in shift.terms if all({*f.reads} <= held for f in t.factors))
            return replace(shift, terms=tuple(terms))

        shifts = tuple(constant(s) for s in own.shifts if s.name in self._moving)
        return replace(own, shifts=shifts, offsets={})

    @cached_property
    def _quadratic(self) -> Blocks:
        """The blocks that laws of spaces move, without frames.

        What a law does in a frame is diagonal, and commutes with it.
        """
        found = {}
        for name, blocks in self.laws.symmetry.blocks.items():
            if name in self.laws.symmetry.buffers:
                continue
            kept = tuple(b for b in map(self._without_frames, blocks) if b.legs)
            if kept:
                found[name] = kept
        return found

    def _without_frames(self, block: Block) -> Block:
        legs = (leg for leg in block.legs if leg.power and leg.space in self._moving)
        return replace(block, legs=tuple(replace(leg, frame=()) for leg in legs))

    @cached_property
    def _unsigned(self) -> Blocks:
        return {
            n: tuple(
                replace(b, legs=tuple(replace(leg, power=abs(leg.power)) for leg in b.legs))
                for b in blocks
            )
            for n, blocks in self._quadratic.items()
        }

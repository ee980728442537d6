"""Two points that a compact group is to bring together, and what each space can read off them.

Let g act on the rows of the blocks x of one point, and let y be the blocks of the other. Then

    ⟨y, g x⟩ = ⟨g, C⟩,    C = Σ y xᵀ,

the cross-Gram matrix, says all that matters about g while everything else stays. Orthogonal maps
are their own duals, so that covariant and dual axes count alike.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from paramsym.algebra import AbstractMonomial, Element
from paramsym.structure.action import act
from paramsym.structure.element import GroupElement
from paramsym.structure.layout import widened
from paramsym.structure.space import Space
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.walk import Block, Leg

_CLEAR, _CLEAREST = 1e3, 1e-10  # units in the last place, and at least: less tells nothing


class Place(NamedTuple):
    """One leg of one block of a parameter, and the legs beside it that move.

    `unknown` are those of them that units have to be read without.
    """

    block: Block
    leg: Leg
    beside: tuple[Leg, ...]
    unknown: tuple[Leg, ...] = ()


def is_order(space: Space) -> bool:
    """Whether the units of a space change places."""
    return isinstance(space.group, AbstractMonomial) and space.group.permutes


def moves(space: Space, leg: Leg) -> bool:
    """Whether a leg moves anything: orders in any power, signs in odd ones."""
    group = space.group
    if not isinstance(group, AbstractMonomial) or is_order(space):
        return True
    return group.signs and leg.power.denominator == 1 and leg.power.numerator % 2 == 1


def stands_on(symmetry: ParameterSymmetry, leg: Leg, order: Leg) -> bool:
    """Whether a leg acts on each unit of an order by itself, the units being those of one axis."""
    over = symmetry.spaces[leg.space].over
    return (order.space, order.axis) in zip(over, leg.copies, strict=True)


@dataclass
class Pair:
    """A fixed point and one that moves, under a compact symmetry without frames.

    Attributes:
        symmetry: the compact part, from `compact_part`.
        fixed: the parameters that stay, by name.
        moving: those that move; `apply` replaces them.
        element: the product of all that has been applied.
        rounding: one unit in the last place.
        clear: what is told from nothing, relative to the largest that is read.
    """

    symmetry: ParameterSymmetry
    fixed: Mapping[str, Tensor]
    moving: dict[str, Tensor]

    def __post_init__(self) -> None:
        self.element = GroupElement(self.symmetry)
        eps = [torch.finfo(x.dtype.to_real()).eps for x in self.fixed.values()]
        self.rounding = max(eps, default=0.0)
        self.clear = max(_CLEAREST, _CLEAR * self.rounding)
        self.versions = dict.fromkeys(self.symmetry.signature, 0)
        self.places: dict[str, list[Place]] = {name: [] for name in self.symmetry.spaces}
        spaces = self.symmetry.spaces
        for blocks in self.symmetry.blocks.values():
            for block in blocks:
                legs = [leg for leg in block.legs if moves(spaces[leg.space], leg)]
                for leg in legs:
                    beside = tuple(other for other in legs if other is not leg)
                    self.places[leg.space].append(Place(block, leg, beside))

    def names(self, spaces: Collection[str]) -> list[str]:
        """The parameters that some spaces move."""
        found = {place.block.parameter for space in spaces for place in self.places[space]}
        return [name for name in self.symmetry.signature if name in found]

    def product(self, names: Collection[str]) -> float:
        """⟨fixed, moving⟩ over some parameters."""
        return sum(_dot(self.fixed[name], self.moving[name]) for name in names)

    def apply(self, values: Mapping[str, Element]) -> None:
        """Move by values of spaces."""
        step = GroupElement(self.symmetry, (dict(values),))
        self.moving = act(self.symmetry, step, self.moving)
        self.element = step @ self.element
        for name in self.names(values):
            self.versions[name] += 1

    def both(self, place: Place, blind: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
        """The block of either point as (*copies, n, *blind, everything else) of plain axes."""
        leg = place.leg
        front = (*leg.copies, leg.axis, *blind)
        found = []
        for side in (self.fixed, self.moving):
            x = place.block.view(side[place.block.parameter])
            x = x.movedim(front, tuple(range(len(front))))
            found.append(x.reshape(*x.shape[: len(front)], -1))
        return found[0], found[1]

    def cross(self, places: Collection[Place], own: bool = False) -> Tensor:
        """C, of shape (*copies, n, n), summed over some places; or the Gram matrix of the fixed
        point by its own."""
        sides = map(self.both, places)
        return _sum(_products(y, y if own else x) for y, x in sides)

    def diagonal(self, places: Collection[Place], own: bool = False) -> Tensor:
        """The diagonal of `cross` alone, of shape (*copies, n)."""
        sides = map(self.both, places)
        return _sum(_real(torch.linalg.vecdot(y, y if own else x)) for y, x in sides)


def square(params: Iterable[Tensor]) -> float:
    """Σ |w|², in double precision."""
    return sum(_dot(p, p) for p in params)


def _dot(x: Tensor, y: Tensor) -> float:
    """Re ⟨x, y⟩ in double precision, in panels."""
    total = 0.0
    for one, other in zip(x.reshape(-1).split(1 << 20), y.reshape(-1).split(1 << 20), strict=True):
        total += float(_real(torch.vdot(widened(one), widened(other))))
    return total


def _products(x: Tensor, y: Tensor) -> Tensor:
    return _real(x @ y.mH)


def _real(x: Tensor) -> Tensor:
    return x.real if x.is_complex() else x


def _sum(found: Iterator[Tensor]) -> Tensor:
    total: Tensor | None = None
    for each in found:
        total = each.double() if total is None else total + each
    assert total is not None
    return total

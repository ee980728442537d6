"""What a parameter symmetry says, without what can be done with it.

It holds no weights: which groups act on which feature spaces, how every axis of every parameter
carries them, along which additive directions parameters may slide, and which parameters the
function ignores. Elements, texts and files are made of that alone; `ParameterSymmetry` offers them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

from paramsym.algebra import AbstractMonomial, Group, Wreath
from paramsym.algebra.lattice import monomial
from paramsym.structure.axes import (
    AxisType,
    Carried,
    Piecewise,
    Product,
    Sizes,
    Sum,
    frames_of,
    nodes_of,
    parts_of,
    spaces_of,
    whole_of,
)
from paramsym.structure.checked import Checked
from paramsym.structure.clashes import Clashes, clashes
from paramsym.structure.feature import Feature, Features
from paramsym.structure.origin import Origin
from paramsym.structure.pieces import cut
from paramsym.structure.placing import misplaced
from paramsym.structure.shift import Shift
from paramsym.structure.space import Space
from paramsym.structure.walk import Blocks, Leg, Signature, blocks_of


@dataclass(frozen=True)
class SymmetryData:
    """The fields of a `ParameterSymmetry`, which says what they are, and what follows from them."""

    spaces: Mapping[str, Space]
    signature: Mapping[str, tuple[AxisType, ...]]
    shifts: tuple[Shift, ...] = ()
    dead: tuple[str, ...] = ()
    ties: Mapping[str, str] = field(default_factory=dict)
    offsets: Mapping[str, Origin] = field(default_factory=dict)
    buffers: tuple[str, ...] = ()
    reasons: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    unreached: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    random: Mapping[str, str] = field(default_factory=dict)
    inputs: Features = field(default_factory=dict)
    outputs: Features = field(default_factory=dict)
    checked: Checked = field(default=Checked(), compare=False)
    probed: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for space in self.spaces.values():
            for base in space.over:
                if base not in self.spaces:
                    where = f"spaces={{{space.name!r}: …}}"
                    raise _unknown(self.spaces, base, where, "it stands over")
                if not set(self.spaces[base].over) <= {*space.over}:
                    raise ValueError(
                        f"ParameterSymmetry(spaces={{{space.name!r}: …}}): it stands over "
                        f"{space.over}, but {base!r} has copies itself, over "
                        f"{self.spaces[base].over}; what stands over a space must stand over all "
                        f"that is below. Add them to Space({space.name!r}, over=…)."
                    )
        for name, axes in (*self.signature.items(), *self.interfaces.items()):
            for axis in axes:
                for space in spaces_of(axis):
                    if space not in self.spaces:  # types take long to print
                        where = f"signature={{{name!r}: …}}"
                        raise _unknown(self.spaces, space, where, f"'{axis}' carries")
                for item in parts_of(axis):
                    _check_factors(self.spaces, name, item)
            _check_pieces(self.sizes, name, axes)
        typed = {**self.signature, **self.interfaces}
        for space, base, name in misplaced(self.spaces, typed):
            axes = ", ".join(map(str, typed[name]))
            raise ValueError(
                f"ParameterSymmetry(signature={{{name!r}: …}}): the type ({axes}) carries "
                f"{space!r}, which has a copy for each unit of {base!r}, but no axis carries "
                f"{base!r}, so that it does not say which copy is meant. Add it to the type, or "
                f"leave it out of Space({space!r}, over=…)."
            )

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape that a parameter must have."""
        return self._shapes[name]

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        sizes = self.sizes
        return {n: tuple(axis.size(sizes) for axis in axes) for n, axes in self.signature.items()}

    def with_checked(self, checked: Checked) -> Self:
        """The same symmetry with the word of its refutation.

        The other fields fit each other as before, so that it is not asked again.
        """
        found = copy.copy(self)
        object.__setattr__(found, "checked", checked)
        return found

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The size of each space."""
        return {s.name: s.size for s in self.spaces.values()}

    def parameters_of(self, space: str) -> list[str]:
        """Parameters and buffers that move with a space."""
        return [*self._carriers.get(space, ())]

    def legs(self, space: str) -> list[Leg]:
        """Where a space acts: the legs of all blocks that carry it."""
        blocks = (block for name in self.parameters_of(space) for block in self.blocks[name])
        return [leg for block in blocks for leg in block.legs if leg.space == space]

    @cached_property
    def _carriers(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, axes in self.signature.items():
            for space in dict.fromkeys(space for axis in axes for space in spaces_of(axis)):
                found.setdefault(space, []).append(name)
        return found

    def group(self, space: str) -> Group:
        """The group of a space with all its copies.

        Gⁿ for scalars over the n units of an order, and G ≀ Sₙ over any other permuted index.
        """
        own = self.spaces[space]
        group, over = own.group, own.over
        if own.size == 1 and over and isinstance(group, AbstractMonomial):
            size = self.spaces[over[-1]].size
            group, over = monomial(size, False, group.signs, group.scales), over[:-1]
        for base in reversed(over):
            group = Wreath(group, self.spaces[base].size)
        return group

    def copies(self, space: str) -> int:
        """How many copies of its group a space has."""
        return math.prod(batch_of(self, self.spaces[space]))

    def dimension(self, space: str) -> int:
        """Continuous dimension of a space, all copies together."""
        return self.spaces[space].group.dimension * self.copies(space)

    def log_order(self) -> float:
        """log₁₀ of the number of equivalent copies by discrete moves (permutations, signs)."""
        total = sum(s.group.log_order * self.copies(s.name) for s in self.spaces.values())
        return total / math.log(10)

    @cached_property
    def orders(self) -> dict[str, tuple[str, ...]]:
        """Each space whose units are permuted, with the spaces whose copies go along.

        A space that stands over others (`Space.over`) has a copy of its group for each of their
        units, and g = (P, …) moves copy P[k] to place k before the copies act: heads carry their
        bases of query–key and value–output, the units of a layer their scales. Who permutes one of
        these spaces permutes the copies of all that are named with it; what nobody stands over, or
        what is not permuted, is left out.

            >>> symmetry.orders  # of an attention layer
            {'attn.head': ('attn.qk', 'attn.vo')}
        """
        permuted = [
            s.name
            for s in self.spaces.values()
            if isinstance(s.group, AbstractMonomial) and s.group.permutes
        ]
        above = {
            name: tuple(s.name for s in self.spaces.values() if name in s.over) for name in permuted
        }
        return {name: carried for name, carried in above.items() if carried}

    def translations(self, space: str) -> tuple[Shift, ...]:
        """The shifts that describe a space: its origin, what is unread and what is absent."""
        return tuple(shift for shift in self.shifts if shift.space == space)

    @cached_property
    def interfaces(self) -> Signature:
        """The types of `features`."""
        return {name: (feature.type,) for name, feature in self.features.items()}

    @property
    def features(self) -> dict[str, Feature]:
        """The feature axes that are free, by side and name: `input x`, `output y`."""
        sides = ("input", self.inputs), ("output", self.outputs)
        return {f"{side} {n}": found[n] for side, found in sides for n in found}

    @property
    def ends(self) -> frozenset[str]:
        """The spaces that freed inputs and outputs carry."""
        return frozenset(space for feature in self.features.values() for space in feature.spaces)

    @cached_property
    def blocks(self) -> Blocks:
        """The blocks of each tensor, with what acts on them."""
        return blocks_of(self.spaces, self.signature)

    @cached_property
    def movers(self) -> dict[str, frozenset[str]]:
        """The names of the spaces and shifts that move each parameter or buffer."""
        found = {
            name: {space for axis in axes for space in spaces_of(axis)}
            for name, axes in self.signature.items()
        }
        for shift in self.shifts:
            for name in shift.parameters:
                found.setdefault(name, set()).add(shift.name)
        return {name: frozenset(movers) for name, movers in found.items()}

    @cached_property
    def shift_of(self) -> dict[str, Shift]:
        """The shifts by name."""
        return {shift.name: shift for shift in self.shifts}

    @cached_property
    def aliases(self) -> dict[str, tuple[str, ...]]:
        """The further names of each tied parameter."""
        found: dict[str, tuple[str, ...]] = {}
        for alias, name in self.ties.items():
            found[name] = (*found.get(name, ()), alias)
        return found

    @cached_property
    def clashes(self) -> Clashes:
        """Each change of basis with the spaces that do not commute with it."""
        interfaces = blocks_of(self.spaces, self.interfaces)
        typed = {**self.signature, **self.interfaces}
        return clashes(self.spaces, typed, {**self.blocks, **interfaces})

    @property
    def frame_parameters(self) -> set[str]:
        """Gains in whose frame some axis is moved."""
        return {f.parameter for axes in self.signature.values() for a in axes for f in frames_of(a)}


def batch_of(symmetry: SymmetryData, space: Space) -> tuple[int, ...]:
    """One copy of the group per unit of the spaces below."""
    return tuple(symmetry.spaces[base].size for base in space.over)


def _unknown(spaces: Mapping[str, Space], name: str, where: str, how: str) -> ValueError:
    return ValueError(
        f"ParameterSymmetry({where}): {how} the space {name!r}, which is not among the spaces "
        f"{sorted(spaces)[:8]}. Add the space or correct the name."
    )


def _check_pieces(sizes: Sizes, name: str, axes: tuple[AxisType, ...]) -> None:
    """What is said piece by piece of another axis or factor fits that one."""
    for siblings in (axes, *(p.factors for axis in axes for p in _products(axis))):
        for k, axis in enumerate(siblings):
            for part in whole_of(axis):
                if why := _misfit(sizes, siblings, k, part):
                    raise ValueError(
                        f"ParameterSymmetry(signature={{{name!r}: …}}): in '{part}' {why}. A "
                        "type for each piece of another axis of the tensor, or of another factor "
                        "of the product, was expected, such as '{0: a | b}' beside an axis 0 of "
                        "two entries."
                    )


def _products(axis: AxisType) -> Iterator[Product]:
    return (part for part in nodes_of(axis) if isinstance(part, Product))


def _misfit(sizes: Sizes, siblings: tuple[AxisType, ...], at: int, axis: AxisType) -> str:
    """Why a type of an axis cannot stand beside the others; empty where it can."""
    if isinstance(axis, Sum) and any(isinstance(term, Piecewise) for term in axis.terms):
        return "the term of a sum is piecewise"
    if not isinstance(axis, Piecewise):
        return ""
    if axis.by == at or not axis.by < len(siblings) or isinstance(siblings[axis.by], Piecewise):
        return f"there is no other axis {axis.by} of one type"
    if len({part.size(sizes) for _, part in axis.pieces}) > 1:
        return "the pieces have different sizes"
    counts, other = [n for n, _ in axis.pieces], siblings[axis.by]
    if sum(counts) != other.size(sizes):
        return f"the pieces are not as many as the entries of axis {axis.by}, '{other}'"
    try:
        cut(other, counts, sizes)
    except ValueError as error:
        return str(error)
    return ""


def _check_factors(spaces: Mapping[str, Space], name: str, item: Carried) -> None:
    """A change of basis comes first and without powers; an order has no scales beside it."""
    bases = [s for s, _ in item.factors if not isinstance(spaces[s].group, AbstractMonomial)]
    _check_bases(spaces, name, item, bases)
    _check_order(spaces, name, item, [s for s, _ in item.factors if s not in bases])


def _check_bases(spaces: Mapping[str, Space], name: str, item: Carried, bases: list[str]) -> None:
    """At most one change of basis, in front of everything else, itself or its dual."""
    for space, power in item.factors:
        if space in bases and power not in (1, -1):
            raise ValueError(
                f"{space!r} carries {spaces[space].group}; an entrywise power is a representation "
                f"only of a monomial group. {name!r} therefore needs that axis to be "
                "monomial or fixed."
            )
    if any(space != item.factors[0][0] for space in bases):
        raise ValueError(
            f"ParameterSymmetry(signature={{{name!r}: …}}): in '{item}' the change of basis "
            f"{bases[-1]!r} ({spaces[bases[-1]].group}) comes after another factor, but at most "
            "one was expected, and first. Write it first, or give the two spaces one group."
        )


def _check_order(
    spaces: Mapping[str, Space], name: str, item: Carried, monomials: list[str]
) -> None:
    """An order of units stands alone: scales beside it are scalars over its units."""
    orders = [s for s in monomials if getattr(spaces[s].group, "permutes", False)]
    if orders and len(monomials) > 1:
        other = next((s for s in monomials if s != orders[0]), orders[0])
        raise ValueError(
            f"ParameterSymmetry(signature={{{name!r}: …}}): in '{item}' the order {orders[0]!r} "
            f"({spaces[orders[0]].group}) stands beside {other!r} ({spaces[other].group}), whose "
            "entries it would have to carry along. One scalar per unit was expected: give "
            f"{other!r} a group of size 1 over {orders[0]!r} and write '({orders[0]} {other})'."
        )

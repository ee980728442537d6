"""The type of an axis, from what its slots carry."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property

from paramsym.primitives import index as ix
from paramsym.primitives.blocks import Block, tensor_blocks
from paramsym.primitives.index import Node
from paramsym.primitives.solve import Number
from paramsym.structure.axes import (
    AxisType,
    Carried,
    Fixed,
    Frame,
    Piecewise,
    Product,
    Sum,
    piecewise,
)
from paramsym.structure.pieces import cutting
from paramsym.tracing.said import Reading
from paramsym.tracing.spaces import Spaces
from paramsym.tracing.wholes import size_on


def type_of(found: Spaces, name: str, axis: int) -> AxisType:
    """The type of an axis of a parameter; one for each piece of others where these tell it."""
    blocks = found.said.read(found.every[name])
    return _by_pieces(found, (name, axis), sorted(found.said.by.get((name, axis), ())), blocks)


def _by_pieces(
    found: Spaces, axis: tuple[str, int], by: Sequence[int], blocks: Sequence[Block]
) -> AxisType:
    """The type of an axis in some blocks, told by the pieces of some others."""
    if not by:
        return _Writer(found, axis, blocks).whole()
    first, *others = by
    mine: dict[int, list[Block]] = defaultdict(list)
    for block in blocks:
        mine[found.said.piece((axis[0], first), block)].append(block)
    types = {k: _by_pieces(found, axis, others, own) for k, own in mine.items()}
    sizes = [piece.size for piece in ix.summands(found.every[axis[0]].axes[first])]
    return piecewise(first, zip(sizes, _filled(types, len(sizes)), strict=True))


def _filled(types: Mapping[int, AxisType], count: int) -> Iterator[AxisType]:
    """The type of each piece; of one that nobody reads, that of the one before or behind."""
    last = types[min(types)]
    for k in range(count):
        yield (last := types.get(k, last))


class _Writer:
    """Writes the type of one axis in some blocks."""

    def __init__(self, found: Spaces, axis: tuple[str, int], blocks: Sequence[Block]):
        self.found, self.axis = found, axis
        self.tensor = found.every[axis[0]]
        self.readings = self._read(blocks)

    @cached_property
    def _unread(self) -> dict[Reading, list[tuple[int, tuple]]]:
        """The readings of all blocks, for those where nobody reads anything: units stay units."""
        return self._read(tensor_blocks(self.tensor, self.found.layout))

    def _read(self, blocks: Sequence[Block]) -> dict[Reading, list[tuple[int, tuple]]]:
        """By reading of the axis the piece behind it, and the slot, of each block."""
        readings: dict[Reading, list[tuple[int, tuple]]] = defaultdict(list)
        for block in blocks:
            for at, origin, _, stride in block.readings():
                if at == self.axis[1]:
                    piece = self.found.said.behind(self.axis, (origin, stride), block)
                    readings[origin, stride].append((piece, (*block.key, stride)))
        return readings

    def whole(self) -> AxisType:
        """The type of the axis, with the sizes of wholes that it says."""
        node, sizes = self.tensor.axes[self.axis[1]], self._sizes()
        whole = all(len(powers) == 1 for _, powers in sizes)
        whole = whole and not (sizes and self.found.said.is_cut(self.axis))
        pieces = [node] if whole else ix.summands(node)
        terms, position = [], 0
        for k, piece in enumerate(pieces):
            made = self._subtree([piece], position, 1)
            own = [(name, powers[k if len(powers) > 1 else 0]) for name, powers in sizes]
            scalars = tuple((name, Fraction(power)) for name, power in own if power)
            if scalars:
                inner = () if made == Fixed(1) else _factors(made)
                made = Product((Carried(scalars), *inner)) if inner else Carried(scalars)
            terms.append(made)
            position += piece.size
        return _direct_sum(terms) if len(terms) > 1 else terms[0]

    def _sizes(self) -> list[tuple[str, tuple[Number, ...]]]:
        """The sizes of wholes that an axis says, with their powers: one, or one for each piece."""
        found = [
            (c.name, size_on(c.exponents, self.tensor, self.found.layout))
            for c in self.found.carriers
            if c.leaf is None
        ]
        return [(name, at[1]) for name, at in found if at is not None and at[0] == self.axis[1]]

    def _subtree(self, parts: list[Node], start: int, size: int) -> AxisType:
        """The type of a product of nodes that starts at a position; `size` entries follow each.

        A sum at the head is distributed, as the pieces may carry different things.
        """
        parts = [p for part in parts for p in ix.factors(part)]
        if not parts:
            return Fixed(1)
        head, rest = parts[0], parts[1:]
        inner = math.prod(p.size for p in rest) * size
        if head.kind == "sum":
            terms, position = [], start
            for term in ix.terms(head):
                terms.append(self._subtree([term, *rest], position, size))
                position += term.size * inner
            return _direct_sum(terms)
        made = self._head(head, rest, (start, inner * self.tensor.strides[self.axis[1]]))
        if not rest:
            return made
        other = self._subtree(rest, start, size)
        if isinstance(made, Fixed) and isinstance(other, Fixed):
            return Fixed(made.count * other.count)
        if isinstance(made, Piecewise):
            return Product((made, other))
        return Product((*_factors(made), *_factors(other)))

    def _head(self, head: Node, rest: list[Node], reading: Reading) -> AxisType:
        """The type of a leaf; one for each piece of what stands behind it where these tell it."""
        slots = self.readings.get(reading) or self._unread[reading]
        types = {piece: self._leaf_type(slot, head) for piece, slot in slots}
        if len({*types.values()}) == 1:
            return next(iter(types.values()))
        size = math.prod(p.size for p in rest[1:])
        counts = [term.size * size for term in ix.terms(rest[0])]
        return piecewise(1, zip(counts, _filled(types, len(counts)), strict=True))

    def _leaf_type(self, slot: tuple, leaf: Node) -> AxisType:
        """A change of basis, then the units, then the scalars that stand over them."""
        factors: list[tuple[str, Fraction]] = []
        frame: tuple[Frame, ...] = ()
        if slot in self.found.class_of:
            carrier, parity, key = self.found.class_of[slot]
            factors.append((carrier.name, Fraction(parity)))
            frame = tuple(
                Frame(name, offset, n)
                for (name, offset), n in key
                if name not in self.found.build.graph.virtual  # a number, which is 1
            )
        carried = self.found.by_slot.get(slot, [])
        scales = [(c.name, Fraction(power)) for c, power in carried]
        units = self.found.units.of(leaf, slot)
        if units is None or any(c is units for c, _ in carried):
            factors += scales
            return Carried(tuple(factors), frame) if factors else Fixed(leaf.size)
        item = Carried((*factors, (units.name, Fraction(1))), frame)
        return Product((item, Carried(tuple(scales)))) if scales else item


def _direct_sum(terms: list[AxisType]) -> AxisType:
    """The sum of some types, without brackets; fixed where all of them are."""
    fixed = [t for t in terms if isinstance(t, Fixed)]
    if len(fixed) == len(terms):
        return Fixed(sum(t.count for t in fixed))
    return Sum(tuple(x for t in terms for x in (t.terms if isinstance(t, Sum) else (t,))))


def _factors(axis: AxisType) -> tuple[AxisType, ...]:
    """The factors of a product; one whose factors count each other's pieces stays as it is."""
    return axis.factors if isinstance(axis, Product) and not cutting(axis.factors) else (axis,)

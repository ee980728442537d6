"""Which spaces of a symmetry do not commute with each other.

An element moves an axis of type B[f]⊙d by x ↦ d f g f⁻¹ x: the change of basis g of B in the frame
f of some gains first, then a diagonal d. Elements compose value by value only where the frame
moves as d does, because then the second move d' (d f) g' (d f)⁻¹ d f g f⁻¹ is d' d f g' g f⁻¹.
Everywhere else the two stay letters of a word.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from fractions import Fraction

from paramsym.algebra import AbstractMonomial
from paramsym.structure.axes import powers_of
from paramsym.structure.space import Space
from paramsym.structure.walk import Block, Blocks, Leg, Signature

Clashes = Mapping[str, frozenset[str]]


def clashes(spaces: Mapping[str, Space], signature: Signature, blocks: Blocks) -> Clashes:
    """Each change of basis with the spaces that do not commute with it."""
    found: dict[str, set[str]] = defaultdict(set)
    for block in (block for made in blocks.values() for block in made):
        for leg in block.legs:
            if leg.frame or not isinstance(spaces[leg.space].group, AbstractMonomial):
                found[leg.space].update(_others(spaces, signature, block, leg))
    return {basis: frozenset(others) for basis, others in found.items() if others}


def _others(
    spaces: Mapping[str, Space], signature: Signature, block: Block, basis: Leg
) -> Iterator[str]:
    """What does not commute with a change of basis, or an order in a frame, on one axis."""
    for name, charge in _charges(signature, block, basis).items():
        if charge or getattr(spaces[name].group, "permutes", False):
            yield name
    # one scalar for each unit of the axis is a diagonal there as well
    yield from (leg.space for leg in block.legs if basis.axis in leg.copies)


def _charges(signature: Signature, block: Block, basis: Leg) -> dict[str, Fraction]:
    """By how much the diagonal of an axis differs from the move of its frame, space by space."""
    charges: dict[str, Fraction] = defaultdict(Fraction)
    for leg in block.legs:
        if leg.axis == basis.axis and leg is not basis:
            charges[leg.space] += leg.power
    for frame in basis.frame:
        exponent = Fraction(frame.exponent) * (-1 if basis.is_dual else 1)
        for space, power in (
            p for axis in signature.get(frame.parameter, ()) for p in powers_of(axis)
        ):
            charges[space] -= exponent * power
    return charges

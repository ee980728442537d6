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
from paramsym.structure.axes import AxisType, Carried, Product, Sum, powers_of
from paramsym.structure.space import Space
from paramsym.structure.walk import Signature

Clashes = Mapping[str, frozenset[str]]


def clashes(spaces: Mapping[str, Space], signature: Signature) -> Clashes:
    """Each change of basis with the spaces that do not commute with it."""
    found: dict[str, set[str]] = defaultdict(set)
    for axes in signature.values():
        for axis in axes:
            for item, beside in _bases(spaces, axis, ()):
                basis = item.factors[0][0]
                charges = _charges(signature, item)
                found[basis].update(
                    other
                    for other, charge in charges.items()
                    if charge or getattr(spaces[other].group, "permutes", False)
                )
                if len(item.factors) > 1:
                    found[basis].update(beside)
    return {basis: frozenset(others) for basis, others in found.items() if others}


def _bases(
    spaces: Mapping[str, Space], axis: AxisType, beside: tuple[str, ...]
) -> Iterator[tuple[Carried, tuple[str, ...]]]:
    """The changes of basis of an axis, orders in a frame among them, and the spaces of one
    coordinate that stand beside them."""
    if isinstance(axis, Carried):
        if axis.frame or not isinstance(spaces[axis.factors[0][0]].group, AbstractMonomial):
            yield axis, beside
    elif isinstance(axis, Sum):
        for term in axis.terms:
            yield from _bases(spaces, term, beside)
    elif isinstance(axis, Product):
        single = [s for s, _ in powers_of(axis) if spaces[s].size == 1]
        for factor in axis.factors:
            yield from _bases(spaces, factor, (*beside, *single))


def _charges(signature: Signature, item: Carried) -> dict[str, Fraction]:
    """By how much the diagonal of an axis differs from the move of its frame, space by space."""
    charges: dict[str, Fraction] = defaultdict(Fraction)
    for space, power in item.factors[1:]:
        charges[space] += power
    parity = item.factors[0][1]
    for frame in item.frame:
        for axis in signature.get(frame.parameter, ()):
            for space, power in powers_of(axis):
                charges[space] -= parity * Fraction(frame.exponent) * power
    return charges

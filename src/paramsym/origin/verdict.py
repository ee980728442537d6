"""The rule: what is said of an aligned pair beside pairs that are unrelated.

It was chosen on pairs whose origin is known and tried on others; docs/findings-origin.md has both.
Its parts that could call a stranger a copy are the strict ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean
from typing import NamedTuple

from paramsym.geometry.alignment import Aligned
from paramsym.origin.comparison import ComparedTensor, ComparedUnits, Comparison, Kind, Null
from paramsym.origin.partners import Cell, Partners
from paramsym.structure.symmetry import ParameterSymmetry

BASE = 0.25  # share of clear partners that independent networks may have
MOST = 0.5  # a derived network has at least that share somewhere
CHANCE = 1e-4  # of so many clear partners by chance, over all that is read
NUMBERS = 16  # by which units are compared, at least: along few, chance parts neighbours clearly
FAR = 0.5  # of the least unrelated distance: nearer networks are not called unrelated
NO_FARTHER = 0.9  # of it: independent checkpoints that are no farther than that
NEAR = 0.6  # of it, tensor by tensor: what has no units was taken over if it is nearer
STILL = 0.1  # what nothing acts on looks alike in unrelated pairs too: nearer is taken over


class Measured(NamedTuple):
    """A pair: how near it can be brought, and how many units have a clear partner then."""

    aligned: Aligned
    partners: Mapping[Cell, Partners]


Evidence = Mapping[Cell, ComparedUnits]


def judged(
    symmetry: ParameterSymmetry, pair: Measured, drawn: list[Measured], given: list[Measured]
) -> Comparison:
    """The comparison that a pair makes beside unrelated ones.

    Args:
        symmetry: of all.
        pair: the two checkpoints, which are not on one orbit.
        drawn: pairs of independent draws.
        given: pairs with checkpoints that are known to be independent.
    """
    aligned = pair.aligned
    unrelated = [*drawn, *given]
    null = Null(tuple(each.aligned.distance for each in unrelated))
    evidence = {cell: _units(found, cell, unrelated) for cell, found in pair.partners.items()}
    least = min((each.aligned.distance for each in given), default=None)
    kind, reason = _verdict(evidence, aligned.distance, null, least)
    tensors = {
        name: _tensor(symmetry, name, aligned.distances[name], unrelated, evidence, kind)
        for name in aligned.distances
    }
    units = {space: found for (space, tensor), found in evidence.items() if not tensor}
    return Comparison(
        kind, reason, aligned.distance, null, tensors, units, aligned.element, aligned.held
    )


def _units(own: Partners, cell: Cell, unrelated: list[Measured]) -> ComparedUnits:
    base = max([BASE, *(each.partners[cell].share for each in unrelated)])
    decides = own.numbers >= NUMBERS and base < MOST and base**own.count < CHANCE
    return ComparedUnits(own.count, own.clear, base, own.chance(base), decides)


def _verdict(
    evidence: Evidence, distance: float, null: Null, given: float | None
) -> tuple[Kind, str]:
    read = {cell: units for cell, units in evidence.items() if units.decides}
    if read:
        return _by_partners(read, distance, null)
    if any(units.base >= MOST for units in evidence.values()):
        why = "half and more of the units of unrelated networks have clear partners too"
        return Kind.UNDECIDED, why
    return _by_distance(distance, given)


def _by_partners(read: Evidence, distance: float, null: Null) -> tuple[Kind, str]:
    """Where some units count: a half of them and no chance, or no more than strangers have."""
    most = {cell: units for cell, units in read.items() if units.clear >= MOST * units.count}
    (space, tensor), best = min(
        (most or read).items(), key=lambda item: (item[1].chance, -item[1].count, item[0][1])
    )
    by = f" in {tensor}" if tensor else ""
    says = f"{best.clear} of {best.count} units of {space} have a clear partner{by}"
    if most and best.chance * len(read) < CHANCE:
        return Kind.DERIVED, f"{says}, and of unrelated ones at most {best.base:.0%} would"
    if any(units.clear > units.base * units.count for units in read.values()):
        why = "more than unrelated networks and fewer than derived ones have"
    elif distance < FAR * null.least:
        why = "but the weights are nearer than unrelated ones"
    else:
        return Kind.UNRELATED, f"{says}, no more than unrelated networks have"
    return Kind.UNDECIDED, f"{says}, {why}"


def _by_distance(distance: float, given: float | None) -> tuple[Kind, str]:
    """Where no space has enough units to count: beside independent checkpoints, or not at all."""
    why = "no space has units enough to count partners"
    if given is not None and distance < FAR * given:
        return Kind.DERIVED, f"{why}, and independent checkpoints are at least twice as far"
    if given is not None and distance >= NO_FARTHER * given:
        return Kind.UNRELATED, f"{why}, and independent checkpoints are no farther"
    return Kind.UNDECIDED, f"{why}; pass independent checkpoints to compare with"


def _tensor(
    symmetry: ParameterSymmetry, name: str, distance: float, unrelated: list[Measured],
    evidence: Evidence, kind: Kind,
) -> ComparedTensor:  # fmt: skip
    others = [each.aligned.distances[name] for each in unrelated]
    moves = any(block.legs for block in symmetry.blocks[name])
    cells = [u for (_, n), u in evidence.items() if n == name and u.count]
    size = len(symmetry.signature[name])
    units = max(cells, key=lambda u: u.clear / u.count, default=None) if size > 1 else None
    if units is not None:
        near = units.clear >= MOST * units.count
    else:
        near = distance < (NEAR * min(others) if moves else STILL)
    taken = near and kind is Kind.DERIVED
    return ComparedTensor(distance, mean(others) if moves else None, taken, units)

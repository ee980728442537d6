"""Sizes that no axis says: a number without axes against all of a tensor.

In x + g·f(x) the number g may grow as f's last weight shrinks. An action is written axis by axis,
and g has none. So the scale c = 1 + δ is written as what it adds: g ↦ g + δ g, and
W ↦ W − δ W / (1 + δ), which is exact for every δ but −1. That is W/c for negative c as well, so
that only scales are written which may be negative, and such as a tensor has to the power 1 or −1.
"""

from __future__ import annotations

from collections.abc import Iterator

from paramsym.primitives.blocks import Block
from paramsym.primitives.sites import Unknown
from paramsym.primitives.solve import Number, Row
from paramsym.primitives.words import Speller, fresh, parameter_word
from paramsym.structure.shift import Shift, Term
from paramsym.tracing.spaces import Spaces


def sizes(found: Spaces) -> Iterator[tuple[tuple, Shift]]:
    """The scales of wholes that no axis says, as shifts, with what they start from.

    Each starts from a tensor that no later one moves: the one with the fewest axes, so that numbers
    come first.
    """
    known = [row for row in found.freedom.wholes() if {*row.values()} <= {1, -1}]
    led: dict[Unknown, Row] = {}
    for generator in found.uneven:
        if generator.component or not (generator.odd and generator.exact):
            continue
        powers = _simplest(generator.exponents, known)
        for first, row in led.items():  # in order, as a later row lacks what leads earlier ones
            powers = _sum(powers, row, -powers.get(first, 0) * row[first])
        plain = all(_number(found, u) is not None for u in powers)
        if powers and plain and {*powers.values()} <= {1, -1}:
            first = min(powers, key=lambda u: (found.blocks[u[:2]].tensor.ndim, u))
            led[first] = powers
            yield ("size", *powers), _written(found, first, powers)


def _simplest(powers: Row, known: list[Row]) -> Row:
    """The same scale up to known ones, on as few blocks as one finds by taking these away."""
    while True:
        others = [_sum(powers, row, sign) for row in known for sign in (1, -1)]
        best = min(others, key=len, default=powers)
        if len(best) >= len(powers):
            return powers
        powers = best


def _sum(one: Row, other: Row, factor: Number) -> Row:
    found = {u: one.get(u, 0) + factor * other.get(u, 0) for u in {**one, **other}}
    return {u: power for u, power in found.items() if power}


def _written(found: Spaces, first: Unknown, powers: Row) -> Shift:
    """The finite motion; what has the power of the first tensor grows by δ."""
    letter = fresh()
    spell = Speller([letter])
    terms = []
    for unknown in sorted(powers, key=lambda u: (u != first, u)):
        name, block = found.names[unknown[0]][0], found.blocks[unknown[:2]]
        grows = powers[unknown] == powers[first]
        terms.append(_term(spell.apart(), name, block, _number(found, unknown) or 0.0, grows))
    name, *others = dict.fromkeys(term.target.parameter for term in terms)
    more = " …" if len(others) > 3 else ""
    family = f"its size against that of {', '.join(others[:3])}{more}"
    return Shift(f"{name}.size", family, spell.letter(letter), (1,), tuple(terms), ())


def _number(found: Spaces, unknown: Unknown) -> float | None:
    """What the model adds to a parameter that it reads as p + constant; None where that is no one
    number, and for a buffer."""
    name = found.names[unknown[0]][0]
    _, origin = found.build.shifted.get(name, (None, 0.0))
    if isinstance(origin, float | int) and name in found.build.graph.parameters:
        return origin
    return None


def _term(spell: Speller, name: str, block: Block, number: float, grows: bool) -> Term:
    """A block of a parameter, with a number added, grows by δ times itself, or shrinks by
    δ / (1 + δ) times itself."""
    (word,) = parameter_word(block, name, 1.0, number).factors
    window = spell.window(name, word.start, word.slots, word.letters)
    return Term(window, 1.0 if grows else -1.0, (spell.factor(word),), divided=not grows)

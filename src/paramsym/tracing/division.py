"""Division of words: whether one effect is a multiple of another, and what is left of it.

An effect is a sum of monomials, each a word with the block where it stopped. A monomial p is a
multiple of q if p = prefix · q once δ of q is replaced by what the prefix and δ of p carry.
"""

from __future__ import annotations

from paramsym.primitives.directions import Absence
from paramsym.primitives.joint import Key
from paramsym.primitives.words import Change, Letter, Word

Monomial = tuple[Key, Change]  # where a change stopped, and what it is there
Effect = dict[tuple, Monomial]  # by canonical form

CANCELLED = 1e-12  # a sum below this share of its terms is rounding; nothing is small alone


def divide(
    q: Change, p: Change, own: frozenset[Letter], theirs: frozenset[Letter]
) -> tuple[dict[Letter, Letter], tuple[Word, ...]] | None:
    """p = prefix · q with δ of q replaced: the letters of δ in terms of p's, and the prefix.

    Along letters that are not among these δ of q is constant: data alone vary with them in p.

    The factors of q are among those of p, and both vary alike; what else p has (its δ, which has
    the letters `theirs`, and the prefix) must be carried by δ of q, which has the letters `own`.
    """
    count = len(q.factors)
    arranged = _with_last(p, q)
    if arranged is None or _form(q, count) != _form(arranged, count):
        return None
    p = arranged
    mine, yours = _places(q, count), _places(p, count)
    if not yours.keys() <= mine.keys():
        return None
    put = {mine[place]: letter for place, letter in yours.items()}
    pairs = {(mine[place], letter) for place, letter in yours.items()}
    if not len(pairs) == len(put) == len({*put.values()}):
        return None  # two letters of one monomial would be one letter of the other
    loose = {mine[place] for place in mine.keys() - yours.keys()}
    if not loose <= own - put.keys():
        return None  # p is constant where q varies with a letter that is bound
    prefix = p.factors[: len(p.factors) - count]
    carried = theirs | Change(1.0, {}, prefix).letters()
    if carried & {put[letter] for letter in put.keys() - own}:
        return None  # a letter that δ lacks would have to carry something
    return {x: y for x, y in put.items() if x in own and y in carried}, prefix


def _with_last(p: Change, q: Change) -> Change | None:
    """p with factors that look like those of q at the end, as they commute; None if one is missing.

    Of several that look alike the last ones are taken.
    """
    rest, last = list(p.factors), []
    for wanted in reversed(q.factors):
        form = wanted.lettered()
        at = next((k for k in reversed(range(len(rest)))
                   if rest[k].lettered() == form), None)  # fmt: skip
        if at is None:
            return None
        last.append(rest.pop(at))
    return p.with_factors((*rest, *reversed(last)))


def _form(change: Change, count: int) -> tuple:
    """What the last factors and the atom of a monomial are, whatever their letters."""
    factors = change.factors[len(change.factors) - count :]
    return tuple(f.lettered() for f in factors), change.atom and change.atom.key


def _places(change: Change, count: int) -> dict[tuple, Letter]:
    """The letter at every place of the last factors, of what is moved, and of the atom."""
    factors = change.factors[len(change.factors) - count :]
    inside = {(k, n): x for k, f in enumerate(factors) for n, x in enumerate(f.letters)}
    atom = change.atom.at if change.atom else ()
    moved = {("at", s): x for s, x in change.at.items()}
    return inside | moved | {("atom", s): x for s, x in atom}


def canonical(sink: Key, change: Change, own: frozenset[Letter]) -> tuple:
    """A form that two monomials share if they are equal up to the names of letters.

    Factors commute: they are listed by their distance from δ, whose letters are `own`.
    """
    names: dict[Letter, int] = {}

    def name(letter: Letter) -> int:
        return letter if letter in own else -1 - names.setdefault(letter, len(names))

    at = tuple((s, name(x)) for s, x in sorted(change.at.items()))
    factors = tuple(
        f.renamed({x: name(x) for x in f.letters}) for f in _outwards(change, own)
    )  # fmt: skip
    atom = change.atom and (change.atom.key, tuple((s, name(x)) for s, x in change.atom.at))
    return sink, at, factors, atom


def _outwards(change: Change, own: frozenset[Letter]) -> list[Word]:
    """The factors by how many of them lie between them and δ, and then by their names."""
    if len(change.factors) < 2:
        return list(change.factors)
    rest, met, found = list(change.factors), set(own), []
    while rest:
        near = [f for f in rest if met.intersection(f.letters)] or rest
        near.sort(key=lambda f: (f.parameter, f.start, f.slots, f.power, f.offset))
        met.update(x for f in near for x in f.letters)
        rest = [f for f in rest if f not in near]
        found += near
    return found


def gathered(found: list[Monomial], own: frozenset[Letter]) -> Effect:
    """Equal monomials added up; those that cancel, next to what they were, disappear."""
    effect: Effect = {}
    sizes: dict[tuple, float] = {}
    for sink, change in found:
        form = canonical(sink, change, own)
        before = effect[form][1].coefficient if form in effect else 0.0
        total = Change(before + change.coefficient, change.at, change.factors, change.atom)
        effect[form] = (sink, total)
        sizes[form] = sizes.get(form, 0.0) + abs(change.coefficient)
    return {f: m for f, m in effect.items() if abs(m[1].coefficient) > CANCELLED * sizes[f]}


def same_offset(x: Absence, y: Absence) -> bool:
    """Whether κ is the same sum of words."""

    def forms(absence: Absence) -> list[tuple]:
        made = []
        for o in absence.offset:
            change = Change(o.weight, {}, o.factors)
            made.append((o.weight, o.frame, *canonical((0, 0), change, frozenset())[2:]))
        return sorted(made, key=repr)

    return forms(x) == forms(y)

"""Division of words: whether one effect is a multiple of another, and what is left of it.

An effect is a sum of monomials, each a word with the block where it stopped. A monomial p is a
multiple of q if p = prefix · q once δ of q is replaced by what the prefix and δ of p carry.
"""

from __future__ import annotations

from dataclasses import replace

from paramsym.tracing.joint import Key
from paramsym.tracing.words import Change, Letter, Word

Monomial = tuple[Key, Change]  # where a change stopped, and what it is there
Effect = dict[tuple, Monomial]  # by canonical form


def divide(
    q: Change, p: Change, own: frozenset[Letter], theirs: frozenset[Letter]
) -> tuple[dict[Letter, Letter], tuple[Word, ...]] | None:
    """p = prefix · q with δ of q replaced: the letters of δ in terms of p's, and the prefix.

    The factors of q are the last ones of p, and both vary alike; what else p has (its δ, which has
    the letters `theirs`, and the prefix) must be carried by δ of q, which has the letters `own`.
    """
    count = len(p.factors) - len(q.factors)
    if count < 0 or (q.atom and q.atom.key) != (p.atom and p.atom.key):
        return None
    prefix = p.factors[:count]
    pairs = _matched(q, p, count, own)
    put = {} if pairs is None else dict(pairs)
    if pairs is None or any(put[mine] != yours for mine, yours in pairs):
        return None
    carried = theirs | {x for word in prefix for x in word.letters}
    loose = {letter for s, letter in q.at.items() if s not in p.at}
    foreign = {yours for mine, yours in put.items() if mine not in own}
    if len({*put.values()}) < len(put) or foreign & carried or loose & put.keys():
        return None  # two letters of δ would be one, or one that δ lacks would have to carry it
    return {x: y for x, y in put.items() if x in own}, prefix


def _matched(
    q: Change, p: Change, count: int, own: frozenset[Letter]
) -> list[tuple[Letter, Letter]] | None:
    """Letters of q with those of p at the same places, if both have the same form."""
    pairs: list[tuple[Letter, Letter]] = []
    for a, b in zip(q.factors, p.factors[count:], strict=True):
        if replace(a, letters=()) != replace(b, letters=()):
            return None
        pairs += zip(a.letters, b.letters, strict=True)
    sides = [(q.at, p.at)]
    if q.atom and p.atom:
        sides.append((dict(q.atom.at), dict(p.atom.at)))
    for mine, yours in sides:
        free = all(mine[s] in own for s in mine.keys() - yours.keys())
        if not free or not yours.keys() <= mine.keys():
            return None
        pairs += [(mine[s], letter) for s, letter in yours.items()]
    return pairs


def canonical(sink: Key, change: Change, own: frozenset[Letter]) -> tuple:
    """A form that two monomials share if they are equal up to the names of letters."""
    names: dict[Letter, int] = {}

    def name(letter: Letter) -> int:
        return letter if letter in own else -1 - names.setdefault(letter, len(names))

    at = tuple((s, name(x)) for s, x in sorted(change.at.items()))
    factors = tuple(
        replace(f, letters=tuple(name(x) for x in f.letters)) for f in change.factors
    )  # fmt: skip
    atom = change.atom and (change.atom.key, tuple((s, name(x)) for s, x in change.atom.at))
    return sink, at, factors, atom


def gathered(found: list[Monomial], own: frozenset[Letter]) -> Effect:
    """Equal monomials added up; those that cancel disappear."""
    effect: Effect = {}
    for sink, change in found:
        form = canonical(sink, change, own)
        before = effect[form][1].coefficient if form in effect else 0.0
        effect[form] = (sink, replace(change, coefficient=before + change.coefficient))
    return {form: m for form, m in effect.items() if abs(m[1].coefficient) > 1e-12}

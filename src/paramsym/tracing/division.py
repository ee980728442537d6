"""Division of words: whether one effect is a multiple of another, and what is left of it.

An effect is a sum of monomials, each a word with the block where it stopped. A monomial p is a
multiple of q if p = prefix · q once δ of q is replaced by what the prefix and δ of p carry.
"""

from __future__ import annotations

from dataclasses import replace

from paramsym.primitives.joint import Key
from paramsym.primitives.words import Change, Letter, Word

Monomial = tuple[Key, Change]  # where a change stopped, and what it is there
Effect = dict[tuple, Monomial]  # by canonical form

CANCELLED = 1e-12  # a sum below this share of its terms is rounding; nothing is small alone


def divide(
    q: Change, p: Change, own: frozenset[Letter], theirs: frozenset[Letter]
) -> tuple[dict[Letter, Letter], tuple[Word, ...]] | None:
    """p = prefix · q with δ of q replaced: the letters of δ in terms of p's, and the prefix.

    The factors of q are the last ones of p, and both vary alike; what else p has (its δ, which has
    the letters `theirs`, and the prefix) must be carried by δ of q, which has the letters `own`.
    """
    count = len(q.factors)
    if _form(q, count) != _form(p, count):
        return None
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
    return {x: y for x, y in put.items() if x in own}, prefix


def _form(change: Change, count: int) -> tuple:
    """What the last factors and the atom of a monomial are, whatever their letters."""
    factors = change.factors[len(change.factors) - count :]
    return tuple(replace(f, letters=()) for f in factors), change.atom and change.atom.key


def _places(change: Change, count: int) -> dict[tuple, Letter]:
    """The letter at every place of the last factors, of what is moved, and of the atom."""
    factors = change.factors[len(change.factors) - count :]
    inside = {(k, n): x for k, f in enumerate(factors) for n, x in enumerate(f.letters)}
    atom = change.atom.at if change.atom else ()
    moved = {("at", s): x for s, x in change.at.items()}
    return inside | moved | {("atom", s): x for s, x in atom}


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
    """Equal monomials added up; those that cancel, next to what they were, disappear."""
    effect: Effect = {}
    sizes: dict[tuple, float] = {}
    for sink, change in found:
        form = canonical(sink, change, own)
        before = effect[form][1].coefficient if form in effect else 0.0
        effect[form] = (sink, replace(change, coefficient=before + change.coefficient))
        sizes[form] = sizes.get(form, 0.0) + abs(change.coefficient)
    return {f: m for f, m in effect.items() if abs(m[1].coefficient) > CANCELLED * sizes[f]}

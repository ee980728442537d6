"""κ, the known number that a weight receives along w, and the bias of a family that adds to it.

W absorbs δ by (δ/κ) ⊗ w. Where the family moves a bias in κ by −κ s, written s for δ/κ, κ becomes
κ / (1 + Σ w·s), if that motion is divided by the same; so W moves by s ⊗ w as it was.
"""

from __future__ import annotations

from paramsym.primitives.words import Offset, Word
from paramsym.tracing.absorbing import Absorption
from paramsym.tracing.translations import Family


def movers(family: Family, kappa: tuple[Offset, ...]) -> list[Absorption]:
    """What adds to κ: the source, or a bias that absorbs."""
    source = family.source
    inside = {name for o in kappa for name in parameters_of(o.factors)}
    leading = Absorption(source, 1.0, (), {x: x for x in source.letters.values()})
    return [a for a in (leading, *family.absorbed) if a.source.absence is None
            and a.source.name in inside]  # fmt: skip


def leads(family: Family, movers: list[Absorption]) -> bool:
    """Whether a plain source leads, and nothing but it adds to κ."""
    alone = all(mover.source is family.source for mover in movers)
    return family.source.absence is None and alone


def is_followed(mover: Absorption, kappa: tuple[Offset, ...]) -> bool:
    """Whether κ contains what moves once, as w·b: then it changes by Σ w·δ."""
    source = mover.source
    inside = [o for o in kappa if source.name in parameters_of(o.factors)]
    plain = len(inside) == 1 and inside[0].weight == mover.ratio == 1.0
    if not plain or len(source.letters) != 1 or source.flat or source.kernel is not None:
        return False
    first, *rest = inside[0].factors
    held = any(f.parameter == source.name for f in rest)
    whole = first.parameter == source.name and first.start == source.block.start
    return not held and whole and first.power == 1


def added(mover: Absorption, kappa: tuple[Offset, ...]) -> tuple[Word, ...]:
    """The factors of Σ w·δ, by which κ changes in relation to itself."""
    (offset,) = (o for o in kappa if mover.source.name in parameters_of(o.factors))
    (own,) = mover.source.letters.values()
    letter = mover.letters.get(own, offset.letter)
    words = tuple(w.renamed({offset.letter: letter}) for w in offset.factors[1:])
    return *words, *mover.factors


def parameters_of(words: tuple[Word, ...]) -> set[str]:
    """The parameters that words are read from."""
    found = {w.parameter for w in words}
    return found.union(*(c.parameters for w in words for c in w.kernel))

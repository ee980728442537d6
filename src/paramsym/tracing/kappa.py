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
    """Whether a plain source leads what weights absorb along w, and nothing but it adds to κ."""
    turned = any(a.source.absence for a in family.absorbed)
    alone = all(mover.source is family.source for mover in movers)
    return turned and alone and family.source.absence is None


def added(mover: Absorption, kappa: tuple[Offset, ...]) -> tuple[Word, ...] | None:
    """The factors of Σ w·δ, by which κ changes in relation to itself, where κ contains what moves
    once, as w·b; None where it contains it otherwise."""
    source = mover.source
    inside = [o for o in kappa if source.name in parameters_of(o.factors)]
    plain = len(inside) == 1 and inside[0].weight == mover.ratio == 1.0
    if not plain or len(source.letters) != 1 or source.flat or source.kernel is not None:
        return None
    first, *rest = inside[0].factors
    held = any(f.parameter == source.name for f in rest)
    whole = first.parameter == source.name and first.start == source.block.start
    if held or not whole or first.power != 1:
        return None
    (own,) = source.letters.values()
    letter = mover.letters.get(own, inside[0].letter)
    return *(w.renamed({inside[0].letter: letter}) for w in rest), *mover.factors


def parameters_of(words: tuple[Word, ...]) -> set[str]:
    """The parameters that words are read from."""
    found = {w.parameter for w in words}
    return found.union(*(c.parameters for w in words for c in w.kernel))

"""One step of division: a source takes back the leading part of what another one does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from paramsym.primitives.gains import Power
from paramsym.primitives.joint import Key
from paramsym.primitives.tensor import Tensor
from paramsym.primitives.words import Change, Letter, Word
from paramsym.tracing.division import CANCELLED, Effect, canonical, divide
from paramsym.tracing.sources import Source

Basis = dict[Key, list[tuple[Source, Change]]]  # sources with leading monomials, by its sink


@dataclass(frozen=True, eq=False)
class Absorption:
    """δ of `source` = −ratio · δ · factors, with its letters replaced."""

    source: Source
    ratio: float
    factors: tuple[Word, ...]
    letters: Mapping[Letter, Letter]


def subtract(
    source: Source,
    rest: Effect,
    p: Change,
    q: Source,
    lead: Change,
    parameters: Mapping[str, Tensor],
) -> tuple[Absorption, Effect] | None:
    """Subtract the multiple of q's effect that takes the leading monomial away."""
    match = divide(lead, p, q.own, source.own) or _by_gains(lead, p, q, source, parameters)
    if match is None:
        return None
    put, prefix = match
    carried = source.name, *(word.parameter for word in prefix)
    if not _is_complex(q.name, parameters) and any(_is_complex(n, parameters) for n in carried):
        return None  # a real parameter cannot carry it
    if not _fit(q, source, put):
        return None
    ratio = p.coefficient / q.replaced(lead, put, prefix).coefficient
    after = dict(rest)
    for at, m in q.effect.values():
        product = q.replaced(m, put, prefix)
        form = canonical(at, product, source.own)
        before = after[form][1].coefficient if form in after else 0.0
        taken = ratio * product.coefficient
        left = before - taken
        if abs(left) <= CANCELLED * (abs(before) + abs(taken)):
            after.pop(form, None)
        else:
            after[form] = (at, replace(product, coefficient=left))
    return Absorption(q, ratio, prefix, put), after


def _is_complex(name: str, parameters: Mapping[str, Tensor]) -> bool:
    value = parameters[name].value if name in parameters else None
    return value is not None and value.dtype.is_complex


def _by_gains(
    lead: Change, p: Change, q: Source, source: Source, parameters: Mapping[str, Tensor]
) -> tuple[dict[Letter, Letter], tuple[Word, ...]] | None:
    """The same where gains stand before δ of q that are not in p: δ is divided by them."""
    gains = [f for f in lead.factors if _is_gain(f, q.own, parameters)]
    if not gains:
        return None
    others = tuple(f for f in lead.factors if f not in gains)
    match = divide(replace(lead, factors=others), p, q.own, source.own)
    if match is None or not all(put in match[0] for f in gains for put in f.letters):
        return None
    put, prefix = match
    inverse = (f.renamed(put).inverse() for f in gains)
    return put, (*prefix, *inverse)


def _is_gain(word: Word, own: frozenset[Letter], parameters: Mapping[str, Tensor]) -> bool:
    """Whether a factor multiplies each entry of δ by a number that is not zero."""
    tensor = parameters.get(word.parameter)
    if word.kernel or tensor is None or tensor.integral or not own.issuperset(word.letters):
        return False
    is_vector = sum(n > 1 for n in tensor.shape) < 2
    return is_vector and not Power(tensor, word.power, word.offset).vanishes


def _fit(q: Source, source: Source, put: Mapping[Letter, Letter]) -> bool:
    """Whether single entries of q meet the same entries of the source, wherever q shows them."""
    if not q.pinned:
        return True
    shown = {x for _, m in q.effect.values() for x in (*m.at.values(), *m.letters())}
    known = source.positions
    return all(
        x in put and known.get(put[x]) == position
        for x, position in q.positions.items()
        if x in shown
    )


def is_same_block(q: Source, source: Source) -> bool:
    """Whether two sources change the same entries of a parameter."""
    return (q.name, q.block.key) == (source.name, source.block.key)


def is_flatter(q: Source, source: Source) -> bool:
    """Whether one of two sources on the same entries is constant along more slots: where the other
    is summed along these, it takes back what their entries have in common."""
    plain = all(each.absence is None and each.kernel is None for each in (q, source))
    return plain and q.pinned == source.pinned and {*q.flat} > {*source.flat}

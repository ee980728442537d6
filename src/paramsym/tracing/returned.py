"""Sources of whose effect others take back a part: what a weight brought about, it may absorb.

So the bias of a norm that a stream and a weight read: what it adds to the stream absorbs what the
weight adds behind it, and the weight takes back what it made of the bias.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from paramsym.primitives.tensor import Tensor
from paramsym.primitives.words import fresh
from paramsym.tracing.absorbing import Absorption, Basis, is_same_block, subtract
from paramsym.tracing.division import Monomial, divide
from paramsym.tracing.sources import Source

_PARTS = 32  # of an effect that others take back

Rank = Callable[[Monomial], Any]  # which part of an effect leads


@dataclass(frozen=True, eq=False)
class Returned:
    """A source together with what others take back of its effect: `source` has the effect that is
    left of `moved`, as far as `back` says what the others do."""

    source: Source
    moved: Source
    back: tuple[Absorption, ...]

    def apart(self, absorption: Absorption) -> Iterator[Absorption]:
        """What each of them does where they absorb together."""
        yield replace(absorption, source=self.moved)
        for each in self.back:
            inside = {x for word in each.factors for x in word.letters}
            new = {
                **{x: fresh() for x in inside.union(each.letters.values())},
                **absorption.letters,
            }
            yield Absorption(
                each.source,
                -each.ratio * absorption.ratio,
                (*(word.renamed(new) for word in each.factors), *absorption.factors),
                {x: new[y] for x, y in each.letters.items()},
            )


def returned(
    source: Source, lead: Monomial, basis: Basis, rank: Rank, parameters: Mapping[str, Tensor]
) -> Iterator[Returned]:
    """Sources of whose effect a weight takes back a part, with what is left of it."""
    if not source.is_divided:
        return
    sink, change = lead
    for q in (q for found in basis.values() for q, _ in found):
        plain = q.absence is None and not q.is_special and not q.pinned
        if plain and any(
            at == sink and divide(change, c, source.own, q.own)
            for at, c in q.effect.values() if len(c.factors) > len(change.factors)
        ):  # fmt: skip
            found = _reduced(q, source, lead, basis, rank, parameters)
            if found is not None:
                yield found


def _reduced(
    q: Source,
    source: Source,
    lead: Monomial,
    basis: Basis,
    rank: Rank,
    parameters: Mapping[str, Tensor],
) -> Returned | None:
    """What is left of an effect, where each part is absorbed by one that can, or stays."""
    rest, left, back = dict(q.effect), {}, []
    while rest and len(back) < _PARTS:
        form, (sink, change) = max(rest.items(), key=lambda item: rank(item[1]))
        able = [(source, lead[1])] if sink == lead[0] else []
        for other, its in (*able, *basis.get(sink, ())):
            if is_same_block(other, q) or (is_same_block(other, source) and other is not source):
                continue
            step = subtract(q, rest, change, other, its, parameters)
            if step is not None:
                back.append(step[0])
                rest = step[1]
                break
        else:
            left[form] = rest.pop(form)
    whole = left and not rest and any(each.source is source for each in back)
    return Returned(replace(q, effect=left), q, tuple(back)) if whole else None

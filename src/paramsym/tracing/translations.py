"""Translations: known changes of several parameters whose effects cancel.

A *source* is one way in which a parameter may change: freely, or constant along one slot, or along
a direction that the input of a weight never has. Its *effect* is pushed forward until some reader
refuses it: a sum of monomials, each a word with the block where it stopped. A family is a
combination of sources whose effects cancel, found by division: sources are put in order, each is
divided by those before it, and a zero remainder is a family led by that source. All monomials of
an effect have to cancel at once, as unrolled loops need it.

A family moves exactly: its effect is linear in what moves, as long as no coefficient of it is read
from a parameter that the family itself moves. Those that would are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from paramsym.primitives.directions import Absence
from paramsym.primitives.joint import Key
from paramsym.primitives.tensor import Tensor
from paramsym.primitives.words import Change
from paramsym.tracing.absorbing import Absorption, Basis, is_flatter, is_same_block, subtract
from paramsym.tracing.circuit import Circuit
from paramsym.tracing.division import Effect, Monomial
from paramsym.tracing.effects import is_unseen
from paramsym.tracing.returned import returned
from paramsym.tracing.sources import Source, Sources
from paramsym.tracing.subspaces import Unread

_STEPS = 4000  # divisions that are tried for one source


@dataclass(frozen=True, eq=False)
class Family:
    """A source and what absorbs its effect."""

    source: Source
    absorbed: tuple[Absorption, ...]


class Translations:
    """All families of a network on one layout of blocks."""

    def __init__(self, circuit: Circuit, parameters: Mapping[str, Tensor], unread: Unread):
        self.circuit, self.unread, self.parameters = circuit, unread, parameters
        self.sources = Sources(circuit, parameters, unread)
        self._first: dict[Key, int] = {}  # where a block is read first
        self.left: list[Source] = []  # what nothing absorbs, once all families are known

    # -- division ----------------------------------------------------------------------------
    def families(self) -> Iterator[Family]:
        """Every family that division finds."""
        basis: Basis = defaultdict(list)
        done: dict[tuple[str, Key], list[Source]] = defaultdict(list)
        for source in sorted(self.sources, key=self._order):
            known = done[source.name, source.block.key]
            if any(_contains(other, source) for other in known):
                continue
            absorbed = self._divide(source, basis)
            if absorbed is not None:
                known += _as_free(source, absorbed)
                if self._is_moved(source):
                    yield Family(source, absorbed)
            elif not source.is_special:
                sink, change = max(source.effect.values(), key=self._rank)
                basis[sink].append((source, change))
        yield from self._among(basis, done)
        self.left = [source for found in basis.values() for source, _ in found]

    def _among(
        self, basis: Basis, done: Mapping[tuple[str, Key], list[Source]]
    ) -> Iterator[Family]:
        """Families of sources that could not be divided by those before them, but by all others.

        None of them leads a family yet, so that what is found is independent of those.
        """
        for sink, source, lead in [(s, *q) for s, found in basis.items() for q in found]:
            known = done[source.name, source.block.key]
            if any(_contains(other, source) for other in known):
                continue
            basis[sink].remove((source, lead))
            absorbed = None
            if self._is_met(source, sink, basis):
                absorbed = self._divide(source, basis)
            if absorbed is None:
                absorbed = self._with_returned(source, (sink, lead), basis)
            if absorbed is None:
                basis[sink].append((source, lead))
            else:
                known += _as_free(source, absorbed)
                yield Family(source, absorbed)

    def _is_met(self, source: Source, sink: Key, basis: Basis) -> bool:
        """Whether others than those that a source was divided by may absorb it."""
        own = any(is_same_block(q, source) and is_flatter(q, source) for q, _ in basis[sink])
        return own or any(at != sink and basis.get(at) for at, _ in source.effect.values())

    def _with_returned(
        self, source: Source, lead: Monomial, basis: Basis
    ) -> tuple[Absorption, ...] | None:
        """What absorbs a source, if it may absorb what it brought about itself."""
        taken = [*returned(source, lead, basis, self._rank, self.parameters)]
        wider: Basis = defaultdict(list, {sink: [*found] for sink, found in basis.items()})
        for each in taken:
            sink, change = max(each.source.effect.values(), key=self._rank)
            wider[sink].append((each.source, change))
        found = self._divide(source, wider) if taken else None
        if found is None:
            return None
        inside = {id(each.source): each for each in taken}
        return tuple(
            part
            for a in found
            for part in (inside[id(a.source)].apart(a) if id(a.source) in inside else (a,))
        )

    def _is_moved(self, source: Source) -> bool:
        """Whether a source that can be divided is a family: what nobody sees is told elsewhere."""
        if source.effect or source.absence is not None:
            return True
        change = Change(1.0, source.letters)  # it cancels itself, or is unseen
        return not is_unseen(self.unread[source.block.key], change)

    def _order(self, source: Source) -> tuple:
        longest = max((len(c.factors) for _, c in source.effect.values()), default=0)
        first = max(
            self.circuit.position[id(j.op)] for j, _ in self.circuit.readers[source.block.key]
        )
        kernel = source.absence is not None and bool(source.absence.profile.kernel)
        shown = max((len(c.at) for _, c in source.effect.values()), default=0)
        varied = max((len(source.shown(c)) for _, c in source.effect.values()), default=0)
        return (
            source.is_buffer,
            source.is_special,
            kernel,
            longest,
            len(source.flat),
            -shown,  # what varies more absorbs what varies less
            -varied,
            source.absence is not None,  # a bias before a weight, whose motion divides by κ
            -first,
            source.name,
        )

    def _divide(self, source: Source, basis: Basis) -> tuple[Absorption, ...] | None:
        """What absorbs a source's effect without remainder, or None.

        The leading monomial is cancelled by a source whose own leading monomial divides it. What
        that adds must be smaller, or equal in rank and new, so that the division ends. Where
        several divide, each is tried.
        """
        budget = iter(range(_STEPS))
        return self._search(source, basis, dict(source.effect), None, frozenset(), budget)

    def _search(
        self, source: Source, basis: Basis, rest: Effect, above: tuple | None,
        led: frozenset[tuple], budget: Iterator[int],
    ) -> tuple[Absorption, ...] | None:  # fmt: skip
        """`_divide` what is left, below a rank, where some monomials have led before."""
        if not rest:
            return ()
        form, (sink, lead) = max(rest.items(), key=lambda item: self._rank(item[1]))
        rank = self._rank((sink, lead))
        if form in led or (above is not None and rank > above):
            return None  # what was added is not smaller: this would not end
        for q, change in basis.get(sink, ()):
            if next(budget, None) is None:
                return None
            if is_same_block(q, source) and not is_flatter(q, source):
                continue
            step = subtract(source, rest, lead, q, change, self.parameters)
            if step is None:
                continue
            found = self._search(source, basis, step[1], rank, led | {form}, budget)
            if found is not None:
                return step[0], *found
        return None

    def _rank(self, monomial: Monomial) -> tuple:
        """Data before numbers, what stops early before what stops late, long before short."""
        sink, change = monomial
        position = self._first.get(sink)
        if position is None:
            readers = self.circuit.readers.get(sink, ())
            places = (self.circuit.position[id(j.op)] for j, _ in readers)
            position = self._first[sink] = min(places, default=1 << 60)
        return change.atom is not None, -position, len(change.factors), len(change.at), sink


def _as_free(source: Source, absorbed: tuple[Absorption, ...]) -> list[Source]:
    """The source, if its block moves by all of δ, and not by it less what its entries share."""
    return [] if any(is_same_block(a.source, source) for a in absorbed) else [source]


def _contains(other: Source, source: Source) -> bool:
    """Whether a family is known that moves the same block at least as freely."""
    alike = other.pinned == source.pinned or not (other.pinned or other.flat)
    return alike and _spans(other, source)


def _spans(other: Source, source: Source) -> bool:
    """Whether one of two sources on the same entries changes them at least as freely."""
    if other.absence is None and other.kernel is None and not other.flat:
        return True
    if other.kernel is not None or source.kernel is not None:
        kernels = other.kernel, source.kernel
        if other.cut != source.cut or kernels[0] is None or kernels[1] is None:
            return False
        return {*kernels[0].kernel} <= {*kernels[1].kernel}
    if other.absence is not None:
        wider = source.absence is not None and _is_wider(other.absence, source.absence)
        return wider and other.cut == source.cut
    plain = source.absence is None or source.is_flat
    return plain and set(other.flat) <= {*source.flat, source.cut}


def _is_wider(other: Absence, absence: Absence) -> bool:
    """Whether an absence is another one, or speaks of a larger kernel."""
    wide, narrow = other.profile.kernel, absence.profile.kernel
    larger = bool(wide) and all(any(c.is_part_of(n) for n in narrow) for c in wide)
    same = (other.strides, other.profile.frame) == (absence.strides, absence.profile.frame)
    return other is absence or (larger and same)

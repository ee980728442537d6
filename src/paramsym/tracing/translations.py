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

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from paramsym.primitives import Contract, Primitive
from paramsym.primitives.blocks import Block, tensor_blocks
from paramsym.primitives.directions import Absence, Profile
from paramsym.primitives.gains import power_of
from paramsym.primitives.joint import Joint, Key
from paramsym.primitives.tensor import Tensor
from paramsym.primitives.words import Change, Letter, Word, frame_words, fresh, projector
from paramsym.tracing.circuit import Circuit
from paramsym.tracing.division import CANCELLED, Effect, Monomial, canonical, divide, gathered
from paramsym.tracing.effects import Effects, is_unseen
from paramsym.tracing.subspaces import Unread

_STEPS = 4000  # divisions that are tried for one source
_KERNELS = 3  # readers whose kernels are combined

Basis = dict[Key, list[tuple["Source", Change]]]  # sources with leading monomials, by its sink


@dataclass(frozen=True, eq=False)
class Source:
    """One way in which a block of a parameter may change.

    `letters` are those of δ by slot; `flat` the slots along which it is constant. With `absence`,
    it changes along that direction on the slot `cut`, by δ/κ for each other slot, or by δ if it is
    not `divided`; with `kernel`, by what of δ lies in the kernel of some of its readers along the
    slot `cut`.
    """

    name: str
    block: Block
    letters: Mapping[int, Letter]
    flat: tuple[int, ...]
    effect: Effect
    absence: Absence | None = None
    cut: int | None = None
    kernel: Profile | None = None
    divided: bool = True

    @property
    def is_divided(self) -> bool:
        """Whether its change is δ/κ."""
        return self.absence is not None and self.divided and not self.absence.profile.kernel

    @property
    def is_special(self) -> bool:
        """Whether it absorbs nothing, as nothing else is directed like it."""
        return self.kernel is not None or not self.divided

    @property
    def reads(self) -> set[str]:
        """The parameters that say in which directions it changes."""
        found = set(self.kernel.parameters) if self.kernel is not None else set()
        return found | (self.absence.profile.parameters if self.absence is not None else set())

    @property
    def is_buffer(self) -> bool:
        """Whether it changes a power of a buffer."""
        power = power_of(self.block.tensor)
        return power is not None and power.source.kind == "buffer"

    @property
    def own(self) -> frozenset[Letter]:
        """The letters of δ."""
        return frozenset(self.letters.values())

    def replaced(self, m: Change, put: Mapping[Letter, Letter], prefix: tuple[Word, ...]) -> Change:
        """prefix · m with its δ replaced; along letters that are not replaced δ is constant."""
        at = {s: x for s, x in m.at.items() if x not in self.own or x in put}
        seen = {*m.at.values(), *m.letters(), *m.atom_letters()}
        copies = 1.0
        for stride, letter in self.letters.items():  # a letter that m lacks is summed by itself
            if letter not in put and letter not in seen:
                copies *= self.block.sizes[stride]
        product = m.moved(at, copies).with_fresh_letters(put)
        return replace(product, factors=(*prefix, *product.factors))


@dataclass(frozen=True, eq=False)
class Absorption:
    """δ of `source` = −ratio · δ · factors, with its letters replaced."""

    source: Source
    ratio: float
    factors: tuple[Word, ...]
    letters: Mapping[Letter, Letter]


@dataclass(frozen=True, eq=False)
class Family:
    """A source and what absorbs its effect."""

    source: Source
    absorbed: tuple[Absorption, ...]


class Translations:
    """All families of a network on one layout of blocks."""

    def __init__(self, circuit: Circuit, parameters: Mapping[str, Tensor], unread: Unread):
        self.circuit, self.parameters, self.unread = circuit, parameters, unread
        self.absent = unread.absent
        self.effects = Effects(circuit, unread)

    # -- sources -----------------------------------------------------------------------------
    def sources(self) -> Iterator[Source]:
        """Every way in which a parameter may change that is looked at."""
        for name, tensor in self.parameters.items():
            for block in tensor_blocks(tensor, self.circuit.layout):
                if block.key in self.circuit.readers:
                    yield from self._plain(name, block)
                    yield from self._along_absences(name, block)

    def _plain(self, name: str, block: Block) -> Iterator[Source]:
        slots = [s for _, _, s in block.slots]
        met: set[tuple[Letter, Profile]] = set()
        letters: Mapping[int, Letter] = {s: fresh() for s in slots}
        for flat in ((), *((s,) for s in slots)):
            own = {s: letter for s, letter in letters.items() if s not in flat}
            found = self.effects.of(block.key, Change(1.0, own), name, None if flat else met)
            effect = gathered(found, frozenset(own.values()))
            yield Source(name, block, own, flat, effect)
            if not flat and effect and all(c.atom for _, c in effect.values()):
                return  # what weighs data is absorbed as a whole or not at all
        for slot, letter in letters.items():
            yield from self._in_kernels(name, block, slot, {p for x, p in met if x == letter})

    def _in_kernels(
        self, name: str, block: Block, slot: int, met: Collection[Profile]
    ) -> Iterator[Source]:
        """δ projected onto the kernel of one reader, or of several: these see nothing of it."""
        columns = sorted({p.kernel for p in met})[:_KERNELS]
        for count in range(1, len(columns) + 1):
            for chosen in itertools.combinations(columns, count):
                profile = Profile(kernel=tuple(sorted({c for each in chosen for c in each})))
                if profile.fits(block.sizes[slot]) and profile.parameters <= self.parameters.keys():
                    letters = {s: fresh() for _, _, s in block.slots}
                    out = fresh()
                    word = projector(profile, block, slot, letters[slot], out, letters)
                    start = Change(1.0, {**letters, slot: out}, (word,))
                    found = self.effects.of(block.key, start, name)
                    effect = gathered(found, frozenset(letters.values()))
                    if effect:  # what no reader sees is known from what is unread
                        yield Source(name, block, letters, (), effect, cut=slot, kernel=profile)

    def _along_absences(self, name: str, block: Block) -> Iterator[Source]:
        """W += (δ/κ) ⊗ w where w·x = κ for whatever W reads: the output moves by δ."""
        received = [self._received(*reader) for reader in self.circuit.readers[block.key]]
        first, *others = received
        for other in others:
            first = {c: _both(a, other[c]) for c, a in first.items() if c in other}
        for cut, absences in first.items():
            for absence in absences:
                yield from self._absent_source(name, block, cut, absence)
        weighing = [_is_product(joint.op) for joint, _ in self.circuit.readers[block.key]]
        if others and weighing.count(True) == 1:
            reader = weighing.index(True)
            for cut, absences in received[reader].items():
                for absence in absences:
                    yield from self._tied_source(name, block, cut, absence, reader)

    def _received(self, joint: Joint, k: int) -> dict[int, list[Absence]]:
        """Absences of what a weight is contracted with, seen from the weight, by its slot."""
        found: dict[int, list[Absence]] = defaultdict(list)
        data = joint.inputs[1 - k] if _is_product(joint.op) else None
        if data is None or self.effects.depends(data.tensor) is not None:
            return found
        mine, theirs, target = joint.slots(k), joint.slots(1 - k), joint.slots(-1)
        place = {s: at for at, s in theirs.items()}
        rename = {theirs[at]: mine[at] for at in theirs if at in mine}
        for absence in self.absent[data.key]:  # where κ = 0, a change along w is unread
            at = place.get(absence.stride)
            if at is None or at not in mine or at in target:
                continue
            whole = absence.stride in joint.whole(1 - k) and mine[at] in joint.whole(k)
            if whole and not absence.is_zero:
                profile = absence.profile.renamed(rename)
                if profile.fits(joint.inputs[k].sizes[mine[at]]):
                    found[mine[at]].append(replace(absence, stride=mine[at], profile=profile))
        return found

    def _absent_source(
        self, name: str, block: Block, cut: int, absence: Absence
    ) -> Iterator[Source]:
        if not self._is_spelled(absence):
            return
        kernel = bool(absence.profile.kernel)
        letters = {s: fresh() for _, _, s in block.slots if kernel or s != cut}
        found: list[Monomial] = []
        for joint, k in self.circuit.readers[block.key]:
            forward = joint.forward(k)
            at = {t: letters[s] for s, t in forward.items() if s in letters}
            starts = [Change(1.0, at)]
            if kernel:
                starts = list(self._kernel_effects(absence, letters[cut], at, block, cut))
            for start in starts:
                found += self.effects.of(joint.out.key, start, name)
        effect = gathered(found, frozenset(letters.values()))
        yield Source(name, block, letters, (), effect, absence, cut)

    def _tied_source(
        self, name: str, block: Block, cut: int, absence: Absence, reader: int
    ) -> Iterator[Source]:
        """W += δ ⊗ w where w·x = κ for what one reader weighs by W, and others read W as it is.

        So a table of tokens that is the last layer, too: its rows move by the same vector, which
        the positions absorb, and the logits by κ.
        """
        profile = absence.profile
        if profile.kernel or not self._is_spelled(absence):
            return
        for flat in ((), *((s,) for _, _, s in block.slots if s != cut)):
            letters = {s: fresh() for _, _, s in block.slots if s != cut and s not in flat}
            found: list[Monomial] = []
            for n, (joint, k) in enumerate(self.circuit.readers[block.key]):
                if n == reader:
                    found += self._of_constant(joint, k, letters, absence, name)
                    continue
                out = fresh()
                words = tuple(frame_words(profile, self.parameters, out, 1))
                change = Change(1.0, {**letters, cut: out}, words)
                passed = self.effects.through(joint, k, change, name)
                found += [(block.key, change)] if passed is None else passed
            effect = gathered(found, frozenset(letters.values()))
            yield Source(name, block, letters, flat, effect, absence, cut, divided=False)

    def _is_spelled(self, absence: Absence) -> bool:
        """Whether w and κ are words of parameters, the same at all entries of the other slots."""
        known = absence.profile.parameters <= self.parameters.keys()
        return known and not any(o.at for o in absence.offset)

    def _of_constant(
        self, joint: Joint, k: int, letters: Mapping[int, Letter], absence: Absence, name: str
    ) -> list[Monomial]:
        """The effects of δ ⊗ w at a reader whose data x have w·x = κ: those of δ·κ."""
        at = {t: letters[s] for s, t in joint.forward(k).items() if s in letters}
        found: list[Monomial] = []
        for offset in absence.offset:
            words = offset.spelled(absence.profile, self.parameters)
            found += self.effects.of(joint.out.key, Change(offset.weight, at, words), name)
        return found

    def _kernel_effects(
        self, absence: Absence, along: Letter, at: Mapping[int, Letter], block: Block, cut: int
    ) -> Iterator[Change]:
        """δ P b: what a change along a kernel adds where the input has a constant part b."""
        profile = absence.profile
        for offset in absence.offset:
            word = projector(profile, block, cut, along, offset.letter, {})
            factors = offset.spelled(profile, self.parameters)
            yield Change(offset.weight, dict(at), (word, *factors))

    # -- division ----------------------------------------------------------------------------
    def families(self) -> Iterator[Family]:
        """Every family that division finds."""
        basis: Basis = defaultdict(list)
        done: dict[tuple[str, Key], list[Source]] = {}
        for source in sorted(self.sources(), key=self._order):
            known = done.setdefault((source.name, source.block.key), [])
            if any(_contains(other, source) for other in known):
                continue
            absorbed = self._divide(source, basis)
            if absorbed is None and source.is_special:
                continue
            if absorbed is None:
                sink, change = max(source.effect.values(), key=self._rank)
                basis[sink].append((source, change))
                continue
            known.append(source)
            change = Change(1.0, source.letters)
            if (
                source.effect
                or source.absence is not None
                or not is_unseen(self.unread[source.block.key], change)  # it cancels itself
            ):
                yield Family(source, absorbed)

    def _order(self, source: Source) -> tuple:
        longest = max((len(c.factors) for _, c in source.effect.values()), default=0)
        first = max(
            self.circuit.position[id(j.op)] for j, _ in self.circuit.readers[source.block.key]
        )
        kernel = source.absence is not None and bool(source.absence.profile.kernel)
        return (
            source.is_buffer,
            source.is_special,
            kernel,
            longest,
            len(source.flat),
            -first,
            source.name,
        )

    def _divide(self, source: Source, basis: Basis) -> tuple[Absorption, ...] | None:
        """What absorbs a source's effect without remainder, or None.

        The leading monomial is cancelled by a source whose own leading monomial divides it. What
        that adds must be smaller, or equal in rank and new, so that the division ends. Where
        several divide, each is tried.
        """
        budget = _STEPS

        def search(
            rest: Effect, above: tuple | None, led: frozenset[tuple]
        ) -> tuple[Absorption, ...] | None:
            nonlocal budget
            if not rest:
                return ()
            form, (sink, lead) = max(rest.items(), key=lambda item: self._rank(item[1]))
            rank = self._rank((sink, lead))
            if form in led or (above is not None and rank > above):
                return None  # what was added is not smaller: this would not end
            for q, change in basis.get(sink, ()):
                budget -= 1
                if budget < 0:
                    return None
                if (q.name, q.block.key) == (source.name, source.block.key):
                    continue
                step = _subtract(source, rest, lead, q, change)
                if step is None:
                    continue
                found = search(step[1], rank, led | {form})
                if found is not None:
                    return step[0], *found
            return None

        return search(dict(source.effect), None, frozenset())

    def _rank(self, monomial: Monomial) -> tuple:
        """Data before numbers, what stops early before what stops late, long before short."""
        sink, change = monomial
        readers = self.circuit.readers.get(sink, ())
        position = min((self.circuit.position[id(j.op)] for j, _ in readers), default=1 << 60)
        return change.atom is not None, -position, len(change.factors), len(change.at), sink


def _subtract(
    source: Source, rest: Effect, p: Change, q: Source, lead: Change
) -> tuple[Absorption, Effect] | None:
    """Subtract the multiple of q's effect that takes the leading monomial away."""
    match = divide(lead, p, q.own, source.own)
    if match is None:
        return None
    put, prefix = match
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


def _is_product(op: Primitive) -> bool:
    """Whether an operation is a plain product of two different tensors."""
    return type(op) is Contract and op.power == 1 and not op.is_square


def _contains(other: Source, source: Source) -> bool:
    """Whether a family is known that moves the same block at least as freely."""
    if other.absence is None and other.kernel is None and not other.flat:
        return True
    if other.kernel is not None or source.kernel is not None:
        kernels = {*other.kernel.kernel} if other.kernel else None, source.kernel
        return (
            kernels[0] is not None
            and kernels[1] is not None
            and other.cut == source.cut
            and (kernels[0] <= {*kernels[1].kernel})
        )
    if other.absence is not None or source.absence is not None:
        return other.absence is source.absence and other.cut == source.cut
    return set(other.flat) <= set(source.flat)


def _both(a: list[Absence], b: list[Absence]) -> list[Absence]:
    """Absences that hold for two inputs of one weight."""
    return [x for x in a for y in b if x.profile == y.profile and same_offset(x, y)]


def same_offset(x: Absence, y: Absence) -> bool:
    """Whether κ is the same sum of words."""

    def forms(absence: Absence) -> list[tuple]:
        made = []
        for o in absence.offset:
            change = Change(o.weight, {}, o.factors)
            made.append((o.weight, o.frame, *canonical((0, 0), change, frozenset())[2:]))
        return sorted(made, key=repr)

    return forms(x) == forms(y)

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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from paramsym.tracing.blocks import Block, tensor_blocks
from paramsym.tracing.circuit import Circuit
from paramsym.tracing.directions import Absence, Profile, Unseen
from paramsym.tracing.division import Effect, Monomial, canonical, divide, gathered
from paramsym.tracing.gains import power_of
from paramsym.tracing.joint import Joint, Key
from paramsym.tracing.primitives import Contract, Primitive
from paramsym.tracing.subspaces import Unread
from paramsym.tracing.tensor import Tensor
from paramsym.tracing.words import (
    Atom,
    Change,
    Letter,
    Word,
    frame_words,
    fresh,
    parameter_word,
)

_MONOMIALS = 48  # an effect with more is not followed
_PIECES = 6  # a value with more is an atom
_STEPS = 4000  # divisions that are tried for one source

Basis = dict[Key, list[tuple["Source", Change]]]  # sources with leading monomials, by its sink


@dataclass(frozen=True, eq=False)
class Source:
    """One way in which a block of a parameter may change.

    `letters` are those of δ by slot; `flat` the slots along which it is constant. With `absence`,
    it changes along that direction on the slot `cut`, by δ/κ for each other slot.
    """

    name: str
    block: Block
    letters: Mapping[int, Letter]
    flat: tuple[int, ...]
    effect: Effect
    absence: Absence | None = None
    cut: int | None = None
    buffer: bool = False

    @property
    def own(self) -> frozenset[Letter]:
        """The letters of δ."""
        return frozenset(self.letters.values())

    def replaced(self, m: Change, put: Mapping[Letter, Letter], prefix: tuple[Word, ...]) -> Change:
        """prefix · m with its δ replaced; along letters that are not replaced δ is constant."""
        at = {s: x for s, x in m.at.items() if x not in self.own or x in put}
        seen = {*m.at.values(), *m.letters(), *(x for _, x in (m.atom.at if m.atom else ()))}
        copies = 1.0
        for stride, letter in self.letters.items():  # a letter that m lacks is summed by itself
            if letter not in put and letter not in seen:
                copies *= size_of(self.block, stride)
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
        self._values: dict[Key, list[Change] | None] = {}
        self._depends: dict[int, frozenset[str] | None] = {}

    # -- values (see primitives.Values) ------------------------------------------------------
    def depends(self, tensor: Tensor) -> frozenset[str] | None:
        """The parameters of which a tensor is computed; None where data enters."""
        owner = tensor.owner
        if owner.serial not in self._depends:
            if owner.producer is None:
                named = owner.kind in ("parameter", "buffer")
                found = frozenset([owner.name]) if named else None
            else:
                closed = owner.producer.is_closed
                parts = [self.depends(x) for x in owner.producer.inputs] if closed else [None]
                known = [p for p in parts if p is not None]
                found = frozenset().union(*known) if len(known) == len(parts) else None
            self._depends[owner.serial] = found
        return self._depends[owner.serial]

    def value(self, block: Block) -> list[Change] | None:
        """A block as a sum of words and atoms; None for a function of parameters without words."""
        if block.tensor.zero:
            return []
        key = block.key
        if key not in self._values:
            self._values[key] = None  # a loop of values has no words
            self._values[key] = self._expand(block)
        return self._values[key]

    def _expand(self, block: Block) -> list[Change] | None:
        free = self.depends(block.tensor) is not None
        power = power_of(block.tensor) if free else None
        if power is not None:
            return [parameter_word(block, power.source.name, power.power, power.offset)]
        found = self._summed(self.circuit.writer(block.key))
        need = {s for _, _, s in block.slots}
        if found is not None and all(change.at.keys() <= need for change in found):
            return found
        if free:
            return None
        at = tuple((s, fresh()) for _, _, s in block.slots)
        return [Change(1.0, dict(at), (), Atom(block.key, at))]

    def _summed(self, joint: Joint | None) -> list[Change] | None:
        """The value of what a sum of products writes, from the values that it reads."""
        if joint is None or not joint.op.has_words:
            return None
        read = range(len(joint.inputs))
        if joint.op.multiplies:
            free = [k for k in read if self.depends(joint.inputs[k].tensor) is not None]
            read = [] if not free else [1 - free[-1]]
        found = joint.op.constants(joint)
        if found is None:
            return None
        for k in read:
            pieces = self.value(joint.inputs[k])
            for piece in pieces or ():
                made = joint.op.translate(joint, k, piece.with_fresh_letters(), self)
                if made is None:
                    return None
                found += made
            if pieces is None or len(found) > _PIECES:
                return None
        return found if len(read) else None

    # -- effects -----------------------------------------------------------------------------
    def effect(self, key: Key, change: Change, source: str) -> list[Monomial]:
        """Where a change stops, and what it is there."""
        if _unseen(self.unread[key], change):
            return []
        stopped = [(key, change)]
        if self.circuit.is_seen(key):
            return stopped
        found: list[Monomial] = []
        for joint, k in self.circuit.readers[key]:
            if _unseen(self.unread.through(joint, k), change):
                continue
            passed = self._through(joint, k, change, source)
            if passed is None:
                return stopped
            for following in passed:
                found += self.effect(joint.out.key, following, source)
            if len(found) > _MONOMIALS:
                return stopped
        return found

    def _through(self, joint: Joint, k: int, change: Change, source: str) -> list[Change] | None:
        if not all(joint.is_whole(k, s) for s in change.at):
            return None
        if joint.op.multiplies:
            others = [self.depends(b.tensor) for n, b in enumerate(joint.inputs) if n != k]
            if any(source in (names or ()) for names in others):
                return None  # a product of a parameter with itself
        return joint.op.translate(joint, k, change, self)

    # -- sources -----------------------------------------------------------------------------
    def sources(self) -> Iterator[Source]:
        """Every way in which a parameter may change that is looked at."""
        for name, tensor in self.parameters.items():
            for block in tensor_blocks(tensor, self.circuit.layout):
                if block.key in self.circuit.readers:
                    yield from self._plain(name, tensor, block)
                    yield from self._along_absences(name, tensor, block)

    def _plain(self, name: str, tensor: Tensor, block: Block) -> Iterator[Source]:
        slots = [s for _, _, s in block.slots]
        for count in (0, 1):
            for flat in itertools.combinations(slots, count):
                letters = {s: fresh() for s in slots if s not in flat}
                found = self.effect(block.key, Change(1.0, letters), name)
                effect = gathered(found, frozenset(letters.values()))
                yield Source(name, block, letters, flat, effect, buffer=_is_buffer(tensor))
                if not flat and effect and all(c.atom for _, c in effect.values()):
                    return  # what weighs data is absorbed as a whole or not at all

    def _along_absences(self, name: str, tensor: Tensor, block: Block) -> Iterator[Source]:
        """W += (δ/κ) ⊗ w where w·x = κ for whatever W reads: the output moves by δ."""
        readers = self.circuit.readers[block.key]
        shared: dict[int, list[Absence]] | None = None
        for joint, k in readers:
            here: dict[int, list[Absence]] = {}
            for cut, absence in self._received(joint, k):
                here.setdefault(cut, []).append(absence)
            if shared is None:
                shared = here
            else:
                shared = {c: _both(a, here[c], block, c) for c, a in shared.items() if c in here}
        for cut, absences in (shared or {}).items():
            for absence in absences:
                yield from self._absent_source(name, tensor, block, cut, absence)

    def _received(self, joint: Joint, k: int) -> Iterator[tuple[int, Absence]]:
        """(slot of the weight, absence of what it is contracted with, seen from the weight)."""
        data = joint.inputs[1 - k] if _is_product(joint.op) else None
        if data is None or self.depends(data.tensor) is not None:
            return
        mine, theirs, target = joint.slots(k), joint.slots(1 - k), joint.slots(-1)
        place = {s: at for at, s in theirs.items()}
        rename = {theirs[at]: mine[at] for at in theirs if at in mine}
        for absence in self.absent[data.key]:  # where κ = 0, a change along w is unread
            at = place.get(absence.stride)
            if at is None or at not in mine or at in target:
                continue
            whole = joint.is_whole(1 - k, absence.stride) and joint.is_whole(k, mine[at])
            if whole and not absence.is_zero:
                profile = absence.profile.renamed(rename)
                if profile.fits(size_of(joint.inputs[k], mine[at])):
                    yield mine[at], replace(absence, stride=mine[at], profile=profile)

    def _absent_source(
        self, name: str, tensor: Tensor, block: Block, cut: int, absence: Absence
    ) -> Iterator[Source]:
        slots = [s for _, _, s in block.slots]
        kernel = bool(absence.profile.kernel)
        if (
            any(o.at for o in absence.offset)
            or not absence.profile.parameters <= self.parameters.keys()
        ):
            return
        letters = {s: fresh() for s in slots if kernel or s != cut}
        found: list[Monomial] = []
        for joint, k in self.circuit.readers[block.key]:
            forward = joint.forward(k)
            at = {t: letters[s] for s, t in forward.items() if s in letters}
            starts = [Change(1.0, at)]
            if kernel:
                starts = list(self._kernel_effects(absence, letters[cut], at, block, cut))
            for start in starts:
                found += self.effect(joint.out.key, start, name)
        effect = gathered(found, frozenset(letters.values()))
        yield Source(name, block, letters, (), effect, absence, cut, _is_buffer(tensor))

    def _kernel_effects(
        self, absence: Absence, along: Letter, at: Mapping[int, Letter], block: Block, cut: int
    ) -> Iterator[Change]:
        """δ P b: what a change along a kernel adds where the input has a constant part b."""
        profile = absence.profile
        for offset in absence.offset:
            word = projector(profile, block, cut, along, offset.letter, {})
            frame = frame_words(profile, self.length_of, offset.letter, 1)
            yield Change(offset.weight, dict(at), (*word, *frame, *offset.factors))

    def length_of(self, gain: str) -> int:
        """The number of entries of a gain."""
        return max(self.parameters[gain].shape, default=1)

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
            if absorbed is None:
                sink, change = max(source.effect.values(), key=self._rank)
                basis[sink].append((source, change))
                continue
            known.append(source)
            change = Change(1.0, source.letters)
            if (
                source.effect
                or source.absence is not None
                or not _unseen(self.unread[source.block.key], change)  # it cancels itself
            ):
                yield Family(source, absorbed)

    def _order(self, source: Source) -> tuple:
        longest = max((len(c.factors) for _, c in source.effect.values()), default=0)
        first = max(
            self.circuit.position[id(j.op)] for j, _ in self.circuit.readers[source.block.key]
        )
        kernel = source.absence is not None and bool(source.absence.profile.kernel)
        return source.buffer, kernel, longest, len(source.flat), -first, source.name

    def _divide(self, source: Source, basis: Basis) -> tuple[Absorption, ...] | None:
        """What absorbs a source's effect without remainder, or None.

        The leading monomial is cancelled by a source whose own leading monomial divides it; what
        that adds is smaller, so that the division ends. Where several divide, each is tried.
        """
        budget = _STEPS

        def search(rest: Effect) -> tuple[Absorption, ...] | None:
            nonlocal budget
            if not rest:
                return ()
            sink, lead = max(rest.values(), key=self._rank)
            for q, change in basis.get(sink, ()):
                budget -= 1
                if budget < 0:
                    return None
                if (q.name, q.block.key) == (source.name, source.block.key):
                    continue
                step = _subtract(source, rest, lead, q, change)
                if step is not None and (found := search(step[1])) is not None:
                    return step[0], *found
            return None

        return search(dict(source.effect))

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
        left = before - ratio * product.coefficient
        if abs(left) < 1e-9 * max(1.0, abs(before)):
            after.pop(form, None)
        else:
            after[form] = (at, replace(product, coefficient=left))
    return Absorption(q, ratio, prefix, put), after


def _is_product(op: Primitive) -> bool:
    """Whether an operation is a plain product of two different tensors."""
    return type(op) is Contract and op.power == 1 and not op.is_square


def _unseen(patterns: list[Unseen], change: Change) -> bool:
    """Whether a known change is one of those that nobody sees."""
    return any(
        all(p.is_ones and s not in change.at for s, p in pattern.items()) for pattern in patterns
    )


def _contains(other: Source, source: Source) -> bool:
    """Whether a family is known that moves the same block at least as freely."""
    if other.absence is None and not other.flat:
        return True
    if other.absence is not None or source.absence is not None:
        return other.absence is source.absence and other.cut == source.cut
    return set(other.flat) <= set(source.flat)


def _is_buffer(tensor: Tensor) -> bool:
    power = power_of(tensor)
    return power is not None and power.source.kind == "buffer"


def size_of(block: Block, stride: int) -> int:
    return block.sizes[stride]


def _both(a: list[Absence], b: list[Absence], block: Block, cut: int) -> list[Absence]:
    """Absences that hold for two inputs of one weight."""
    found = []
    for x in a:
        for y in b:
            if x.profile.kernel and y.profile.kernel and x.is_zero and y.is_zero:
                profile = x.profile & y.profile
                if profile is not None and profile.fits(size_of(block, cut)):
                    found.append(replace(x, profile=profile))
            elif x.profile == y.profile and same_offset(x, y):
                found.append(x)
    return found


def same_offset(x: Absence, y: Absence) -> bool:
    """Whether κ is the same sum of words."""

    def forms(absence: Absence) -> list[tuple]:
        made = []
        for o in absence.offset:
            change = Change(o.weight, {}, o.factors)
            made.append((o.weight, *canonical((0, 0), change, frozenset())[2:]))
        return sorted(made, key=repr)

    return forms(x) == forms(y)


def projector(
    profile: Profile, block: Block, stride: int, into: Letter, out: Letter,
    letters: Mapping[int, Letter],
) -> tuple[Word, ...]:  # fmt: skip
    """The orthogonal projector onto the kernel of a profile, from letter `into` to `out`."""
    size = size_of(block, stride)
    sizes = block.sizes
    batch = [s for _, s in profile.kernel[0].batch]
    first = profile.kernel[0]
    return (
        Word(
            first.parameter, first.start,
            ((0, size), (0, size), *((0, sizes[s]) for s in batch)),
            (out, into, *(letters[s] for s in batch if s in letters)),
            kernel=profile.kernel,
        ),
    )  # fmt: skip

"""Sources: the ways in which a parameter may change, each with its effect.

A parameter changes freely, or constant along one slot, or within the kernel of readers that cannot
absorb a change, or along a direction that the input of a weight never has.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from paramsym.primitives import Concatenate, Lookup
from paramsym.primitives.blocks import Block, tensor_blocks
from paramsym.primitives.directions import Absence, Profile, length_along
from paramsym.primitives.gains import power_of
from paramsym.primitives.joint import Joint
from paramsym.primitives.tensor import Tensor
from paramsym.primitives.words import (
    Change,
    Letter,
    Word,
    frame_words,
    fresh,
    projector,
    without_inverses,
)
from paramsym.tracing.circuit import Circuit
from paramsym.tracing.division import Effect, Monomial, gathered, same_offset
from paramsym.tracing.effects import Effects
from paramsym.tracing.pieces import along_pieces, without_last
from paramsym.tracing.sides import is_product
from paramsym.tracing.subspaces import Unread

_KERNELS = 3  # readers whose kernels are combined


@dataclass(frozen=True, eq=False)
class Source:
    """One way in which a block of a parameter may change.

    `letters` are those of δ by slot; `flat` the slots along which it is constant. With `absence`,
    it changes along that direction on the slot `cut`, by δ/κ for each other slot, or by δ if it is
    not `divided`; with `kernel`, by what of δ lies in the kernel of some of its readers along the
    slot `cut`. Along the slots `pinned` it changes one entry alone.
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
    pinned: Mapping[int, int] = field(default_factory=dict)  # slot → position

    @property
    def positions(self) -> dict[Letter, int]:
        """The letters of δ that stand for one entry, with its position."""
        return {self.letters[s]: n for s, n in self.pinned.items() if s in self.letters}

    @property
    def is_divided(self) -> bool:
        """Whether its change is δ/κ."""
        return self.absence is not None and self.divided and not self.absence.profile.kernel

    @property
    def is_special(self) -> bool:
        """Whether it absorbs nothing, as nothing else is directed like it."""
        return self.kernel is not None or not self.divided

    @property
    def is_flat(self) -> bool:
        """Whether it is constant along the slot that is cut."""
        return self.absence is not None and not self.divided and self.absence.profile.is_ones

    @property
    def reads(self) -> set[str]:
        """The parameters that say in which directions it changes."""
        found = set(self.kernel.parameters) if self.kernel is not None else set()
        return found | (self.absence.profile.parameters if self.absence is not None else set())

    @property
    def is_buffer(self) -> bool:
        """Whether it changes a power of a buffer."""
        power = power_of(self.block.tensor, block=self.block)
        return power is not None and power.source.kind == "buffer"

    @property
    def own(self) -> frozenset[Letter]:
        """The letters of δ."""
        return frozenset(self.letters.values())

    def shown(self, m: Change) -> set[Letter]:
        """The letters of δ along which a part of its effect varies."""
        return m.shown() & self.own

    def replaced(self, m: Change, put: Mapping[Letter, Letter], prefix: tuple[Word, ...]) -> Change:
        """prefix · m with its δ replaced; along letters that are not replaced δ is constant."""
        inside = m.letters() | m.atom_letters()
        at = {s: x for s, x in m.at.items() if x not in self.own or x in put or x in inside}
        seen = m.shown()
        copies = 1.0
        for stride, letter in self.letters.items():  # a letter that m lacks is summed by itself
            if letter not in put and letter not in seen:
                copies *= 1 if stride in self.pinned else self.block.sizes[stride]
        product = m.moved(at, copies).with_fresh_letters(put)
        return product.with_factors(without_inverses((*prefix, *product.factors)))


class Sources:
    """Every way in which the parameters of a network may change that is looked at."""

    def __init__(self, circuit: Circuit, parameters: Mapping[str, Tensor], unread: Unread):
        self.circuit, self.parameters = circuit, parameters
        self.absent = unread.absent
        self.effects = Effects(circuit, unread)
        lookups = [op for op in circuit.build.ops if isinstance(op, Lookup)]
        self.marks = {op.apart[1] for op in lookups if op.apart is not None}

    def __iter__(self) -> Iterator[Source]:
        for name, tensor in self.parameters.items():
            for block in tensor_blocks(tensor, self.circuit.layout):
                if block.key in self.circuit.readers:
                    yield from self._plain(name, block)
                    if not self.circuit.is_seen(block.key):
                        yield from self._along_absences(name, block)
                    yield from self._of_rows(name, block)

    def _gathered(self, found: list[Monomial], letters: Mapping[int, Letter], name: str) -> Effect:
        """The effect of a source, with relations between pieces used."""
        own = frozenset(letters.values())
        done: list[Monomial] = []
        while found:
            monomial = found.pop()
            told = without_last(monomial, own, self.circuit)
            if told is None:
                done.append(monomial)
                continue
            others, constant = told
            found += [*others, *(m for at, c in constant for m in self.effects.of(at, c, name))]
        return gathered(done, own)

    def _of_rows(self, name: str, block: Block) -> Iterator[Source]:
        """δ in one row that is read at the places of a mark alone, such as that of the padding."""
        for row, position in self._marked_rows(block):
            letters: Mapping[int, Letter] = {s: fresh() for _, _, s in block.slots}
            pinned = {row: position}
            self.effects.positions[letters[row]] = position
            yield replace(self._constant(name, block, letters), pinned=pinned)
            yield from self._tied(name, block, pinned)

    def _marked_rows(self, block: Block) -> Iterator[tuple[int, int]]:
        """The slot of rows, and the position of each that is read where others are, too."""
        found: dict[tuple[int, int], None] = {}
        for joint, k in self.circuit.readers[block.key] if self.marks else ():
            rows = [s for (label, _), s in joint.slots(k).items() if label == 0]
            whole = len(rows) == 1 and rows[0] in block.sizes and joint.is_single(k, 0)
            if whole and isinstance(joint.op, Lookup) and joint.op.dims == (0,):
                known = self._positions(joint.op)
                found |= {(rows[0], n): None for n in known if 0 <= n < block.sizes[rows[0]]}
        yield from found

    def _positions(self, op: Lookup) -> list[int]:
        """The positions of which a lookup says where they are read, if another table is, too."""
        numbers = sorted(mark.number for mark in self.marks if mark.data == op.read)
        return [*numbers, *op.apart[:1]] if op.apart is not None else numbers

    def _plain(self, name: str, block: Block) -> Iterator[Source]:
        slots = [s for _, _, s in block.slots]
        met: set[tuple[Letter, Profile]] = set()
        letters: Mapping[int, Letter] = {s: fresh() for s in slots}
        free = self._constant(name, block, letters, met=met)
        yield free
        if _is_shown(free.own, free.effect):
            # what weighs data is absorbed as a whole or not at all, but for joined axes
            joined = along_pieces(free.effect.values(), self.circuit)
            for slot, letter in letters.items():
                if letter in joined:
                    yield self._constant(name, block, letters, (slot,))
            return
        for flat in dict.fromkeys([*((s,) for s in slots), *_joined(block), tuple(slots)]):
            if flat:
                yield self._constant(name, block, letters, flat)
        for slot, letter in letters.items():
            yield from self._in_kernels(name, block, slot, {p for x, p in met if x == letter})

    def _constant(
        self, name: str, block: Block, letters: Mapping[int, Letter], flat: tuple[int, ...] = (),
        met: set[tuple[Letter, Profile]] | None = None,
    ) -> Source:  # fmt: skip
        """δ that is constant along some slots."""
        own = {s: letter for s, letter in letters.items() if s not in flat}
        found = self.effects.of(block.key, Change(1.0, own), name, met)
        return Source(name, block, own, flat, self._gathered(found, own, name))

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
                    effect = self._gathered(found, letters, name)
                    if effect:  # what no reader sees is known from what is unread
                        yield Source(name, block, letters, (), effect, cut=slot, kernel=profile)

    def _along_absences(self, name: str, block: Block) -> Iterator[Source]:
        """W += (δ/κ) ⊗ w where w·x = κ for whatever W reads: the output moves by δ."""
        readers = self._readers(block)
        received = [_with_sums(self._received(*reader)) for reader in readers]
        if not received:
            return
        first, *others = received
        for other in others:
            first = {c: _both(a, other[c]) for c, a in first.items() if c in other}
        for cut, absences in first.items():
            for absence in absences:
                yield from self._absent_source(name, block, cut, absence)
        yield from self._tied(name, block, {})

    def _tied(self, name: str, block: Block, pinned: Mapping[int, int]) -> Iterator[Source]:
        """Changes along what the one reader that is a product of a weight never receives."""
        readers = self._readers(block)
        weighing = [n for n, (joint, _) in enumerate(readers) if is_product(joint.op)]
        if len(readers) > 1 == len(weighing):
            (reader,) = weighing
            for cut, absences in self._received(*readers[reader]).items():
                for absence in absences if cut not in pinned else ():
                    yield from self._tied_source(name, block, cut, absence, reader, pinned)

    def _readers(self, block: Block) -> list[tuple[Joint, int]]:
        """Who reads a weight, but for products with what is zero, such as a padding."""
        return [
            (joint, k) for joint, k in self.circuit.readers[block.key]
            if not (is_product(joint.op) and self._is_zero(joint.inputs[1 - k]))
        ]  # fmt: skip

    def _is_zero(self, block: Block) -> bool:
        """Whether a block is the zeros that were joined to something."""
        queue = [block]
        while queue:
            block = queue.pop()
            joint = None if self.circuit.layout.coarse else self.circuit.writer(block.key)
            if joint is not None and isinstance(joint.op, Concatenate):
                queue += joint.inputs
            elif not block.tensor.zero:
                return False
        return True

    def _received(self, joint: Joint, k: int) -> dict[int, list[Absence]]:
        """Absences of what a weight is contracted with, seen from the weight, by its slot."""
        found: dict[int, list[Absence]] = defaultdict(list)
        data = joint.inputs[1 - k] if is_product(joint.op) else None
        if data is None or self.effects.depends(data.tensor) is not None:
            return found
        mine, theirs, target = joint.slots(k), joint.slots(1 - k), joint.slots(-1)
        place = {s: at for at, s in theirs.items()}
        rename = {theirs[at]: mine[at] for at in theirs if at in mine}
        for absence in self.absent[data.key]:
            seen = absence.renamed(rename, joint.inputs[k].sizes)
            if seen is None or seen.profile.transposed:  # no vector, but a matrix
                continue
            if any(place[s] in target for s in absence.strides):
                continue
            whole = joint.whole(1 - k).issuperset(absence.strides)
            whole = whole and joint.whole(k).issuperset(seen.strides)
            if whole and seen.profile.fits(length_along(seen.stride, joint.inputs[k].sizes)):
                found[seen.strides[0]].append(seen)
        return found

    def _absent_source(
        self, name: str, block: Block, cut: int, absence: Absence
    ) -> Iterator[Source]:
        if not self._is_spelled(absence):
            return
        kernel = bool(absence.profile.kernel)
        held = () if kernel else absence.strides
        letters = {s: fresh() for _, _, s in block.slots if s not in held}
        found: list[Monomial] = []
        for joint, k in self._readers(block):
            forward = joint.forward(k)
            at = {t: letters[s] for s, t in forward.items() if s in letters}
            starts = [Change(1.0, at)]
            if kernel:
                starts = list(self._kernel_effects(absence, letters, at, block, cut))
            for start in starts:
                found += self.effects.of(joint.out.key, start, name)
        effect = self._gathered(found, letters, name)
        yield Source(name, block, letters, (), effect, absence, cut)

    def _tied_source(
        self, name: str, block: Block, cut: int, absence: Absence, reader: int,
        pinned: Mapping[int, int],
    ) -> Iterator[Source]:  # fmt: skip
        """W += δ ⊗ w where w·x = κ for what one reader weighs by W, and others read W as it is.

        So a table of tokens that is the last layer, too: its rows move by the same vector, which
        the positions absorb, and the logits by κ.
        """
        profile = absence.profile
        if profile.kernel or not self._is_spelled(absence):
            return
        rest = [s for _, _, s in block.slots if s not in absence.strides]
        for flat in ((), *((s,) for s in rest if not pinned)):
            letters = {s: fresh() for s in rest if s not in flat}
            self.effects.positions |= {letters[s]: n for s, n in pinned.items()}
            found: list[Monomial] = []
            for n, (joint, k) in enumerate(self._readers(block)):
                if n == reader:
                    found += self._of_constant(joint, k, letters, absence, name)
                    continue
                change = self._along(absence, letters, block)
                passed = self.effects.through(joint, k, change, name)
                found += [(block.key, change)] if passed is None else passed
            effect = self._gathered(found, letters, name)
            yield Source(
                name, block, letters, flat, effect, absence, cut, divided=False, pinned=pinned
            )

    def _along(self, absence: Absence, letters: Mapping[int, Letter], block: Block) -> Change:
        """δ ⊗ w, which is constant along the slots of w where no gain says that w varies."""
        out = {s: fresh() for s in absence.strides}
        sizes = [(block.sizes[s], x) for s, x in out.items()]
        words = frame_words(absence.profile, self.parameters, fresh(), 1)
        factors = tuple(word.counted(sizes) for word in words)
        return Change(1.0, {**letters, **out} if factors else letters, factors)

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
        self, absence: Absence, letters: Mapping[int, Letter], at: Mapping[int, Letter],
        block: Block, cut: int,
    ) -> Iterator[Change]:  # fmt: skip
        """δ P b: what a change along a kernel adds where the input has a constant part b."""
        profile = absence.profile
        for offset in absence.offset:
            word = projector(profile, block, cut, letters[cut], offset.letter, letters)
            factors = offset.spelled(profile, self.parameters)
            yield Change(offset.weight, dict(at), (word, *factors))


def _joined(block: Block) -> Iterator[tuple[int, ...]]:
    """Slots of one axis that several leaves count, such as groups and what each of them holds:
    every choice of two or more."""
    for _, found in itertools.groupby(block.slots, key=lambda slot: slot[0]):
        strides = tuple(stride for _, _, stride in found)
        for count in range(2, len(strides) + 1):
            yield from itertools.combinations(strides, count)


def _is_shown(letters: Collection[Letter], effect: Effect) -> bool:
    """Whether all of an effect weighs data, and shows every letter of δ: the others are summed."""
    if not effect or any(m.atom is None for _, m in effect.values()):
        return False
    return set().union(*(m.shown() for _, m in effect.values())).issuperset(letters)


def _with_sums(received: Mapping[int, list[Absence]]) -> dict[int, list[Absence]]:
    """Those with κ ≠ 0: where it is 0, a change along w is unread."""
    return {cut: [a for a in absences if not a.is_zero] for cut, absences in received.items()}


def _both(a: list[Absence], b: list[Absence]) -> list[Absence]:
    """Absences that hold for two inputs of one weight."""
    return [x for x in a for y in b if _is_same(x, y)]


def _is_same(x: Absence, y: Absence) -> bool:
    return (x.profile, x.strides) == (y.profile, y.strides) and same_offset(x, y)

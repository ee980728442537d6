"""From families to finite motions: the shifts that a symmetry writes down.

A family says which parameters change together; its motion is a sum of terms that are read from the
parameters as they were. Two things need care. What absorbs along a direction w that the input
never has (w·x = κ) does so by δ/κ: δ is parametrised by κ·s, so that nothing is divided by a κ that
may vanish; where the source itself moves κ, the finite motion divides by 1 + w·s. No coefficient
may be read from entries that the motion changes: such families are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from paramsym.lowering.builder import Builder
from paramsym.primitives.blocks import Block, Layout, are_apart, tensor_blocks
from paramsym.primitives.blocks import Window as Entries
from paramsym.primitives.directions import Absence, Unseen, slots_of
from paramsym.primitives.tensor import Tensor
from paramsym.primitives.words import (
    Letter,
    Offset,
    OutOfLetters,
    Speller,
    Word,
    frame_words,
    fresh,
    projector,
)
from paramsym.structure.shift import Factor, Shift, Term
from paramsym.tracing.absorbing import Absorption
from paramsym.tracing.circuit import Circuit
from paramsym.tracing.division import same_offset
from paramsym.tracing.flows import flows
from paramsym.tracing.joined_kernels import joined_kernels
from paramsym.tracing.kappa import added, leads, movers, parameters_of
from paramsym.tracing.sources import Source
from paramsym.tracing.subspaces import Absent, Unread
from paramsym.tracing.translations import Family, Translations
from paramsym.tracing.transvections import transvections


def find_shifts(
    circuit: Circuit, parameters: Mapping[str, Tensor], others: Iterable[tuple[tuple, Shift]] = ()
) -> tuple[Shift, ...]:
    """All additive freedom of a network, on fine blocks and on those that span joined axes, and
    others that are written as shifts."""
    found = {**dict(_shifts(circuit, parameters)), **dict(others)}
    before = circuit.layout
    for joined in (all, any):
        coarse = Layout(joined)
        if _joins_more(circuit.build, coarse, before):
            for where, shift in _shifts(Circuit(circuit.build, coarse), parameters):
                found.setdefault(where, shift)
            before = coarse
    place = {name: k for k, name in enumerate(parameters)}
    return _named(sorted(found.values(), key=lambda s: place[s.terms[0].target.parameter]))


def _joins_more(build: Builder, coarse: Layout, before: Layout) -> bool:
    """Whether some axis has fewer places in one layout than in the one before."""
    return any(
        len(before.places(node)) > len(coarse.places(node))
        for op in build.ops
        if op.out.moves
        for node in op.out.axes
    )


def _shifts(circuit: Circuit, parameters: Mapping[str, Tensor]) -> Iterator[tuple[tuple, Shift]]:
    """Shifts with what they start from, by which two layouts are compared."""
    unread = Unread(circuit, Absent(circuit))
    writer = _Writer(parameters)
    for name, tensor in parameters.items():
        for block in tensor_blocks(tensor, circuit.layout):
            if block.key in circuit.readers:
                for pattern in unread[block.key]:
                    shift = writer.unread(name, block, pattern)
                    if shift is not None:
                        yield (name, block.key[1], tuple(sorted(pattern, key=slots_of))), shift
    translations = Translations(circuit, parameters, unread)
    for family in translations.families():
        source = family.source
        shift = writer.family(family)
        if shift is not None:
            place = source.name, source.block.key[1]
            pinned = tuple(source.pinned.items())
            yield (*place, source.flat, source.cut, source.kernel, pinned), shift
    yield from joined_kernels(translations.left, unread, parameters)
    yield from transvections(circuit, unread, parameters)
    yield from flows(circuit, parameters)


class _Writer:
    """Writes families as shifts."""

    def __init__(self, parameters: Mapping[str, Tensor]):
        self.parameters = parameters

    # -- what nobody reads -------------------------------------------------------------------
    def unread(self, name: str, block: Block, pattern: Unseen) -> Shift | None:
        """A change that fits a pattern along its slots and is arbitrary otherwise."""
        spelled = {p for profile in pattern.values() for p in profile.parameters}
        if name in spelled or not spelled <= self.parameters.keys():
            return None
        letters = {s: fresh() for _, _, s in block.slots if s not in pattern}
        matrices = [(s, p.transposed) for s, p in pattern.items() if isinstance(s, tuple)]
        letters |= {s: fresh() for pair, _ in matrices for s in pair}
        target = dict(letters)
        free = dict(letters)  # the letters of δ
        words: list[Word] = []
        for s, profile in pattern.items():
            if isinstance(s, tuple):
                continue
            target[s] = fresh()
            words += frame_words(profile, self.parameters, target[s], -1)
            if profile.kernel:
                free[s] = fresh()
                words.append(projector(profile, block, s, free[s], target[s], letters))
        spell = Speller(free.values())
        terms = [
            _term(spell, name, block, at, sign, tuple(words))
            for sign, at in _exchanged(target, matrices)
        ]
        return _shift(name, _named_after(pattern), "unread", spell, block, free, tuple(terms))

    # -- what is compensated -----------------------------------------------------------------
    def family(self, family: Family) -> Shift | None:
        """The motion of a family, or None where it would read what it moves."""
        try:
            return self._family(family)
        except OutOfLetters:  # a long unrolled loop
            return None

    def _family(self, family: Family) -> Shift | None:
        kappa = self._kappa(family)
        if kappa is None:
            return None
        moving = movers(family, kappa)
        along = added(moving[0], kappa) if moving else None
        refused = len(moving) > 1 or (moving and along is None)
        if refused or not self._reads_what_stays(family, kappa, moving):
            return None
        words = [a.factors for a in family.absorbed] + [o.factors for o in kappa]
        met = {x for factors in words for word in factors for x in word.letters}
        if met & family.source.positions.keys():
            return None  # a coefficient would have to be read at one entry alone
        return self._write(family, kappa, -1.0 if leads(family, moving) else 1.0, along)

    def _kappa(self, family: Family) -> tuple[Offset, ...] | None:
        """The κ that all directions of a family share, () without any; None if they differ."""
        absorbing = [a.source.absence for a in family.absorbed if a.source.absence is not None]
        leading = family.source.absence
        every = [leading, *absorbing] if leading and family.source.is_divided else absorbing
        if not every:
            return ()
        first = every[0]
        same = all(a.profile == first.profile and same_offset(first, a) for a in every)
        plain = not any(a.profile.kernel or any(o.at for o in a.offset) for a in every)
        fits = same and plain and not (absorbing and first.is_zero)
        return self._spelled(first) if fits else None

    def _spelled(self, absence: Absence) -> tuple[Offset, ...]:
        """κ with w = 1 in its frame written out."""
        return tuple(
            replace(o, factors=o.spelled(absence.profile, self.parameters), frame=())
            for o in absence.offset
        )

    def _reads_what_stays(
        self, family: Family, kappa: tuple[Offset, ...], moving: list[Absorption]
    ) -> bool:
        """No coefficient may be read from what moves; κ may contain one that adds to it."""
        source = family.source
        sources = [source, *(a.source for a in family.absorbed)]
        moved = {item.name for item in sources}
        read: set[str] = set()
        for item in sources:
            read |= item.reads
        for absorption in family.absorbed:
            inside_out = parameters_of(_met(absorption.factors, sources))
            if absorption.source.absence is not None:  # W (1 + s wᵀ) reads W, and that is exact
                inside_out -= {absorption.source.name}
            read |= inside_out
        inside = {name for o in kappa for name in parameters_of(o.factors)}
        inside -= {mover.source.name for mover in moving}
        return not moved & (read | inside) and read <= self.parameters.keys()

    def _write(
        self,
        family: Family,
        kappa: tuple[Offset, ...],
        sign: float,
        along: tuple[Word, ...] | None,
    ) -> Shift | None:
        """All terms; with κ, δ stands for κ·s, or for −κ·s: what moves κ moves by −κ·s, so that κ
        is divided by 1 + Σ w·s, of which `along` are the factors."""
        source, spell = family.source, Speller(family.source.letters.values())
        times: list[tuple[float, tuple[Word, ...]]] = [(1.0, ())]
        if kappa:
            times = [(sign * o.weight, _apart(o.factors)) for o in kappa]
        terms = [*self._leading(spell, source, times)]
        for absorption in family.absorbed:
            terms += self._absorbed(spell, absorption, times, sign, source.positions)
        divisor = None
        if along is not None:
            absorbing = {a.source.name for a in family.absorbed if a.source.absence is not None}
            plain = {t.target.parameter for t in terms} - absorbing
            terms = [replace(t, divided=t.target.parameter in plain) for t in terms]
            divisor = tuple(map(spell.factor, along))
        kind = "absent" if source.absence is not None else "origin"
        tag = f"{source.name}.unreceived" if kind == "absent" else source.name
        text = _describe(source, terms)
        return _shift(
            tag,
            text,
            kind,
            spell,
            source.block,
            source.letters,
            tuple(terms),
            divisor,
            source.pinned,
        )

    def _leading(self, spell: Speller, source: Source, times: list) -> Iterator[Term]:
        """What the source itself does."""
        if source.absence is not None:
            yield self._along(spell, source, source.letters, 1.0, (), source.positions)
            return
        at, first = dict(source.letters), ()
        entries = _entries(source, at, source.positions)
        if source.kernel is not None and source.cut is not None:
            free, at[source.cut] = at[source.cut], fresh()
            first = (projector(source.kernel, source.block, source.cut, free, at[source.cut], at),)
        for weight, words in times:
            yield _term(spell, source.name, source.block, at, weight, (*first, *words), entries)

    def _absorbed(
        self, spell: Speller, absorption: Absorption, times: list, sign: float,
        positions: Mapping[Letter, int],
    ) -> Iterator[Term]:  # fmt: skip
        source = absorption.source
        letters = {
            s: absorption.letters[x] for s, x in source.letters.items() if x in absorption.letters
        }
        if source.absence is not None:
            ratio = -sign * absorption.ratio
            yield self._along(spell, source, letters, ratio, absorption.factors, positions)
            return
        for weight, words in times:
            yield _term(
                spell, source.name, source.block, letters, -absorption.ratio * weight,
                (*absorption.factors, *words), _entries(source, letters, positions),
            )  # fmt: skip

    def _along(
        self, spell: Speller, source: Source, letters: Mapping[int, Letter], coefficient: float,
        words: tuple[Word, ...], positions: Mapping[Letter, int],
    ) -> Term:  # fmt: skip
        """A change of a weight along what its input never has."""
        assert source.absence is not None and source.cut is not None
        profile, cut, block = source.absence.profile, source.cut, source.block
        out = fresh()
        more = list(frame_words(profile, self.parameters, out, 1))
        if profile.kernel:
            more.append(projector(profile, block, cut, letters[cut], out, letters))
        at = {**letters, cut: out}
        start, slots = _entries(source, at, positions)
        if outer := source.absence.outer:  # the leaves of one axis are one slot
            slots = tuple((s, n) for s, n in slots if s not in outer)
            slots = tuple((s, source.absence.size if s == cut else n) for s, n in slots)
        entries = start, slots
        return _term(spell, source.name, block, at, coefficient, (*words, *more), entries)


def _named_after(pattern: Unseen) -> str:
    """What a change that fits a pattern is called."""
    if not pattern:
        return "dead"
    for profile in pattern.values():
        if profile.transposed:
            part = "a symmetric" if profile.transposed > 0 else "an antisymmetric"
            return f"{part} part that no reader of it sees"
    if all(p.is_ones for p in pattern.values()):
        return "a common shift that no reader of it sees"
    return "what no reader of it sees"


def _exchanged(
    at: dict[int, Letter], matrices: list[tuple[tuple[int, int], int]]
) -> list[tuple[float, dict[int, Letter]]]:
    """δ as it is, and ± δ with the two slots of a matrix exchanged: twice its symmetric part."""
    found = [(1.0, at)]
    for (first, second), sign in matrices:
        found += [(sign * c, {**x, first: x[second], second: x[first]}) for c, x in found]
    return found


def _apart(factors: tuple[Word, ...]) -> tuple[Word, ...]:
    """A number: its letters are summed by itself."""
    new = {x: fresh() for f in factors for x in f.letters}
    return tuple(f.renamed(new) for f in factors)


def _met(words: tuple[Word, ...], moved: list[Source]) -> tuple[Word, ...]:
    """The words without those that read other entries of a parameter than those that move."""
    found = []
    for word in words:
        beside = [source.block for source in moved if source.name == word.parameter]
        apart = all(are_apart((word.start, word.slots), _window(b)) for b in beside)
        if word.kernel or not beside or not apart:
            found.append(word)
    return tuple(found)


def _window(block: Block) -> Entries:
    """Where the entries of a block lie: the first, and (stride, length) of its slots."""
    return block.start, tuple((s, leaf.size) for _, leaf, s in block.slots)


def _entries(
    source: Source, letters: Mapping[int, Letter], positions: Mapping[Letter, int]
) -> Entries:
    """The window in which a source moves: one entry of slots that it is pinned along, and of those
    whose letter has one position."""
    start, slots = _window(source.block)
    pinned = {s: positions[x] for s, x in letters.items() if x in positions} | {**source.pinned}
    start += sum(s * position for s, position in pinned.items())
    return start, tuple((s, 1 if s in pinned else n) for s, n in slots)


def _term(
    spell: Speller, name: str, block: Block, letters: Mapping[int, Letter], coefficient: float,
    words: tuple[Word, ...], entries: Entries | None = None,
) -> Term:  # fmt: skip
    spell = spell.apart()
    start, slots = entries or _window(block)
    used = tuple(letters.get(s) or fresh() for s, _ in slots)
    window = spell.window(name, start, slots, used)
    factors: list[Factor] = [spell.factor(w) for w in words]
    return Term(window, coefficient, tuple(factors))


def _shift(
    name: str, family: str, kind: str, spell: Speller, block: Block, letters: Mapping[int, Letter],
    terms: tuple[Term, ...], divisor: tuple[Factor, ...] | None = None,
    pinned: Iterable[int] = (),
) -> Shift:  # fmt: skip
    sizes = block.sizes | dict.fromkeys(pinned, 1)
    text = "".join(spell.letter(letters[s]) for s in sizes if s in letters)
    shape = tuple(n for s, n in sizes.items() if s in letters)
    return Shift(name, family, text, shape, terms, divisor, kind=kind)


def _describe(source: Source, terms: list[Term]) -> str:
    where = ", in one row" if source.pinned else ""
    if source.absence is not None:
        return f"a direction that its input never has{where}"
    names = dict.fromkeys(t.target.parameter for t in terms if t.target.parameter != source.name)
    partners = list(names)
    if not partners:
        return "its effects cancel each other"
    more = " …" if len(partners) > 3 else ""
    return f"slides against {', '.join(partners[:3])}{more}{where}"


def _named(shifts: list[Shift]) -> tuple[Shift, ...]:
    """Unique names."""
    seen: dict[str, int] = defaultdict(int)
    result = []
    for shift in shifts:
        seen[shift.name] += 1
        suffix = "" if seen[shift.name] == 1 else f"~{seen[shift.name]}"
        result.append(replace(shift, name=f"shift:{shift.name}{suffix}"))
    return tuple(result)

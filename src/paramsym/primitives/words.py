"""Words: known additive changes as formal sums of products of parameters.

A change of a block is written as a sum of

    coefficient · δ · F₁ … F_k · y

with δ the free offset of some source, F_i powers of parameters (or projectors onto kernels), and y
an *atom*: 1, or a block that holds data. Letters say along which slots each factor varies; a
letter that only factors share is summed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from paramsym.primitives.blocks import Block
from paramsym.primitives.directions import Columns, Profile
from paramsym.primitives.gains import Frame
from paramsym.primitives.tensor import Tensor
from paramsym.structure.shift import Factor, Window

Letter = int
_fresh = itertools.count(1)


def fresh() -> Letter:
    """A letter that was never used."""
    return next(_fresh)


@dataclass(frozen=True)
class Word:
    """One factor: (window on a parameter + offset)^power, or a projector onto a kernel."""

    parameter: str
    start: int
    slots: tuple[tuple[int, int], ...]  # (stride, size)
    letters: tuple[Letter, ...]
    power: float = 1.0
    offset: float = 0.0
    kernel: tuple[Columns, ...] = ()  # then letters are (out, in, batch …) and slots their sizes

    def renamed(self, new: Mapping[Letter, Letter]) -> Word:
        """The same factor with other letters."""
        return self.lettered(tuple(map(new.get, self.letters, self.letters)))

    def lettered(self, letters: tuple[Letter, ...] = ()) -> Word:
        """The same factor with these letters."""
        return Word(self.parameter, self.start, self.slots, letters, self.power, self.offset,
                    self.kernel)  # fmt: skip

    def inverse(self) -> Word:
        """What a factor cancels with."""
        return Word(self.parameter, self.start, self.slots, self.letters, -self.power, self.offset,
                    self.kernel)  # fmt: skip

    def at(self, letter: Letter, position: int) -> Word:
        """The same factor at one position of a letter, which it then lacks."""
        every = [*zip(self.slots, self.letters, strict=True)]
        start = self.start + sum(stride * position for (stride, _), x in every if x == letter)
        rest = [(slot, x) for slot, x in every if x != letter]
        slots, letters = (tuple(part[n] for part in rest) for n in (0, 1))
        return replace(self, start=start, slots=slots, letters=letters)

    def counted(self, inside_out: Sequence[tuple[int, Letter]]) -> Word:
        """A factor along one axis with its entries counted by several leaves: sizes and letters."""
        ((step, _),) = self.slots
        slots: list[tuple[int, int]] = []
        for size, _ in inside_out:
            slots.append((step, size))
            step *= size
        return replace(self, slots=tuple(slots), letters=tuple(x for _, x in inside_out))


def without_inverses(words: tuple[Word, ...]) -> tuple[Word, ...]:
    """A product in which no factor stands beside its inverse."""
    found: list[Word] = []
    for word in words:
        if not word.kernel and (inverse := word.inverse()) in found:
            found.remove(inverse)
        else:
            found.append(word)
    return tuple(found)


@dataclass(frozen=True)
class Atom:
    """A block that holds data, or a mask of one, with the letter of each of its slots."""

    key: tuple[int, ...]
    at: tuple[tuple[int, Letter], ...]


@dataclass(frozen=True)
class Change:
    """coefficient · δ · factors · atom; `at` gives the letter of each slot along which it varies.

    Letters of δ are those that `source` made; along slots without a letter it is constant.
    """

    coefficient: float
    at: Mapping[int, Letter] = field(hash=False)
    factors: tuple[Word, ...] = ()
    atom: Atom | None = None

    def letters(self) -> set[Letter]:
        """The letters of the factors."""
        return {x for factor in self.factors for x in factor.letters}

    def atom_letters(self) -> set[Letter]:
        """The letters of the data."""
        return {x for _, x in self.atom.at} if self.atom else set()

    def shown(self) -> set[Letter]:
        """All letters along which anything of it varies."""
        return {*self.at.values(), *self.letters(), *self.atom_letters()}

    def moved(self, at: Mapping[int, Letter], by: float = 1.0) -> Change:
        """The same change, seen at other slots and scaled."""
        return Change(self.coefficient * by, at, self.factors, self.atom)

    def with_factors(self, factors: tuple[Word, ...]) -> Change:
        """The same change with other factors."""
        return Change(self.coefficient, self.at, factors, self.atom)

    def with_fresh_letters(self, given: Mapping[Letter, Letter] | None = None) -> Change:
        """A copy that shares no letter with anything, except for those that are given."""
        new = dict(given or {})
        for x in self.shown():
            if x not in new:
                new[x] = fresh()
        return self.substituted(new)

    def substituted(self, new: Mapping[Letter, Letter]) -> Change:
        """The same change with some letters replaced."""
        return Change(
            self.coefficient,
            {s: new.get(x, x) for s, x in self.at.items()},
            tuple(f.renamed(new) for f in self.factors),
            self.atom and Atom(self.atom.key, tuple((s, new.get(x, x)) for s, x in self.atom.at)),
        )


def parameter_word(block: Block, name: str, power: float, offset: float) -> Change:
    """A block of a parameter as a word of one factor."""
    slots = tuple((stride, leaf.size) for _, leaf, stride in block.slots)
    letters = tuple(fresh() for _ in slots)
    at = {stride: x for (stride, _), x in zip(slots, letters, strict=True)}
    return Change(1.0, at, (Word(name, block.start, slots, letters, power, offset),))


@dataclass(frozen=True)
class Offset:
    """One word of κ = w·x: weight · Σ factors, with w along `letter`; `at` are other slots.

    `frame` holds the gains that have multiplied this part of x since it was added: along with them
    the frame of w took their inverses, so that κ stays as it was.
    """

    weight: float
    factors: tuple[Word, ...]
    letter: Letter
    at: tuple[tuple[int, Letter], ...] = ()
    frame: Frame = ()

    def scaled(self, by: float) -> Offset:
        """The same word of a multiple."""
        return replace(self, weight=self.weight * by)

    def spelled(self, profile: Profile, parameters: Mapping[str, Tensor]) -> tuple[Word, ...]:
        """The factors with those of w in its frame, w being 1 in it."""
        own = profile.framed(self.frame)
        return (*self.factors, *frame_words(own, parameters, self.letter, 1))


def frame_words(
    profile: Profile, parameters: Mapping[str, Tensor], letter: Letter, sign: int
) -> Iterator[Word]:
    """The diagonal of a frame as factors along one letter."""
    for (gain, offset), exponent in profile.frame:
        size = max(parameters[gain].shape, default=1)
        yield Word(gain, 0, ((1, size),), (letter,), float(sign * exponent), offset)


def projector(
    profile: Profile, block: Block, stride: int, into: Letter, out: Letter,
    letters: Mapping[int, Letter],
) -> Word:  # fmt: skip
    """The orthogonal projector onto the kernel of a profile, from letter `into` to `out`."""
    first, size = profile.kernel[0], block.sizes[stride]
    batch = [s for _, s in first.batch]
    slots = ((0, size), (0, size), *((0, block.sizes[s]) for s in batch))
    at = (out, into, *(letters[s] for s in batch if s in letters))
    return Word(first.parameter, first.start, slots, at, kernel=profile.kernel)


_ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class OutOfLetters(Exception):
    """A family that needs more letters than an einsum has."""


class Speller:
    """Spells letters as characters, windows as `Window`s and words as `Factor`s."""

    def __init__(self, letters: Iterable[Letter] = ()) -> None:
        self.known: dict[Letter, str] = {}
        self.rest: Iterator[str] = iter(c for c in _ALPHABET if c not in "xy")
        for letter in letters:
            self.letter(letter)

    def apart(self) -> Speller:
        """For one term, which shares what is known by now: what it sums over is its own, so that a
        motion may have as many terms as a network has layers."""
        return Speller(self.known)

    def letter(self, x: Letter) -> str:
        """The character of a letter."""
        if x not in self.known:
            found = next(self.rest, None)
            if found is None:
                raise OutOfLetters
            self.known[x] = found
        return self.known[x]

    def window(
        self, name: str, start: int, slots: tuple[tuple[int, int], ...], letters: tuple[Letter, ...]
    ) -> Window:
        """A window with spelled letters."""
        text = "".join(map(self.letter, letters))
        return Window(name, text, tuple(n for _, n in slots), tuple(s for s, _ in slots), start)

    def factor(self, word: Word) -> Factor:
        """A word as the coefficient of a term."""
        window = self.window(word.parameter, word.start, word.slots, word.letters)
        if not word.kernel:
            return Factor(window, word.power, word.offset)
        return Factor(window, kernel=tuple(w for c in word.kernel for w in _columns(c)))


def _columns(columns: Columns) -> Iterator[Window]:
    """The window whose letter x is to be annihilated, with the gains along what may remain.

    Batch letters are capitals in order; along z columns need only agree.
    """
    names = iter("abcdefghij")
    batch = {own: chr(ord("A") + n) for n, (own, _) in enumerate(columns.batch)}
    known = {columns.along: "x", **batch, **{stride: "z" for stride, _ in columns.modulo}}
    text = "".join(known.get(stride) or next(names) for stride, _ in columns.slots)
    yield Window(
        columns.parameter, text, tuple(n for _, n in columns.slots),
        tuple(s for s, _ in columns.slots), columns.start,
    )  # fmt: skip
    for stride, frame in columns.modulo:
        for (gain, _), _ in frame:
            yield Window(gain, "z", (dict(columns.slots)[stride],), (1,))

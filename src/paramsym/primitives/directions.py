"""Directions of a space: how a change or an annihilator looks along the slots of a block.

Two facts about a block speak of directions. An *unread* pattern is a set of changes that no reader
sees; an *absence* is a vector w with w·x = κ for everything that the block ever holds. Both are
written slot by slot: along a slot the direction is constant (all-ones) or lies in the kernel of
some parameters, in the frame of the gains in between; along the other slots it is arbitrary. Two
slots that index the rows and the columns of a matrix may share a profile: then the matrix is
symmetric, or antisymmetric.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

from paramsym.primitives.gains import Frame, combine


@dataclass(frozen=True, order=True)
class Columns:
    """A window on a parameter whose columns, along one of its slots, are to be annihilated.

    `slots` are (stride, size) pairs of the parameter's block; `along` is the stride that carries
    the direction; `batch` ties further slots of the parameter to slots of the block that the
    direction lives on (one kernel per head). All other slots index columns.
    """

    parameter: str
    start: int
    slots: tuple[tuple[int, int], ...]
    along: int
    batch: tuple[tuple[int, int], ...] = ()
    modulo: tuple[tuple[int, Frame], ...] = ()  # none or one

    @property
    def count(self) -> int:
        """How many columns there are, in each batch."""
        held = {self.along, *(own for own, _ in self.batch)}
        free = {stride for stride, _ in self.modulo}
        return math.prod(n - (s in free) for s, n in self.slots if s not in held)

    @property
    def parameters(self) -> set[str]:
        """The parameters that say what is annihilated."""
        return {self.parameter} | {name for _, frame in self.modulo for (name, _), _ in frame}

    def is_part_of(self, other: Columns) -> bool:
        """Whether whatever annihilates the columns of another one annihilates these."""
        return self == other or self == replace(other, modulo=self.modulo) and not other.modulo

    def renamed(self, slots: Mapping[int, int]) -> Columns:
        """The same columns seen from another block; a batch that it lacks becomes columns."""
        kept = tuple((own, slots[s]) for own, s in self.batch if s in slots)
        return replace(self, batch=kept)

    def untied(self, slots: Container[int]) -> Columns:
        """The same columns with one kernel for all units of some slots."""
        return replace(self, batch=tuple((own, s) for own, s in self.batch if s not in slots))

    def untied_from_all(self) -> Columns:
        """The same columns with one kernel for whatever stands beside them."""
        return replace(self, batch=())


@dataclass(frozen=True)
class Profile:
    """What a direction is along one slot: ones, or a kernel, times a frame.

    Along a pair of slots it is a matrix that is `transposed` (1 or −1) times its transpose.
    """

    frame: Frame = ()
    kernel: tuple[Columns, ...] = ()
    transposed: int = 0

    @property
    def is_ones(self) -> bool:
        """Whether it is the all-ones vector itself."""
        return not self.frame and not self.kernel and not self.transposed

    @property
    def parameters(self) -> set[str]:
        """The parameters that say where it points."""
        return {name for (name, _), _ in self.frame}.union(*(c.parameters for c in self.kernel))

    def framed(self, more: Frame) -> Profile:
        """The same direction before or after a gain."""
        return replace(self, frame=combine(self.frame, more))

    def inverse(self) -> Profile:
        """The same vectors, with the frame on the other side."""
        return replace(self, frame=combine((), self.frame, -1))

    def untied(self, slots: Container[int]) -> Profile:
        """The same direction with one kernel for all units of some slots."""
        if not self.kernel:
            return self
        return replace(self, kernel=tuple(c.untied(slots) for c in self.kernel))

    def renamed(self, slots: Mapping[int, int]) -> Profile:
        """The same direction seen from another block."""
        if not self.kernel:
            return self
        return replace(self, kernel=tuple(c.renamed(slots) for c in self.kernel))

    def fits(self, size: int) -> bool:
        """Whether such a direction exists along a slot of this size, whatever the parameters."""
        return not self.kernel or sum(c.count for c in self.kernel) < size

    def __and__(self, other: Profile) -> Profile | None:
        """The profile of what has both; None if nothing is known to have both."""
        if self == other:
            return self
        if self.kernel and other.kernel and self.frame == other.frame:
            return replace(self, kernel=tuple(sorted({*self.kernel, *other.kernel})))
        return None


ONES = Profile()
SYMMETRIC, ANTISYMMETRIC = Profile(transposed=1), Profile(transposed=-1)
Along = int | tuple[int, int]  # a slot, or two slots of one matrix
Unseen = dict[Along, Profile]  # along the slots that no key names a change is arbitrary


def slots_of(along: Along) -> tuple[int, ...]:
    """The slots that a profile speaks of."""
    return along if isinstance(along, tuple) else (along,)


def length_along(along: Along, sizes: Mapping[int, int]) -> int:
    """The length of a slot; 0 for two slots, and for one that is not there."""
    return sizes.get(along, 0) if isinstance(along, int) else 0


def renamed_along(along: Along, slots: Mapping[int, int]) -> Along | None:
    """The same slots seen from another block; None where it lacks one."""
    if isinstance(along, int):
        return slots.get(along)
    first, second = (slots.get(s) for s in along)
    return None if first is None or second is None else (min(first, second), max(first, second))


def _overlaps(pattern: Unseen) -> bool:
    """Whether a matrix shares a slot with another profile."""
    named = [s for along in pattern for s in slots_of(along)]
    return len(set(named)) < len(named)


def meet(a: list[Unseen], b: list[Unseen], sizes: Mapping[int, int]) -> list[Unseen]:
    """The changes in both spans, as patterns: profiles of shared slots have to agree."""
    found = []
    for x in a:
        for y in b:
            shared = {s: x[s] & y[s] for s in x.keys() & y.keys()}
            if all(p is not None for p in shared.values()):
                joint = _separated({**x, **y, **shared})  # type: ignore[dict-item]
                fits = all(p.fits(length_along(s, sizes)) for s, p in joint.items())
                if fits and not _overlaps(joint):
                    found.append(joint)
    return minimal(found)


def _separated(pattern: Unseen) -> Unseen:
    """Profiles that do not depend on each other: a kernel per unit of a slot that has a profile
    of its own becomes one kernel for all of its units."""
    return {s: p.untied(pattern) for s, p in pattern.items()}


def minimal(patterns: list[Unseen]) -> list[Unseen]:
    """Patterns that are no special case of another one."""
    kept: list[Unseen] = []
    for x in sorted(patterns, key=len):
        if not any(y.items() <= x.items() for y in kept):
            kept.append(x)
    return kept


@dataclass(frozen=True)
class Absence:
    """w·x = κ for every x that a block holds, with w along one slot and κ a sum of words.

    `offset` lists the words of κ: sums over the slot's letter w of parameters in the block. Along
    two slots w stands for all matrices of a symmetry, and κ is 0. Where several leaves count one
    axis, w runs over all of them, as over one slot with the stride of the innermost; `outer` are
    the strides of the others, inside out, with `size` entries in all.
    """

    stride: Along
    profile: Profile
    offset: tuple = ()  # words.Offset
    outer: tuple[int, ...] = ()
    size: int = 0  # where there are outer slots

    @property
    def strides(self) -> tuple[int, ...]:
        """All slots along which w varies."""
        return *slots_of(self.stride), *self.outer

    def renamed(self, slots: Mapping[int, int], sizes: Mapping[int, int]) -> Absence | None:
        """The same direction seen from another block with slots of these sizes, if it has its
        slots, those of one axis one after the other."""
        there = renamed_along(self.stride, slots)
        if there is None or not all(s in slots for s in self.outer):
            return None
        outer = tuple(slots[s] for s in self.outer)
        if outer and joined_size((*slots_of(there), *outer), sizes) != self.size:
            return None
        return replace(self, stride=there, outer=outer, profile=self.profile.renamed(slots))

    @property
    def is_zero(self) -> bool:
        """Whether κ = 0."""
        return not self.offset


def joined_size(strides: tuple[int, ...], sizes: Mapping[int, int]) -> int | None:
    """The number of entries of slots, inside out, that lie as densely as one; None if not."""
    total = 1
    for inner, outer in itertools.pairwise(strides):
        total *= sizes[inner]
        if outer != strides[0] * total:
            return None
    return total * sizes[strides[-1]]

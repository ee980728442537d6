"""Effects: what a known change of a block does to the blocks that are computed from it.

A change is pushed forward from reader to reader, as a sum of words, until one refuses it or nobody
sees it any more. For that, values are needed as words too: those of parameters alone, or with the
data that they weigh as an atom.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from paramsym.primitives import Primitive
from paramsym.primitives.blocks import Block
from paramsym.primitives.directions import Along, Profile, Unseen
from paramsym.primitives.gains import power_of
from paramsym.primitives.joint import Joint, Key
from paramsym.primitives.tensor import Tensor
from paramsym.primitives.words import Atom, Change, Letter, fresh, parameter_word
from paramsym.tracing.circuit import Circuit
from paramsym.tracing.division import Monomial
from paramsym.tracing.subspaces import Unread

_MONOMIALS = 200  # an effect with more is not followed
_PIECES = 6  # a value with more is an atom


class _Reader(NamedTuple):
    """What a reader asks of every change: it sees nothing of what has no entries, or fits a
    pattern, refuses what one of its other factors is made of, and what is not read as a whole."""

    empty: bool
    patterns: list[Unseen]
    factors: frozenset[str]
    whole: frozenset[int] | None


class _Step(NamedTuple):
    """A change that goes on: where it would stop, what is left of it to be followed, and how many
    had stopped before it."""

    stopped: Monomial
    following: list[Monomial]
    start: int


class Effects:
    """The effects of changes in a network; it answers primitives as their `Values`."""

    def __init__(self, circuit: Circuit, unread: Unread):
        self.circuit, self.unread = circuit, unread
        self._values: dict[Key, list[Change] | None] = {}
        self._depends: dict[int, frozenset[str] | None] = {}
        for op in circuit.build.ops:  # in order: networks may be deeper than a stack
            self._depends[op.out.serial] = self._computed(op)
        self._readers: dict[tuple[int, int], _Reader] = {}
        self._reading: dict[Key, list[tuple[Joint, int, _Reader]]] = {}
        self._many: set[tuple[Key, frozenset[int]]] = set()  # where changes spread too far
        self.positions: dict[Letter, int] = {}  # of the letters that stand for one entry of a slot

    # -- values (see primitives.Values) ------------------------------------------------------
    def depends(self, tensor: Tensor) -> frozenset[str] | None:
        """The parameters of which a tensor is computed; None where data enters."""
        owner = tensor.owner
        if owner.producer is not None:
            return self._depends[owner.serial]
        return frozenset([owner.name]) if owner.kind in ("parameter", "buffer") else None

    def _computed(self, op: Primitive) -> frozenset[str] | None:
        """The parameters of which an operation computes, whose inputs are told."""
        parts = [self.depends(x) for x in op.inputs] if op.is_closed else [None]
        known = [p for p in parts if p is not None]
        return frozenset().union(*known) if len(known) == len(parts) else None

    def position(self, letter: Letter) -> int | None:
        """The one position that a letter of δ stands for; None if it runs over a slot."""
        return self.positions.get(letter)

    def value(self, block: Block) -> list[Change] | None:
        """A block as a sum of words and atoms; None for a function of parameters without words."""
        if block.tensor.zero or 0 in block.tensor.shape:
            return []
        key = block.key
        if self.circuit.is_window(block):  # its name is that of the whole
            return self._parameter(block)
        if key not in self._values:
            self._expand_all(block)
        return self._values[key]

    def _expand_all(self, block: Block) -> None:
        """Expand a block behind all that it is expanded from, which may be deeper than a stack."""
        way, met = [block], set[Key]()
        while way:
            key = way[-1].key
            if key not in self._values and key not in met:
                met.add(key)
                way += self._unexpanded(way[-1])
                continue
            block = way.pop()
            if key not in self._values:
                self._values[key] = None  # a loop of values has no words
                self._values[key] = self._expand(block)

    def _unexpanded(self, block: Block) -> Iterator[Block]:
        """What the expansion of a block asks for."""
        if self._parameter(block) is None:
            for joint in self.circuit.parts(block.key):
                for k in self._expanded(joint):
                    there = joint.inputs[k]
                    empty = there.tensor.zero or 0 in there.tensor.shape
                    if not empty and not self.circuit.is_window(there):
                        yield there

    def _expanded(self, joint: Joint) -> Sequence[int]:
        """The inputs from whose values that of the output is made."""
        if not joint.op.has_words or joint.is_partial:
            return ()
        read = range(len(joint.inputs))
        if not joint.op.multiplies:
            return read
        free = [k for k in read if self.depends(joint.inputs[k].tensor) is not None]
        return [1 - free[-1]] if free else ()

    def _expand(self, block: Block) -> list[Change] | None:
        free = self.depends(block.tensor) is not None
        if (word := self._parameter(block)) is not None:
            return word
        found = self._added(self.circuit.parts(block.key))
        need = {s for _, _, s in block.slots}
        if found is not None and all(change.at.keys() <= need for change in found):
            return found
        if free:
            return None
        at = tuple((s, fresh()) for s in sorted({s for _, _, s in block.slots}))
        return [Change(1.0, dict(at), (), Atom(block.key, at))]

    def _parameter(self, block: Block) -> list[Change] | None:
        """A power of a parameter as one word; None for what is none."""
        power = (
            power_of(block.tensor, block=block) if self.depends(block.tensor) is not None else None
        )
        if power is None:
            return None
        return [parameter_word(block, power.source.name, power.power, power.offset)]

    def _added(self, parts: list[Joint]) -> list[Change] | None:
        """The value of a block to which one or more joints of a primitive add."""
        found = [self._summed(joint) for joint in parts]
        if not found or any(part is None for part in found):
            return None
        total = [piece for part in found for piece in part or ()]
        return total if len(parts) == 1 or len(total) <= _PIECES else None

    def _summed(self, joint: Joint) -> list[Change] | None:
        """The value of what a sum of products writes, from the values that it reads."""
        read = self._expanded(joint)
        found = joint.op.constants(joint) if read else None
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
        return found

    # -- effects -----------------------------------------------------------------------------
    def of(
        self, key: Key, change: Change, source: str,
        met: set[tuple[Letter, Profile]] | None = None,
    ) -> list[Monomial]:  # fmt: skip
        """Where a change stops, and what it is there.

        `met` receives the kernels of readers on the way, with the letters along which it varies.
        """
        found: list[Monomial] = []
        way = [_Step((key, change), [(key, change)], 0)]  # networks may be deeper than a stack
        while way:
            if not way[-1].following:
                way.pop()
            else:
                at, one = way[-1].following.pop()
                beyond = self._beyond(at, one, source, met)
                if beyond:
                    beyond.reverse()
                    way.append(_Step((at, one), beyond, len(found)))
                elif beyond is None:
                    found.append((at, one))
            if len(way) > 1 and len(found) - way[-1].start > _MONOMIALS:
                at, one = stopped = way[-1].stopped
                self._many.add((at, frozenset(one.at)))
                found[way[-1].start :] = [stopped]
                way[-1] = way[-1]._replace(following=[])
        return found

    def _beyond(
        self, key: Key, change: Change, source: str, met: set[tuple[Letter, Profile]] | None
    ) -> list[Monomial] | None:
        """What a change becomes behind all readers of a block; None if it stops there."""
        if is_unseen(self.unread[key], change):
            return []
        if self.circuit.is_seen(key) or (key, frozenset(change.at)) in self._many:
            return None
        reading = self._reading.get(key)
        if reading is None:
            readers = self.circuit.readers[key]
            reading = self._reading[key] = [(j, k, self._reader(j, k)) for j, k in readers]
        following: list[Monomial] = []
        for joint, k, reader in reading:
            passed = self._past(joint, k, reader, change, source, met)
            if passed is None:
                return None
            at = joint.out.key
            following += [(at, one) for one in passed]
        return following

    def through(
        self, joint: Joint, k: int, change: Change, source: str,
        met: set[tuple[Letter, Profile]] | None = None,
    ) -> list[Monomial] | None:  # fmt: skip
        """Where a change stops that passes one reader, and what it is there; None if it refuses."""
        passed = self._past(joint, k, self._reader(joint, k), change, source, met)
        if passed is None:
            return None
        return [m for following in passed for m in self.of(joint.out.key, following, source, met)]

    def _reader(self, joint: Joint, k: int) -> _Reader:
        """What a reader asks of every change."""
        found = self._readers.get((id(joint), k))
        if found is None:
            others = joint.inputs[:k] + joint.inputs[k + 1 :] if joint.op.multiplies else ()
            named = [self.depends(block.tensor) or () for block in others]
            torn = joint.is_partial or self.circuit.is_window(joint.out)
            found = self._readers[id(joint), k] = _Reader(
                0 in joint.inputs[k].tensor.shape, self.unread.through(joint, k),
                frozenset().union(*named), None if torn else joint.whole(k),
            )  # fmt: skip
        return found

    def _past(
        self, joint: Joint, k: int, reader: _Reader, change: Change, source: str,
        met: set[tuple[Letter, Profile]] | None,
    ) -> list[Change] | None:  # fmt: skip
        """What a change is behind one reader."""
        if reader.empty or is_unseen(reader.patterns, change):
            return []
        if met is not None and not change.factors:
            met |= set(_kernels_met(reader.patterns, change))
        if source in reader.factors:
            return None  # a product of a parameter with itself
        if reader.whole is None or not change.at.keys() <= reader.whole:
            return None  # what is alike here is not alike in all of the block
        return joint.op.translate(joint, k, change, self)


def is_unseen(patterns: list[Unseen], change: Change) -> bool:
    """Whether a known change is one of those that nobody sees."""
    return bool(patterns) and any(
        all(_fits(p, s, change) for s, p in pattern.items()) for pattern in patterns
    )


def _fits(profile: Profile, slot: Along, change: Change) -> bool:
    """Whether a change is constant along a slot, or along both of a symmetric matrix, or was
    projected onto its kernel."""
    if not isinstance(slot, int):
        return profile.transposed > 0 and not change.at.keys() & {*slot}
    if profile.is_ones:
        return slot not in change.at
    letter = change.at.get(slot)
    wanted = {columns.untied_from_all() for columns in profile.kernel}
    inside = [word for word in change.factors if letter in word.letters]
    if profile.frame or len(inside) != 1 or letter in change.atom_letters():
        return False  # what has been multiplied since is in the kernel no more
    (word,) = inside
    return bool(word.kernel) and word.letters[0] == letter and wanted <= {*word.kernel}


def _kernels_met(patterns: list[Unseen], change: Change) -> Iterator[tuple[Letter, Profile]]:
    """Kernels that would hide a change from a reader, with the letter that has to be in them."""
    for pattern in patterns:
        kernels = [(s, p) for s, p in pattern.items() if not p.is_ones]
        ones = all(s not in change.at for s, p in pattern.items() if p.is_ones)
        if ones and len(kernels) == 1:
            ((slot, profile),) = kernels
            if isinstance(slot, int) and slot in change.at and not profile.frame:
                columns = {c.untied_from_all() for c in profile.kernel}
                yield change.at[slot], Profile(kernel=tuple(sorted(columns)))

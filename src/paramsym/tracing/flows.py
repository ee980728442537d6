"""Streams that a norm begins and norms read: its gains flow, and what stands around it turns.

Where a layer norm writes g n + β to a stream that is read by centred norms, g may move along its
flow (`structure.gain_flow`): what is in front of that norm turns by S, x ↦ S x, and behind it the
stream turns by S as well, but for what all coordinates have in common. That is what the next norms
do not see, and what they write turns by S exactly. Behind a gain h it turns by h S h⁻¹, which
weights take back. So every parameter that writes such a space along its slot is turned, and every
weight that reads one is turned with it, as S is orthogonal.

Where weights read the stream itself, it moves by M = S + 1 vᵀ, and they by M⁻¹.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from paramsym.primitives import Center, Normalize
from paramsym.primitives.directions import Profile
from paramsym.primitives.gains import Frame, Power, combine, gain_of
from paramsym.primitives.joint import Joint, Key
from paramsym.primitives.tensor import Tensor
from paramsym.primitives.words import OutOfLetters, Speller, frame_words, fresh
from paramsym.structure.shift import Factor, Shift, Term
from paramsym.tracing.circuit import Circuit
from paramsym.tracing.sides import (
    Side,
    contracted,
    is_product,
    passed_on,
    place_of,
    side_of,
    terms_of,
)

Member = tuple[Key, int]  # a space, and the slot along which it turns


def flows(circuit: Circuit, parameters: Mapping[str, Tensor]) -> Iterator[tuple[tuple, Shift]]:
    """The flow of the gains of each norm that begins such a stream."""
    norms: dict[Key, Joint] = {}
    begun: dict[Frame, list[_Begun]] = defaultdict(list)  # by the gains that are multiplied by
    for joint in circuit.joints if not circuit.layout.coarse else ():
        if type(joint.op) is Normalize and joint.op.center:
            norms[joint.out.key] = joint
        for k, key in enumerate(joint.keys):
            along = _along(norms[key], -1) if key in norms else None
            gain = None if along is None else _gain_of(joint, k, along, parameters)
            if gain is not None:
                begun[gain.frame].append(_Begun(norms[key], joint, k, gain))
    for starts in begun.values():
        try:
            walk = _Walk(circuit, parameters, starts)
            walk.go()
            yield (walk.gain.source.name, 0, "flow"), walk.written()
        except (_Held, OutOfLetters):
            continue


class _Begun(NamedTuple):
    """A norm, and the product of what it writes, input `k`, with a gain."""

    norm: Joint
    scaled: Joint
    k: int
    gain: Power


@dataclass(frozen=True, eq=False)
class _Turned:
    """A parameter that turns, in which frame, whether it reads, and one of the spaces."""

    side: Side
    frame: Frame
    reads: bool
    space: Member


class _Held(Exception):
    """Something that does not turn along, or sees that it turns."""


@dataclass
class _Walk:
    """What turns together with the gains of one norm.

    Spaces have the frames in which they turn. Those behind what the norm writes turn but for what
    their coordinates have in common. `weighed` are spaces whose readers see that and may take it
    back, `strict` those whose readers may not. What `norms` write, by which is what they read,
    turns by S, and the `mapped` spaces move by M.
    """

    circuit: Circuit
    parameters: Mapping[str, Tensor]
    starts: list[_Begun]
    frames: dict[Member, Frame] = field(default_factory=dict)
    queue: list[Member] = field(default_factory=list)
    behind: dict[Member, list[Member]] = field(default_factory=dict)
    weighed: set[Member] = field(default_factory=set)
    strict: set[Member] = field(default_factory=set)
    norms: dict[Member, Member] = field(default_factory=dict)
    mapped: set[Member] = field(default_factory=set)
    alike: dict[Member, set[Member]] = field(default_factory=lambda: defaultdict(set))
    sides: dict[Member, _Turned] = field(default_factory=dict)

    @property
    def gain(self) -> Power:
        """The gains that flow."""
        return self.starts[0].gain

    @property
    def size(self) -> int:
        """How many gains there are."""
        return max(self.gain.source.shape)

    def go(self) -> None:
        """Follow all that turns along; raises `_Held` where it must not."""
        first = list[Member]()
        self._moves_gains_alone()
        for norm, scaled, k, _ in self.starts:
            before, after = _through(norm)
            self._add((norm.keys[0], before), ())
            first.append((scaled.out.key, scaled.forward(k)[after]))
            self._add(first[-1], ())
        while self.queue:
            member = self.queue.pop()
            if member[0] not in self.circuit.dropped:
                self._forwards(*member)
                self._backwards(*member)
        self._ends(first)

    def _moves_gains_alone(self) -> None:
        """Nobody else reads the gains that flow, or what a norm writes before them."""
        scaled = {id(start.scaled) for start in self.starts}
        keys = set[Key]()
        for start in self.starts:
            keys |= {start.scaled.keys[0], start.scaled.keys[1]}
            key = start.scaled.keys[1 - start.k]
            while (joint := self.circuit.writer(key)) is not None:
                scaled.add(id(joint))  # it makes gains of what is stored
                keys.add(key := joint.keys[0])
        readers = {id(joint) for key in keys for joint, _ in self.circuit.readers[key]}
        seen = any(map(self.circuit.is_seen, keys))
        if seen or not readers <= scaled or self.gain.power != 1 or self.size < 3:
            raise _Held

    def _add(self, member: Member, frame: Frame) -> None:
        if self.frames.setdefault(member, frame) != frame:
            raise _Held
        if member not in self.behind:
            self.behind[member] = []
            self.queue.append(member)

    # -- what reads a space --------------------------------------------------------------------
    def _forwards(self, key: Key, slot: int) -> None:
        if self.circuit.is_seen(key):
            raise _Held
        frame = self.frames[key, slot]
        norms = [start.norm for start in self.starts]
        for joint, k in self.circuit.readers[key]:
            if slot not in joint.whole(k):
                raise _Held
            if joint in norms:
                continue
            at = place_of(joint, k, slot)
            if isinstance(joint.op, (Center, Normalize)) and at[0] in joint.op.dims:
                if not (isinstance(joint.op, Center) or joint.op.center):
                    self.strict.add((key, slot))
                self._normed(joint, frame)
            elif (theirs := contracted(joint, k, slot)) is not None:
                self.weighed.add((key, slot))
                self._side(joint, 1 - k, theirs, (key, slot), reads=True)
            elif (gain := self._gain(joint, k, slot)) is not None:
                self.strict.add((key, slot))
                self._add((joint.out.key, joint.forward(k)[slot]), combine(frame, gain.frame))
            else:
                beyond = passed_on(joint, k, slot)
                if beyond is None:
                    raise _Held
                self._add(beyond, frame)
                self.behind[key, slot].append(beyond)
                self._join((key, slot), beyond)

    def _normed(self, joint: Joint, frame: Frame) -> None:
        """A norm in front of which, or behind which, is a space that turns."""
        before, after = _through(joint)
        if frame:
            raise _Held
        self._add((joint.keys[0], before), ())
        self._add((joint.out.key, after), ())
        self.norms[joint.out.key, after] = joint.keys[0], before

    def _gain(self, joint: Joint, k: int, slot: int) -> Power | None:
        """The gains by which a product multiplies a space; they are a frame, and have no zero."""
        found = _gain_of(joint, k, slot, self.parameters)
        return None if found is None or found.vanishes else found

    # -- what writes a space -------------------------------------------------------------------
    def _backwards(self, key: Key, slot: int) -> None:
        parts = self.circuit.writers.get(key)
        if not parts or key in self.circuit.patched:
            raise _Held
        for joint in parts:  # each writes a part of it, or a term
            self._written_by(joint, key, slot)

    def _written_by(self, joint: Joint, key: Key, slot: int) -> None:
        if slot not in joint.whole(-1):
            raise _Held
        if joint in [start.scaled for start in self.starts]:
            return
        frame, at = self.frames[key, slot], place_of(joint, -1, slot)
        if isinstance(joint.op, (Center, Normalize)) and at[0] in joint.op.dims:
            self._normed(joint, frame)
            return
        terms = terms_of(joint, at)
        if not terms and is_product(joint.op):
            self._scaled(joint, at, frame)
            return
        if not terms:
            raise _Held
        for k in terms:
            there = joint.slots(k)[at]
            if joint.inputs[k].tensor.owner.producer is None:
                self._side(joint, k, there, (key, slot), reads=False)
            elif there in joint.whole(k):
                self._add((joint.keys[k], there), frame)
                self.behind[joint.keys[k], there].append((key, slot))
                self._join((joint.keys[k], there), (key, slot))
            else:
                raise _Held

    def _scaled(self, joint: Joint, at: tuple, frame: Frame) -> None:
        """The space in front of a gain."""
        for k in (0, 1):
            slot = joint.slots(k).get(at)
            gain = None if slot is None else self._gain(joint, k, slot)
            if slot is not None and gain is not None:
                self._add((joint.keys[k], slot), combine(frame, gain.frame, -1))
                return
        raise _Held

    # -- parameters ----------------------------------------------------------------------------
    def _side(self, joint: Joint, k: int, slot: int, space: Member, reads: bool) -> None:
        """A parameter that writes or reads a space: all that it writes or reads moves alike."""
        side = side_of(self.circuit, self.parameters, joint.inputs[k], slot)
        if side is None:
            raise _Held
        frame = self.frames[space]
        known = self.sides.setdefault(side.place, _Turned(side, frame, reads, space))
        if (known.frame, known.reads) != (frame, reads):
            raise _Held
        self._join(known.space, space)
        for other, n in self.circuit.readers[side.block.key]:
            theirs = contracted(other, n, side.slot)
            if reads and theirs is not None:
                beyond = other.keys[1 - n], theirs
            else:
                beyond = None if reads else passed_on(other, n, side.slot)
            if beyond is None:
                raise _Held
            self._add(beyond, frame)
            self._join(space, beyond)

    def _join(self, one: Member, other: Member) -> None:
        """Two spaces that move alike."""
        self.alike[one].add(other)
        self.alike[other].add(one)

    # -- all together --------------------------------------------------------------------------
    def _ends(self, first: list[Member]) -> None:
        """Norms read the stream, and nobody sees what it has in common, or takes it back; nothing
        is moved twice, or read.

        Weights alone would take up any gains, which scales say.
        """
        loose = _closure(first, self.behind)
        if loose & self.weighed:
            self.mapped = _closure(first, self.alike)
        turned = [*self.sides.values()]
        read = {name for each in turned for (name, _), _ in each.frame} | {self.gain.source.name}
        held = (loose | self.mapped) & self.strict or self.mapped & self.norms.keys()
        held = held or loose.isdisjoint(self.norms.values())
        twice = len({each.side.block.key for each in turned}) < len(turned)
        if held or twice or not read.isdisjoint(each.side.name for each in turned):
            raise _Held

    def written(self) -> Shift:
        """The finite motion, with one number as δ."""
        spell, name = Speller(), self.gain.source.name
        text = spell.letter(fresh())
        own, into = spell.apart(), fresh()
        gains = own.window(name, 0, ((1, self.size),), (into,))
        terms = [Term(gains, 1.0, (self._flow(own, "gains", into),))]
        terms += [self._term(spell.apart(), turned) for turned in self.sides.values()]
        family = "gains that flow, with a turn that later norms do not tell"
        return Shift(f"{name}.flow", family, text, (1,), tuple(terms))

    def _term(self, spell: Speller, turned: _Turned) -> Term:
        """What turns a parameter along its slot."""
        side, into, out = turned.side, fresh(), fresh()
        target, own = side.moving(spell, into, out)
        how = "turn"
        if turned.space in self.mapped:
            how = "dual" if turned.reads else "map"
        profile, sign = Profile(frame=turned.frame), -1 if turned.reads else 1
        words = [
            own,
            *frame_words(profile, self.parameters, into, sign),
            *frame_words(profile, self.parameters, out, -sign),
        ]
        factors = (self._flow(spell, how, into, out), *map(spell.factor, words))
        return Term(target, 1.0, factors)

    def _flow(self, spell: Speller, how: str, *letters: int) -> Factor:
        n = self.size
        slots = ((1, n),) if len(letters) == 1 else ((0, n), (1, n))
        window = spell.window(self.gain.source.name, 0, slots, letters)
        return Factor(window, offset=self.gain.offset, flow=how)


def _closure(first: Iterable[Member], beyond: Mapping[Member, Iterable[Member]]) -> set[Member]:
    """All that is reached from some spaces."""
    found, queue = set[Member](), [*first]
    while queue:
        member = queue.pop()
        if member not in found:
            found.add(member)
            queue += beyond.get(member, ())
    return found


def _through(joint: Joint) -> tuple[int, int]:
    """The slots in front of a norm and behind it; raises `_Held` if it is taken over more, or
    less, than one of them."""
    before, after = _along(joint, 0), _along(joint, -1)
    if before is None or after is None or joint.is_partial:
        raise _Held
    return before, after


def _along(joint: Joint, k: int) -> int | None:
    """The one slot of its input, or of its output (−1), that a norm is taken over as a whole."""
    found = [s for at, s in joint.slots(k).items() if at[0] in joint.op.dims]
    alone = len(joint.op.dims) == len(found) == 1 and found[0] in joint.whole(k)
    return found[0] if alone else None


def _gain_of(joint: Joint, k: int, slot: int, parameters: Mapping[str, Tensor]) -> Power | None:
    """By what a product multiplies input k along a slot, if that is the power of a gain."""
    if not is_product(joint.op):
        return None
    found, along = gain_of(joint.inputs[1 - k].tensor), [*joint.slots(1 - k)]
    if found is None or len(along) != 1 or found.source.name not in parameters:
        return None
    there = joint.slots(k).get(along[0]) == slot and along[0] in joint.slots(-1)
    if not there or slot not in joint.whole(k):
        return None
    return found if max(found.source.shape) == joint.inputs[k].sizes[slot] else None

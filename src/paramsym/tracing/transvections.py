"""Transvections of what linear maps write: x ↦ x + 1 (z·x).

A norm does not see what all coordinates of x have in common, and other readers of x are weights.
Where x is written by linear maps alone, its writers may add z·x to every coordinate, and each
weight W takes it back: W (1 + 1 zᵀ)⁻¹ = W − (W 1) zᵀ / (1 + Σ z). That is an exact motion for every
z but those with Σ z = −1. Along a residual stream x stands for all that is ever added up to: norms
read it on the way, and a weight at its end.

What a norm of gain γ writes is orthogonal to 1/γ: where it is a writer, z is a multiple of
1/γ, and the others move alone.

The same with x ↦ x + w (z·x) where nobody is blind to 1, and writers are tables that are read once
more, as the weight of what has no part along w: see `duals`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from paramsym.primitives.directions import Profile, Unseen
from paramsym.primitives.joint import Joint, Key
from paramsym.primitives.tensor import Tensor
from paramsym.primitives.words import Letter, Speller, Word, frame_words, fresh
from paramsym.structure.shift import Shift, Term
from paramsym.tracing.circuit import Circuit
from paramsym.tracing.duals import Dual, dual_of
from paramsym.tracing.sides import Side, contracted, passed_on, place_of, side_of, terms_of
from paramsym.tracing.subspaces import Unread


def transvections(
    circuit: Circuit, unread: Unread, parameters: Mapping[str, Tensor]
) -> Iterator[tuple[tuple, Shift]]:
    """Every stream with writers that are linear, weights that read it, and others that see no
    common change of its coordinates."""
    finder = _Finder(circuit, unread, parameters)
    known: set[tuple[Key, int]] = set()
    moved: set[tuple[Key, int]] = set()
    for joint in circuit.joints if not circuit.layout.coarse else ():
        if not any(block.tensor.owner.name in parameters for block in joint.inputs):
            continue  # what moves is written by one somewhere
        for slot, size in joint.out.sizes.items():
            if (joint.out.key, slot) in known:
                continue
            stream = finder.stream(joint.out.key, slot)
            known |= stream.members
            if stream.moves and not stream.members & moved:  # behind it nobody sees more, or less
                moved |= stream.members
                first = next(iter(stream.writers.values()))
                place = first.name, first.block.key[1], "transvection"
                yield place, _written(stream, size, parameters)


@dataclass
class _Stream:
    """Spaces that sums join, one slot of a block each: what is written to one is in all behind it.
    So are those that share a weight: places that are read apart.

    `unseeing` says that some readers see no common change. A stream is `held` where others read
    it than these and weights, or others write it than parameters. `silent` are the directions along
    which something else that is written to it has no part, `duals` who reads its tables again.
    """

    members: set[tuple[Key, int]] = field(default_factory=set)
    writers: dict[tuple[Key, int], Side] = field(default_factory=dict)
    readers: dict[tuple[Key, int], Side] = field(default_factory=dict)
    silent: set[Profile] = field(default_factory=set)
    duals: list[Dual] = field(default_factory=list)
    unseeing: bool = False
    held: bool = False

    @property
    def moves(self) -> bool:
        """Whether it can move, each parameter in one way, and no other freedom says so."""
        sides = [*self.writers.values(), *self.readers.values()]
        sides += [dual.bias for dual in self.duals if dual.bias is not None]
        once = len({side.block.key for side in sides}) == len(sides)
        stays = set[str]().union(
            *(p.parameters for p in self.silent), *(d.reads for d in self.duals)
        )
        still = stays.isdisjoint(side.name for side in sides)
        unseen = self.unseeing != bool(self.duals) and len(self._directions) <= 1
        return not self.held and once and still and unseen and bool(self.writers and self.readers)

    @property
    def _directions(self) -> set[tuple[str, Profile]]:
        """Along what the rest is silent, or what tables are read again without."""
        silent = {("silent", profile) for profile in self.silent}
        return silent | {("dual", dual.profile) for dual in self.duals}


class _Finder:
    """Who writes and who reads a stream."""

    def __init__(self, circuit: Circuit, unread: Unread, parameters: Mapping[str, Tensor]):
        self.circuit, self.unread, self.parameters = circuit, unread, parameters
        self.lost: set[tuple[Key, int]] = set()  # members of streams that are held

    def stream(self, key: Key, slot: int) -> _Stream:
        """The stream that a space belongs to; as far as it was followed, if it is held."""
        found, queue, way = _Stream(), [(key, slot)], dict[tuple[Key, int], tuple[Key, int]]()
        while queue:
            member = key, slot = queue.pop()
            if member in found.members:
                continue
            found.members.add(member)
            if key in self.circuit.dropped:
                continue
            beside = [*self._behind(found, key, slot), *self._in_front(found, key, slot)]
            if None in beside or self.circuit.is_seen(key) or not self.lost.isdisjoint(beside):
                found.held = True
                while member is not None:  # whoever leads to it belongs to what is held
                    self.lost.add(member)
                    member = way.get(member)
                break
            for each in beside:
                if each is not None and each not in found.members:
                    way[each] = member
                    queue.append(each)
        return found

    def _behind(self, found: _Stream, key: Key, slot: int) -> Iterator[tuple[Key, int] | None]:
        """The sums that take up a space; None where others read it than may."""
        for joint, k in self.circuit.readers[key]:
            if slot not in joint.whole(k):
                yield None
            elif any(_hides(pattern, slot) for pattern in self.unread.through(joint, k)):
                found.unseeing = True
            elif (weight := self._weight(joint, k, slot)) is not None:
                found.readers[weight.place] = weight
                yield from self._read_by(weight)
            else:
                yield passed_on(joint, k, slot)

    def _in_front(self, found: _Stream, key: Key, slot: int) -> Iterator[tuple[Key, int] | None]:
        """The spaces of which a space is a sum; None where others write it than may."""
        joint = self.circuit.writer(key)
        if joint is None or slot not in joint.whole(-1):
            yield None
            return
        at = place_of(joint, -1, slot)
        terms = terms_of(joint, at)
        if not terms:
            yield None
        for k in terms:
            there = joint.slots(k)[at]
            if (profile := self._silent(joint.keys[k], there)) is not None:
                found.silent.add(profile)
            elif (side := self._parameter(joint, k, there)) is not None:
                found.writers[side.place] = side
                yield from self._written_by(found, side)
            else:
                yield (joint.keys[k], there) if there in joint.whole(k) else None

    def _read_by(self, side: Side) -> Iterator[tuple[Key, int] | None]:
        """The spaces that a weight is contracted with; None where it is read otherwise."""
        for joint, k in self.circuit.readers[side.block.key]:
            theirs = contracted(joint, k, side.slot)
            yield None if theirs is None else (joint.keys[1 - k], theirs)

    def _written_by(self, found: _Stream, side: Side) -> Iterator[tuple[Key, int] | None]:
        """The spaces that a parameter writes; None where it is read otherwise."""
        for joint, k in self.circuit.readers[side.block.key]:
            dual = dual_of(self.circuit, self.unread, self.parameters, side, joint, k)
            if dual is not None:
                found.duals.append(dual)
            else:
                yield passed_on(joint, k, side.slot)

    def _silent(self, key: Key, slot: int) -> Profile | None:
        """A direction in a frame of gains along which a space that is computed has no part."""
        if key in self.circuit.dropped or self.circuit.writer(key) is None:
            return None
        for absence in self.unread.absent[key]:
            profile = absence.profile
            plain = absence.is_zero and not (profile.kernel or profile.transposed)
            known = profile.parameters <= self.parameters.keys()
            if plain and known and absence.strides == (slot,):
                return profile
        return None

    def _weight(self, joint: Joint, k: int, slot: int) -> Side | None:
        """The parameter with which a space is contracted."""
        theirs = contracted(joint, k, slot)
        return None if theirs is None else self._parameter(joint, 1 - k, theirs)

    def _parameter(self, joint: Joint, k: int, slot: int) -> Side | None:
        """A block of a parameter that is read as a whole, with one of its slots."""
        return side_of(self.circuit, self.parameters, joint.inputs[k], slot)


def _hides(pattern: Unseen, slot: int) -> bool:
    """Whether what is constant along a slot, and arbitrary otherwise, is not seen."""
    return not pattern or (pattern.keys() == {slot} and pattern[slot].is_ones)


def _written(stream: _Stream, size: int, parameters: Mapping[str, Tensor]) -> Shift:
    """The finite motion, with z as δ, or δ times the direction in which the rest is silent."""
    spell, z, weight = Speller(), fresh(), 1.0
    text, along, divisor = spell.letter(z), (), ()
    for profile in stream.silent:
        along = tuple(frame_words(profile, parameters, z, 1))
        weight = 1.0 if along else 1.0 / size  # without gains z is δ/n everywhere
        text, size, divisor = spell.letter(fresh()), 1, tuple(map(spell.factor, along))

    def into(letter: Letter) -> tuple[Word, ...]:
        """w, which is 1 but for tables that are read again without another direction."""
        return stream.duals[0].along(parameters, letter) if stream.duals else ()

    divisor = tuple(map(spell.factor, into(z))) or divisor
    terms = []
    for side in stream.writers.values():
        target = fresh()
        terms.append(_term(spell, side, target, z, weight, (*along, *into(target))))
    name = f"{terms[0].target.parameter}.common"
    for side in stream.readers.values():
        read = fresh()
        terms.append(_term(spell, side, z, read, -weight, (*along, *into(read))))
    terms += [term for dual in stream.duals for term in dual.terms(spell, z)]
    family = "a common change that some readers do not see, and the others take back"
    return Shift(name, family, text, (size,), tuple(terms), divisor)


def _term(
    spell: Speller, side: Side, target: Letter, read: Letter, sign: float, along: tuple[Word, ...]
) -> Term:
    """A parameter changes along its slot by what it has along the same slot, summed with z, or by
    z times its sum."""
    spell = spell.apart()
    window, own = side.moving(spell, target, read)
    return Term(window, sign, tuple(map(spell.factor, (own, *along))), divided=sign < 0)

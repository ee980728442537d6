"""Transvections of what linear maps write: x ↦ x + 1 (z·x).

A norm after a sum does not see what all coordinates of x have in common, and other readers of x are
weights. Where x is written by linear maps alone, its writers may add z·x to every coordinate, and
each weight W takes it back: W (1 + 1 zᵀ)⁻¹ = W − (W 1) zᵀ / (1 + Σ z). That is an exact motion for
every z but those with Σ z = −1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from paramsym.primitives import Contract, Lookup, Sum
from paramsym.primitives.blocks import Block
from paramsym.primitives.directions import Unseen
from paramsym.primitives.joint import At, Joint, Key
from paramsym.primitives.tensor import Tensor
from paramsym.primitives.words import Letter, Speller, Word, fresh
from paramsym.structure.shift import Shift, Term
from paramsym.tracing.circuit import Circuit
from paramsym.tracing.subspaces import Unread


@dataclass(frozen=True, eq=False)
class _Side:
    """A block of a parameter, with the slot along which it writes or reads a space."""

    block: Block
    slot: int

    @property
    def name(self) -> str:
        return self.block.tensor.owner.name


def transvections(
    circuit: Circuit, unread: Unread, parameters: Mapping[str, Tensor]
) -> Iterator[tuple[tuple, Shift]]:
    """Every space with writers that are linear, weights that read it, and others that see no
    common change of its coordinates."""
    finder = _Finder(circuit, unread, parameters)
    for joint in circuit.joints if not circuit.layout.coarse else ():
        for slot, size in joint.out.sizes.items():
            found = finder.readers(joint.out.key, slot)
            if found is None or not found.weights or not found.unseeing:
                continue
            writers = finder.writers(joint.out.key, slot)
            sides = [*(writers or ()), *found.weights]
            if writers and len({side.block.key for side in sides}) == len(sides):
                place = writers[0].name, writers[0].block.key[1], "transvection"
                yield place, _written(writers, found.weights, size)


@dataclass
class _Readers:
    """The weights that read a space, and how many readers see no common change of it."""

    weights: list[_Side] = field(default_factory=list)
    unseeing: int = 0


class _Finder:
    """Who writes and who reads a space, one slot of a block."""

    def __init__(self, circuit: Circuit, unread: Unread, parameters: Mapping[str, Tensor]):
        self.circuit, self.unread, self.parameters = circuit, unread, parameters

    def readers(self, key: Key, slot: int) -> _Readers | None:
        """Who reads a space; None if there are others than weights and those that do not see."""
        if self.circuit.is_seen(key) or key in self.circuit.dropped:
            return None
        found = _Readers()
        for joint, k in self.circuit.readers[key]:
            if slot not in joint.whole(k):
                return None
            if any(_hides(pattern, slot) for pattern in self.unread.through(joint, k)):
                found.unseeing += 1
                continue
            weight = self._weight(joint, k, slot)
            beyond = self._copied(joint, k, slot) if weight is None else _Readers([weight])
            if beyond is None:
                return None
            found.weights += beyond.weights
            found.unseeing += beyond.unseeing
        return found

    def _copied(self, joint: Joint, k: int, slot: int) -> _Readers | None:
        """Who reads a copy of a space, or a multiple."""
        there = joint.forward(k).get(slot)
        copied = type(joint.op) is Sum and len(joint.inputs) == 1 and there is not None
        return self.readers(joint.out.key, there) if copied and there is not None else None

    def writers(self, key: Key, slot: int) -> list[_Side] | None:
        """The parameters that write a space, each entry of it linearly; None if others do."""
        joint = self.circuit.writer(key)
        if joint is None or slot not in joint.whole(-1):
            return None
        at = _place_of(joint, -1, slot)
        having = [k for k in range(len(joint.inputs)) if at in joint.slots(k)]
        if type(joint.op) is Sum and len(having) == len(joint.inputs):
            return self._added(joint, at)
        if len(having) != 1 or not (_is_product(joint) or isinstance(joint.op, Lookup)):
            return None
        (k,) = having
        side = self._parameter(joint, k, joint.slots(k)[at])
        return None if side is None else [side]

    def _added(self, joint: Joint, at: At) -> list[_Side] | None:
        """The parameters that write the terms of a sum, none of which anybody else reads."""
        found: list[_Side] = []
        for k, key in enumerate(joint.keys):
            there = joint.slots(k)[at]
            side = self._parameter(joint, k, there)
            below = [side] if side is not None else self.writers(key, there)
            alone = len(self.circuit.readers[key]) == 1 and there in joint.whole(k)
            if below is None or not alone or self.circuit.is_seen(key):
                return None
            found += below
        return found

    def _weight(self, joint: Joint, k: int, slot: int) -> _Side | None:
        """The parameter with which a space is contracted."""
        if not _is_product(joint):
            return None
        at, theirs = _place_of(joint, k, slot), joint.slots(1 - k)
        if at not in theirs or at in joint.slots(-1):
            return None
        return self._parameter(joint, 1 - k, theirs[at])

    def _parameter(self, joint: Joint, k: int, slot: int) -> _Side | None:
        """A block of a parameter that nobody else reads, with one of its slots."""
        block = joint.inputs[k]
        owner = block.tensor.owner
        known = owner.producer is None and owner.name in self.parameters
        alone = len(self.circuit.readers[block.key]) == 1
        whole = all(s in joint.whole(k) for s in block.sizes) and block.start == block.key[1]
        once = len(block.sizes) == len(block.slots)
        if known and alone and whole and once and not self.circuit.is_seen(block.key):
            return _Side(block, slot)
        return None


def _place_of(joint: Joint, k: int, slot: int) -> At:
    """The label and position of a slot of input k, or of the output (−1)."""
    return next(at for at, s in joint.slots(k).items() if s == slot)


def _is_product(joint: Joint) -> bool:
    """Whether a joint is a plain product of two different tensors."""
    op = joint.op
    return type(op) is Contract and op.power == 1 and not op.is_square


def _hides(pattern: Unseen, slot: int) -> bool:
    """Whether what is constant along a slot, and arbitrary otherwise, is not seen."""
    return not pattern or (pattern.keys() == {slot} and pattern[slot].is_ones)


def _written(writers: list[_Side], readers: list[_Side], size: int) -> Shift:
    """The finite motion, with z as δ."""
    spell, z = Speller(), fresh()
    text = spell.letter(z)
    terms = [_term(spell, side, fresh(), z, 1.0) for side in writers]
    terms += [_term(spell, side, z, fresh(), -1.0) for side in readers]
    name = f"{writers[0].name}.common"
    family = "a common change that some readers do not see, and the others take back"
    return Shift(name, family, text, (size,), tuple(terms), ())


def _term(spell: Speller, side: _Side, target: Letter, read: Letter, sign: float) -> Term:
    """A parameter changes along its slot by what it has along the same slot, summed with z, or by
    z times its sum."""
    slots = tuple((s, leaf.size) for _, leaf, s in side.block.slots)
    rest = {s: fresh() for s, _ in slots}
    at, by = (tuple((rest | {side.slot: x})[s] for s, _ in slots) for x in (target, read))
    window = spell.window(side.name, side.block.start, slots, at)
    factor = spell.factor(Word(side.name, side.block.start, slots, by))
    return Term(window, sign, (factor,), divided=sign < 0)

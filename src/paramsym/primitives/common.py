"""What all entries along a slot have in common, seen through a matrix of parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paramsym.primitives.directions import Absence, Unseen
from paramsym.primitives.gains import Frame, power_of
from paramsym.primitives.joint import At, Joint
from paramsym.primitives.words import Offset, Word, fresh


def unseen_along(
    below: list[Unseen], joint: Joint, theirs: Mapping[At, int]
) -> Iterator[tuple[tuple[int, Frame], ...]]:
    """Slots of one factor along which nobody sees of the product what is constant in a frame."""
    places = {s: at for at, s in joint.slots(-1).items() if s in joint.whole(-1)}
    for pattern in below:
        for s, profile in pattern.items() if len(pattern) == 1 else ():
            at = places.get(s) if isinstance(s, int) else None
            if at is not None and at in theirs and not profile.kernel:
                yield ((theirs[at], profile.frame),)


def passed_through(
    absence: Absence, joint: Joint, k: int, stride: int
) -> tuple[Offset, ...] | None:
    """κ of v·W y where vᵀW is a multiple of w, and w·y = κ: the same multiple, spelled by W.

    Of a part b of y, before the gains of its frame, it is Σ v W b. A sum that is known without its
    parts is that of equal ones: w·y is the same for all y.
    """
    block = joint.inputs[k]
    if absence.is_zero:
        return ()
    power = power_of(block.tensor, block=block)
    if power is None or len(block.slots) != 2 or any(o.at for o in absence.offset):
        return None
    slots = tuple((s, leaf.size) for _, leaf, s in block.slots)
    size = dict(slots)[stride]
    found = []
    for o in absence.offset:
        letters = tuple(o.letter if s == stride else fresh() for s, _ in slots)
        (out,) = (x for x in letters if x != o.letter)
        word = Word(power.source.name, block.start, slots, letters)
        gains = (
            Word(name, 0, ((1, size),), (o.letter,), float(n), offset)
            for (name, offset), n in o.frame
        )
        is_spread = any(o.letter in factor.letters for factor in o.factors)
        weight = o.weight if is_spread else o.weight / size
        found.append(Offset(weight, (word, *o.factors, *gains), out))
    return tuple(found)

"""Generalised matrix products, entrywise products among them, and products with masks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from paramsym.primitives.base import Labels, Primitive, Values, carry, kernels, pull, push
from paramsym.primitives.common import passed_through, unseen_along
from paramsym.primitives.directions import (
    ANTISYMMETRIC,
    Absence,
    Unseen,
    joined_size,
    minimal,
    renamed_along,
)
from paramsym.primitives.gains import Frame, Power, combine, gain_of
from paramsym.primitives.index import Node
from paramsym.primitives.joint import At, Joint, Slot
from paramsym.primitives.numbers import spread
from paramsym.primitives.sites import BasisSite, Equation, ScaleSite
from paramsym.primitives.words import Change, Letter


@dataclass(eq=False, kw_only=True)
class Contract(Primitive):
    """out = Σ x · y^power over the labels that the output lacks (an einsum of two tensors)."""

    noun = "a product"
    multiplies = True
    axes: tuple[Labels, Labels, Labels] = ((), (), ())
    power: int = 1

    def labels(self) -> tuple[list[Labels], Labels]:
        return [self.axes[0], self.axes[1]], self.axes[2]

    @property
    def is_square(self) -> bool:
        """Whether both factors are one tensor."""
        return self.inputs[0] is self.inputs[1]

    def scales(self, at: ScaleSite) -> Iterator[Equation]:
        yield ((1, at.parts[0]), (self.power, at.parts[1]), (-1, at.result))

    # -- changes of basis --------------------------------------------------------------------
    def bases(self, at: BasisSite) -> None:
        x, y = at.parts
        if at.label not in self.axes[2]:
            if x is not None and y is not None and self.power == 1:
                at.join(x, y, dual=True)
            else:
                at.hold(f"it is summed at {self.where}")
        elif at.out is None:
            at.hold(f"it is repeated at {self.where}")
        elif x is not None and y is not None:
            self._gain(at, x, y)
        else:
            part = x if x is not None else y
            other = 1 if x is not None else 0
            divisor = self.power == -1 and other == 0
            if part is None or divisor or self._length(other, at.label) > 1:
                at.hold(f"coordinates are multiplied one by one at {self.where}")
            else:
                at.join(part, at.out)

    def _length(self, k: int, label: Any) -> int:
        labels = self.axes[k]
        return self.inputs[k].shape[labels.index(label)] if label in labels else 1

    def _gain(self, at: BasisSite, x: Slot, y: Slot) -> None:
        """An entrywise product with a vector of parameters: a change of frame."""
        for k, part, gain_slot in ((1, x, y), (0, y, x)):
            gain = _gain_along(at.joint, k)
            if gain is None or gain_of(self.inputs[1 - k]) is not None:
                continue
            if self.power == -1 and k == 0:
                continue
            at.join(part, at.out, frame=_raised(gain.frame, self.power if k == 1 else 1))
            at.hold("it is a gain", gain_slot)
            return
        gains = [gain for tensor in self.inputs if (gain := gain_of(tensor)) is not None]
        zeros = ", ".join(f" with zeros of {g.source.name!r}" for g in gains if g.vanishes)
        at.hold(f"coordinates are multiplied one by one{zeros} at {self.where}")

    # -- additive freedom --------------------------------------------------------------------
    def is_total(self, k: int) -> bool:
        return not (self.power == -1 and k == 1)

    def unread(
        self, joint: Joint, k: int, below: list[Unseen], absent: Mapping[Any, list[Absence]]
    ) -> list[Unseen]:
        if self.power == -1 and k == 1:
            return []
        found = [n for e in below if (n := self._pulled(joint, k, e)) is not None]
        if not self.is_square:
            found += self._orthogonal(joint, k, absent.get(joint.keys[1 - k], []))
            found += self._kernels(joint, k, below)
        return minimal(found)

    def _pulled(self, joint: Joint, k: int, pattern: Unseen) -> Unseen | None:
        """One unseen change of the output, seen from a factor."""
        mine, theirs = joint.slots(k), joint.slots(1 - k)
        back = {s: at for at, s in joint.slots(-1).items()}
        rename = {there: here for here, there in joint.forward(k).items()}
        gain = _gain_along(joint, 1 - k)
        new: Unseen = {}
        for s, profile in pattern.items():
            at = back.get(s) if isinstance(s, int) else None
            if at in theirs:  # seen through the entries of the other factor
                if gain is None or at not in mine or profile.kernel:
                    return None
                new[mine[at]] = profile.framed(_raised(gain.frame, self.power))
            elif at in mine:
                new[mine[at]] = profile.renamed(rename)
            elif not profile.is_ones:
                return None
        return new

    def _orthogonal(self, joint: Joint, k: int, absences: list[Absence]) -> list[Unseen]:
        """A change along what the other factor never has adds nothing to the sum."""
        mine, theirs, target = joint.slots(k), joint.slots(1 - k), joint.slots(-1)
        rename = {theirs[at]: mine[at] for at in theirs.keys() & mine.keys()}
        kept = {theirs[at] for at in theirs.keys() & target.keys()}
        free = (rename.keys() - kept) & joint.whole(1 - k)
        once = len({*theirs.values()}) == len(theirs)
        found: list[Unseen] = []
        for absence in absences if self.power == 1 else ():
            if not absence.is_zero or not free.issuperset(absence.strides):
                continue
            profile = absence.profile.inverse().renamed(rename)
            if absence.outer:  # a pattern has one profile for each slot
                if profile.is_ones:
                    found.append({rename[s]: profile for s in absence.strides})
                continue
            here = renamed_along(absence.stride, rename)
            if isinstance(here, int) or (here and once and len({*here}) == 2):
                found.append({here: profile})
        return found

    def _kernels(self, joint: Joint, k: int, below: list[Unseen]) -> list[Unseen]:
        """A change in the kernel of the parameters that it is contracted with, up to what nobody
        sees of the product."""
        if self.power != 1:
            return []
        mine, theirs, target = joint.slots(k), joint.slots(1 - k), joint.slots(-1)
        shared = {theirs[at]: mine[at] for at in theirs if at in mine}
        summed = {s for at, s in theirs.items() if at not in target}
        found: list[Unseen] = [
            {s: p}
            for modulo in unseen_along(below, joint, theirs)
            for s, p in kernels(joint, 1 - k, shared, summed, modulo)
        ]
        return found or [{s: p} for s, p in kernels(joint, 1 - k, shared, summed)]

    def absent(self, joint: Joint, known: list[list[Absence]]) -> list[Absence]:
        found = self._antisymmetric(joint)
        for k in (0, 1):
            if self.power == -1 and k == 1:
                continue
            for absence in known[k]:
                found += self._kept(joint, k, absence)
            found += self._image(joint, k, known[1 - k])
        return found

    def _antisymmetric(self, joint: Joint) -> list[Absence]:
        """What has the same value where two labels are exchanged: x xᵀ has no antisymmetric part.

        Both factors are one block, read alike but for one axis, whose two labels are kept.
        """
        mine, theirs, target = joint.slots(0), joint.slots(1), joint.slots(-1)
        if joint.keys[0] != joint.keys[1] or self.power != 1:
            return []
        if joint.inputs[0].start != joint.inputs[1].start:
            return []
        here, there = ({s: at for at, s in slots.items()} for slots in (mine, theirs))
        if here.keys() != there.keys() or not len(here) == len(mine) == len(theirs):
            return []
        sizes = joint.inputs[0].sizes, joint.inputs[1].sizes
        apart = [s for s in here if here[s] != there[s]]
        if len(apart) != 1 or sizes[0] != sizes[1]:
            return []
        pair = sorted({target[at] for at in (here[apart[0]], there[apart[0]]) if at in target})
        return [Absence((pair[0], pair[1]), ANTISYMMETRIC)] if len(pair) == 2 else []

    def _kept(self, joint: Joint, k: int, absence: Absence) -> list[Absence]:
        """An absence of one factor in the product."""
        mine, theirs = joint.slots(k), joint.slots(1 - k)
        at_of = {s: at for at, s in mine.items()}
        (found,) = push(joint, k, [absence]) or [None]
        if found is None:
            return []
        shared = tuple(theirs[at_of[s]] for s in absence.strides if at_of[s] in theirs)
        if shared:
            gain = _gain_along(joint, 1 - k, joined=bool(absence.outer))
            if gain is None or self.power != 1:
                return []
            if absence.outer and not _spans(absence, shared, gain, joint.inputs[1 - k].sizes):
                return []
            passed = (replace(o, frame=combine(o.frame, gain.frame)) for o in found.offset)
            turned = found.profile.framed(_raised(gain.frame, -1))
            return [replace(found, profile=turned, offset=tuple(passed))]
        total = 1.0 if absence.is_zero else self._total(joint, k, Change(1.0, {}))
        if total is None:
            return []
        offset = tuple(each.scaled(total) for each in found.offset)
        return [replace(found, offset=offset)]

    def _image(self, joint: Joint, k: int, known: list[Absence]) -> list[Absence]:
        """x = W y has no component along the kernel of Wᵀ, which exists if W is tall; where y has
        no component along some w, neither does x along what Wᵀ takes to w."""
        if self.power != 1 or self.is_square:
            return []
        mine, theirs = joint.slots(k), joint.slots(1 - k)
        own = {s for at, s in mine.items() if at not in theirs}
        found: list[Absence] = []
        for absence in known:
            at = next((a for a, s in theirs.items() if (s,) == absence.strides), None)
            told = joint.whole(1 - k).issuperset(absence.strides)
            if told and at in mine and not absence.profile.kernel:
                modulo = ((mine[at], combine((), absence.profile.frame, -1)),)
                for s, p in kernels(joint, k, joint.forward(k), own, modulo):
                    offset = passed_through(absence, joint, k, mine[at])
                    if offset is not None:
                        found.append(Absence(s, p, offset))
        plain = kernels(joint, k, joint.forward(k), own)
        return [*found, *(Absence(s, p, ()) for s, p in plain)]

    # -- known changes -----------------------------------------------------------------------
    def translate(self, joint: Joint, k: int, change: Change, at: Values) -> list[Change] | None:
        other = joint.inputs[1 - k]
        if self.is_square or (self.power == -1 and k == 1):
            return None
        data = at.depends(other.tensor) is None
        if change.atom is None and (total := self._total(joint, k, change)) is not None:
            return carry(joint, k, change, total)
        if data and (change.atom is not None or self.power == -1):
            return None
        pieces = at.value(other)
        if pieces is None or (self.power == -1 and not _is_monomial(pieces)):
            return None
        found = [self._times(joint, k, change, piece) for piece in pieces]
        return None if any(f is None for f in found) else found  # type: ignore[return-value]

    def _times(self, joint: Joint, k: int, change: Change, piece: Change) -> Change | None:
        """The product of a change with one word of the other factor."""
        mine, theirs, target = joint.slots(k), joint.slots(1 - k), joint.slots(-1)
        own, others = change.at, piece.at
        shared = ((mine.get(at, -1), y) for at, y in theirs.items())
        same = {others[y]: own[x] for x, y in shared if x in own and y in others}
        piece = piece.with_fresh_letters(same)
        others = piece.at
        coefficient = change.coefficient * piece.coefficient
        at_out: dict[int, Letter] = {}
        for at in {**mine, **theirs}:
            letter = own.get(mine.get(at, -1), others.get(theirs.get(at, -1)))
            if at in target:
                if letter is not None:
                    at_out[target[at]] = letter
            elif letter is None:  # a sum over what both are constant along
                coefficient *= self._leaf(joint, at).size
        if change.atom and self._sums_alone(joint, k, change):
            return None
        factors = piece.factors
        if self.power == -1:
            coefficient = change.coefficient / piece.coefficient
            factors = tuple(f.inverse() for f in factors)
        atom = change.atom or piece.atom
        return Change(coefficient, at_out, (*change.factors, *factors), atom)

    def _sums_alone(self, joint: Joint, k: int, change: Change) -> bool:
        """Whether data would be summed over a slot along which nothing else varies."""
        inside = change.atom_letters() - change.letters()
        theirs, target = joint.slots(1 - k), joint.slots(-1)
        return any(
            change.at.get(s) in inside and at not in target and at not in theirs
            for at, s in joint.slots(k).items()
        )

    @staticmethod
    def _leaf(joint: Joint, at: At) -> Node:
        return joint.where[at[0]].leaves[at[1]][0]

    def _total(self, joint: Joint, k: int, change: Change) -> float | None:
        """The known sum of the other factor along what is contracted, where δ is constant."""
        mine, theirs = self.axes[k], self.axes[1 - k]
        other = joint.inputs[1 - k].tensor
        summed = [label for label in mine if label not in self.axes[2]]
        if other.total is None or summed != [theirs[other.total[0]]]:
            return None
        rest = [x for x in theirs if x not in self.axes[2] and x not in summed]
        if any(other.shape[theirs.index(x)] > 1 for x in rest):
            return None
        if any(at[0] == summed[0] and s in change.at for at, s in joint.slots(k).items()):
            return None
        return other.total[1] if joint.is_single(1 - k, other.total[0]) else None

    @property
    def has_words(self) -> bool:
        return self.power == 1

    def evaluate(self, *tensors: torch.Tensor) -> torch.Tensor:
        x, y = tensors
        y = y if self.power == 1 else y.reciprocal()
        kind = torch.promote_types(x.dtype, y.dtype)
        x, y = x.to(kind), y.to(kind)
        letters: dict[Any, int] = {}
        xs, ys, zs = ([letters.setdefault(x, len(letters)) for x in ls] for ls in self.axes)
        x, y = spread(x, xs, y, ys), spread(y, ys, x, xs)
        return torch.einsum(x, xs, y, ys, zs).expand(self.out.shape)


@dataclass(eq=False, kw_only=True)
class Mask(Contract):
    """Entries of x where a mask is `keeps`, and `fill`, which carries nothing, elsewhere.

    `hides` says that whatever is filled in disappears in a softmax, so that a change of x that is
    constant along the softmax passes.
    """

    hides: bool = False
    keeps: bool = True
    fill: float = 0.0

    @property
    def is_closed(self) -> bool:
        return False

    def is_total(self, k: int) -> bool:
        return k == 0 or math.isfinite(self.fill)

    def unread(
        self, joint: Joint, k: int, below: list[Unseen], absent: Mapping[Any, list[Absence]]
    ) -> list[Unseen]:
        if k:
            return []
        if self.hides:
            return pull(joint, 0, below)
        return minimal([n for e in below if (n := self._pulled(joint, k, e)) is not None])

    def absent(self, joint: Joint, known: list[list[Absence]]) -> list[Absence]:
        return []

    def translate(self, joint: Joint, k: int, change: Change, at: Values) -> list[Change] | None:
        return carry(joint, k, change) if self.hides and k == 0 else None

    @property
    def has_words(self) -> bool:
        return False

    def evaluate(self, *tensors: torch.Tensor) -> torch.Tensor:
        x, mask = tensors
        where = [self.axes[2].index(label) for label in self.axes[1]]
        spread = mask.permute(sorted(range(mask.ndim), key=lambda k: where[k]))
        shape = [1] * len(self.axes[2])
        for k, at in enumerate(where):
            shape[at] = mask.shape[k]
        kept = spread.reshape(shape).bool() == self.keeps
        return torch.where(kept, x, self.fill).expand(self.out.shape)


def _raised(frame: Frame, power: int) -> Frame:
    return tuple((key, n * power) for key, n in frame)


def _gain_along(joint: Joint, k: int, joined: bool = False) -> Power | None:
    """The vector of parameters that an input is, if its entries are the units of one leaf.

    Several leaves may count them if they are `joined`.
    None for a vector with a zero, since what is seen through it cannot be undone.
    """
    tensor = joint.inputs[k].tensor
    found = gain_of(tensor)
    if found is None or found.vanishes:
        return None
    places = [
        joint.layout.places(node)
        for node, n in zip(tensor.axes, tensor.shape, strict=True)
        if n > 1
    ]
    most = math.inf if joined else 1
    return found if all(len(p) == 1 and len(p[0].leaves) <= most for p in places) else None


def _spans(absence: Absence, slots: tuple[int, ...], gain: Power, sizes: Mapping[int, int]) -> bool:
    """Whether a gain has one entry for each of those of an axis that several leaves count."""
    all_of_them = len(slots) == len(absence.strides)
    return all_of_them and joined_size(slots, sizes) == absence.size == math.prod(gain.source.shape)


def _is_monomial(pieces: list[Change]) -> bool:
    """Whether a value is one product of entries, which can be inverted."""
    if len(pieces) != 1 or pieces[0].atom is not None:
        return False
    return pieces[0].letters() <= set(pieces[0].at.values())

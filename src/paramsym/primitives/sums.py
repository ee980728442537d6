"""Sums and what is like them: copies, choices between operands, concatenations, offsets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from paramsym.primitives.base import Entrywise, Values, carry, pull, push
from paramsym.primitives.blocks import Block
from paramsym.primitives.directions import (
    ANTISYMMETRIC,
    SYMMETRIC,
    Absence,
    Columns,
    Profile,
    Unseen,
    joined_size,
    length_along,
)
from paramsym.primitives.gains import power_of
from paramsym.primitives.joint import Joint
from paramsym.primitives.sites import BasisSite, Equation, ScaleSite
from paramsym.primitives.words import Change, Letter, Offset, Word, fresh
from paramsym.structure.origin import Windows, added


class Additive(Entrywise):
    """Operations that pass a change of one input on, entry by entry, times its weight."""

    def weight(self, k: int) -> float:
        """The coefficient of input k."""
        return 1.0

    def unread(
        self, joint: Joint, k: int, below: list[Unseen], absent: Mapping[Any, list[Absence]]
    ) -> list[Unseen]:
        return pull(joint, k, below)

    def translate(self, joint: Joint, k: int, change: Change, at: Values) -> list[Change] | None:
        return carry(joint, k, change, self.weight(k))


@dataclass(eq=False, kw_only=True)
class Sum(Additive):
    """factor · Σ signsₖ·xₖ with broadcasting; with one input a copy, or a multiple."""

    signs: tuple[float, ...] = (1,)
    factor: float = 1.0

    def weight(self, k: int) -> float:
        return float(self.signs[k] if k < len(self.signs) else 1) * self.factor

    def scales(self, at: ScaleSite) -> Iterator[Equation]:
        for tensor, part in zip(self.inputs, at.parts, strict=True):
            if not tensor.zero:
                yield from at.equal(part)

    def bases(self, at: BasisSite) -> None:
        for part, tensor in zip(at.parts, self.inputs, strict=True):
            if part is not None:
                at.join(part, at.out)
            elif at.out is not None and not tensor.zero:  # a multiple of ones is added
                at.cap(at.out, "ones")

    def unread(
        self, joint: Joint, k: int, below: list[Unseen], absent: Mapping[Any, list[Absence]]
    ) -> list[Unseen]:
        return [*pull(joint, k, below), *self._cancelled(joint)]

    def _cancelled(self, joint: Joint) -> list[Unseen]:
        """x + xᵀ does not see an antisymmetric change of x, and x − xᵀ no symmetric one.

        Each of both summands says so of itself; as both read one block, both are asked.
        """
        pair = _exchanged(joint) if len(joint.inputs) == 2 else None
        signs = self.weight(0), self.weight(1 if pair else 0)
        if pair is None or abs(signs[0]) != abs(signs[1]):
            return []
        return [{pair: ANTISYMMETRIC if signs[0] == signs[1] else SYMMETRIC}]

    def absent(self, joint: Joint, known: list[list[Absence]]) -> list[Absence]:
        terms = [self._term(joint, k, found) for k, found in enumerate(known)]
        total: list[Absence] | None = None
        for found in terms:
            total = (
                found if total is None else [c for a in total for b in found if (c := _add(a, b))]
            )
        found = [a for a in total or [] if a.profile is not ANY]
        found += [z for a in found if (z := _without_offset(a)) is not None]
        return [a for a in found if a.profile.fits(length_along(a.stride, joint.out.sizes))]

    def _term(self, joint: Joint, k: int, known: list[Absence]) -> list[Absence]:
        """What one summand contributes: absences of its own, or a known value along any w."""
        weight = self.weight(k)
        found = [
            replace(a, offset=tuple(o.scaled(weight) for o in a.offset))
            for a in push(joint, k, known)
        ]
        if len(self.inputs) > 1 and not found:
            found = self._bias(joint, k, weight)
        return found

    def _bias(self, joint: Joint, k: int, weight: float) -> list[Absence]:
        """A parameter along one slot moves the sum by a constant, for whatever w."""
        block = joint.inputs[k]
        power = power_of(block.tensor, block=block) if block.tensor.moves else None
        if power is None or power.power != 1 or len({axis for axis, _, _ in block.slots}) != 1:
            return []
        stride, *outer = sorted(stride for _, _, stride in block.slots)
        size = joined_size((stride, *outer), block.sizes)
        if size is None:
            return []
        letter, slot = fresh(), (stride, size)
        word = Word(power.source.name, block.start, (slot,), (letter,), 1.0, power.offset)
        any_ = Absence(stride, ANY, (Offset(weight, (word,), letter),), tuple(outer),
                       size if outer else 0)  # fmt: skip
        found = any_.renamed(joint.forward(k), joint.out.sizes)
        return [] if found is None else [found]

    @property
    def has_words(self) -> bool:
        return True

    def power_step(self, block: Block | None = None) -> tuple[str, float] | None:
        return ("copy", 1.0) if len(self.inputs) == 1 and self.weight(0) == 1 else None

    def evaluate(self, *tensors: torch.Tensor) -> torch.Tensor:
        terms = [x if (w := self.weight(k)) == 1 else w * x for k, x in enumerate(tensors)]
        total = terms[0]  # a copy of integers keeps them
        for term in terms[1:]:
            total = total + term
        return total.expand(self.out.shape)


def _exchanged(joint: Joint) -> tuple[int, int] | None:
    """The two slots of one block that a sum of two reads the other way round the second time."""
    one, other = joint.inputs
    here, there = ({s: at for at, s in joint.slots(k).items()} for k in (0, 1))
    if joint.keys[0] != joint.keys[1] or one.start != other.start or one.sizes != other.sizes:
        return None
    slots = {len(here), *(len(joint.slots(k)) for k in (0, 1))}
    if here.keys() != there.keys() or len(slots) > 1:
        return None
    apart = sorted(s for s in here if here[s] != there[s])
    if len(apart) != 2 or one.sizes[apart[0]] != one.sizes[apart[1]]:
        return None
    first, second = apart
    swapped = (here[first], here[second]) == (there[second], there[first])
    return (first, second) if swapped else None


ANY = Profile(((("any", 0.0), 0.0),))  # of a summand whose product with every w is known


def _without_offset(absence: Absence) -> Absence | None:
    """Of the kernel that an absence speaks of, what is orthogonal to the constant part as well."""
    columns = []
    for offset in absence.offset:
        (word, *rest) = offset.factors or (None,)
        if word is None or rest or offset.at or offset.frame or len(word.slots) != 1:
            return None
        if (word.power, word.offset) != (1, 0):
            return None
        stride = word.slots[0][0]
        columns.append(
            Columns(word.parameter, word.start, word.slots, stride)
        )  # fmt: skip
    profile = absence.profile
    if not profile.kernel or profile.frame or not columns:
        return None
    kernel = tuple(sorted({*profile.kernel, *columns}))
    return replace(absence, profile=replace(profile, kernel=kernel), offset=())


def _add(a: Absence, b: Absence) -> Absence | None:
    """The absence of a sum of two, if w can be the same for both."""
    if (a.strides, a.size) != (b.strides, b.size):
        return None
    if a.profile is ANY or b.profile is ANY:
        profile = b.profile if a.profile is ANY else a.profile
    else:
        profile = a.profile & b.profile
    return None if profile is None else replace(a, profile=profile, offset=(*a.offset, *b.offset))


@dataclass(eq=False, kw_only=True)
class Choice(Entrywise):
    """One of the inputs, entry by entry (maximum, where): homogeneous, but not additive.

    One that is not even `homogeneous` is any other entrywise function of several operands.
    """

    homogeneous: bool = True

    def scales(self, at: ScaleSite) -> Iterator[Equation]:
        if at.signs or not self.homogeneous:
            yield from at.hold()
            return
        for tensor, part in zip(self.inputs, at.parts, strict=True):
            if not tensor.zero:
                yield from at.equal(part)


@dataclass(eq=False, kw_only=True)
class Tie(Entrywise):
    """The state after a step and the state before it: one thing, seen at two times.

    Its numbers are those of one time alone, so that it has no words, and no change is followed.
    """

    @property
    def is_closed(self) -> bool:
        return False

    def scales(self, at: ScaleSite) -> Iterator[Equation]:
        for part in at.parts:
            yield from at.equal(part)

    def bases(self, at: BasisSite) -> None:
        for part in at.parts:
            at.join(part, at.out)


@dataclass(eq=False, kw_only=True)
class Shifted(Additive):
    """A parameter with its origin moved by a constant: the group acts on the sum."""

    constant: float = 0.0

    def scales(self, at: ScaleSite) -> Iterator[Equation]:
        return iter(())

    def bases(self, at: BasisSite) -> None:
        at.hold("a constant is added")

    @property
    def has_words(self) -> bool:
        return True

    @property
    def constant_term(self) -> float:
        return self.constant

    def power_step(self, block: Block | None = None) -> tuple[str, float] | None:
        return "offset", self.constant

    def evaluate(self, *tensors: torch.Tensor) -> torch.Tensor:
        return tensors[0] + self.constant


@dataclass(eq=False, kw_only=True)
class ShiftedWindows(Shifted):
    """A bias or a table with numbers added to windows: the group acts on the sum."""

    windows: Windows

    def bases(self, at: BasisSite) -> None:
        pass  # the sum is what is typed, and the parameter is read nowhere else

    @property
    def constant_term(self) -> float:
        return self.windows.uniform or 0.0

    def constants(self, joint: Joint) -> list[Change] | None:
        number = self._number(joint.out)
        return None if number is None else [Change(number, {})] if number else []

    def _number(self, block: Block) -> float | None:
        """The number of the window in which a block lies; None where it lies in several."""
        at = torch.tensor([block.start - self.out.offset])
        for stride, size in block.sizes.items():
            at = (at[:, None] + torch.arange(size) * stride).reshape(-1)
        numbers = self.windows.numbers()[at % self.windows.period].unique().tolist()
        return numbers[0] if len(numbers) == 1 else None

    def power_step(self, block: Block | None = None) -> tuple[str, float] | None:
        number = self.windows.uniform if block is None else self._number(block)
        return None if number is None else ("offset", number)

    def evaluate(self, *tensors: torch.Tensor) -> torch.Tensor:
        return added(tensors[0], self.windows)


@dataclass(eq=False, kw_only=True)
class ShiftedDiagonal(Shifted):
    """A square parameter with a multiple of the identity added: the group acts on the sum."""

    def bases(self, at: BasisSite) -> None:
        pass  # the sum is what is typed, and the parameter is read nowhere else

    @property
    def constant_term(self) -> float:
        return 0.0

    def constants(self, joint: Joint) -> list[Change] | None:
        """One letter at both axes on the diagonal; nothing in blocks that lie beside it."""
        row, column = joint.out.places
        assert row is not None and column is not None
        if row.stop <= column.start or column.stop <= row.start:
            return []
        if row.start != column.start or row.steps != column.steps:
            return None
        at: dict[int, Letter] = {}
        for position in range(len(row.leaves)):
            letter = fresh()
            at |= {joint.out.stride(axis, position): letter for axis in (0, 1)}
        return [Change(self.constant, at)]

    def power_step(self, block: Block | None = None) -> None:
        return None

    def evaluate(self, *tensors: torch.Tensor) -> torch.Tensor:
        (x,) = tensors
        return x + self.constant * torch.eye(len(x), dtype=x.dtype, device=x.device)


@dataclass(eq=False, kw_only=True)
class Concatenate(Additive):
    """The inputs joined along the axis `dim`."""

    dim: int = 0

    def scales(self, at: ScaleSite) -> Iterator[Equation]:
        if at.joint.inputs[0].tensor.zero:  # zeros beside entries have whatever scale is asked for
            return iter(())
        return at.equal(at.parts[0])

    def bases(self, at: BasisSite) -> None:
        if at.parts[0] is None and not at.joint.inputs[0].tensor.zero:
            at.hold(f"it is repeated at {self.where}")
        at.join(at.parts[0], at.out)

    def absent(self, joint: Joint, known: list[list[Absence]]) -> list[Absence]:
        return push(joint, 0, known[0])

    @property
    def has_words(self) -> bool:
        return True  # a block of the output is one of an input

    def evaluate(self, *tensors: torch.Tensor) -> torch.Tensor:
        return torch.cat(tensors, self.dim)

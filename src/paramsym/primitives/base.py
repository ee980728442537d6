"""What a primitive operation is: one class, with everything that the theory asks of it in one room.

A traced network is lowered to primitives between typed tensors. Every pass asks each primitive the
same few questions and knows nothing else about it:

    labels      which axes of its inputs and output count the same units
    scales      linear equations between the log-scales of its inputs and output, and their signs
    bases       how changes of basis pass: joined, capped by a group, or held
    unread      which changes of an input the output does not show, given those that nobody
                downstream of the output sees
    absent      which directions the output never has, given those that its inputs never have
    translate   what a known additive change of an input adds to the output
    evaluate    what it computes, on real numbers

What a class does not state freezes: the defaults are those of an operator of which nothing is
known, so that a new primitive is sound before it is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch

from paramsym.primitives.blocks import Block
from paramsym.primitives.directions import (
    ONES,
    Absence,
    Columns,
    Profile,
    Unseen,
    joined_size,
    renamed_along,
)
from paramsym.primitives.gains import Frame, power_of
from paramsym.primitives.joint import Joint
from paramsym.primitives.sites import BasisSite, Equation, ScaleSite
from paramsym.primitives.tensor import Tensor
from paramsym.primitives.words import Change, Letter, Offset

Labels = tuple[Any, ...]
NEGLIGIBLE = 1e-9  # an ε below this lets a scale pass a norm: exact up to ε, and said so


class NotComputed(Exception):
    """A primitive that says nothing about numbers, such as that of an unknown operator."""


def untold(*tensors: torch.Tensor) -> torch.Tensor:
    """The `compute` of a primitive whose numbers are drawn at random, or stand for many."""
    raise NotComputed("it computes no one number")


class Values(Protocol):
    """What is known of the values of blocks while a change is followed."""

    def value(self, block: Block) -> list[Change] | None:
        """A block as a sum of words and atoms; None where it has no such form."""
        ...

    def depends(self, tensor: Tensor) -> frozenset[str] | None:
        """The parameters of which a tensor is computed; None where data enters."""
        ...

    def position(self, letter: Letter) -> int | None:
        """The one position that a letter of δ stands for; None if it runs over a slot."""
        ...


@dataclass(eq=False, kw_only=True)
class Primitive:
    """`out` is computed from `inputs`, at `where` in the user's model, by the function `name`.

    `compute`, where a rule gives it, is what the primitive computes on numbers, of the inputs and
    then of `given`: data, such as an index, that no other question is about. The others know.
    """

    out: Tensor
    inputs: tuple[Tensor, ...]
    where: str = ""
    name: str = ""
    compute: Callable[..., torch.Tensor] | None = field(default=None, repr=False)
    given: tuple[Tensor, ...] = ()

    noun: ClassVar[str] = ""  # what a report calls it, where the name says nothing
    multiplies: ClassVar[bool] = False  # changes of two inputs make one that is quadratic in them

    @property
    def title(self) -> str:
        """What a report calls it: the function that the user wrote, if one is known."""
        return self.name or self.noun or f"a {type(self).__name__.lower()}"

    @property
    def is_closed(self) -> bool:
        """Whether the output depends on the inputs alone: on no index that is data, and no mask."""
        return True

    def is_total(self, k: int) -> bool:
        """Whether it has a value whatever input k is: what has none is seen wherever it is read."""
        return True

    # -- which axes count the same units -----------------------------------------------------
    def labels(self) -> tuple[list[Labels], Labels]:
        """Labels of the axes of each input and of the output; equal labels count alike."""
        ins = [tuple(("in", n, k) for k in range(t.ndim)) for n, t in enumerate(self.inputs)]
        return ins, tuple(("new", k) for k in range(self.out.ndim))

    @property
    def combined(self) -> tuple[Any, ...]:
        """Labels of the output along which every entry depends on all of the input's.

        What stands there cannot tell copies of other units apart.
        """
        return ()

    @property
    def common(self) -> tuple[int, ...]:
        """Axes of the only input along which a number that is added to all entries shows nothing.

        Where such an axis was joined, the number is added to all of its pieces.
        """
        return ()

    # -- scales and signs --------------------------------------------------------------------
    def scales(self, at: ScaleSite) -> Iterator[Equation]:
        """Combinations of the log-scales (or signs) of a site that have to vanish."""
        return at.hold()

    # -- changes of basis --------------------------------------------------------------------
    def bases(self, at: BasisSite) -> None:
        """Join, cap or hold the changes of basis of one leaf at one label."""
        at.hold(f"{self.title} acts on each coordinate at {self.where}")

    # -- additive freedom --------------------------------------------------------------------
    def unread(
        self, joint: Joint, k: int, below: list[Unseen], absent: Mapping[Any, list[Absence]]
    ) -> list[Unseen]:
        """Changes of input k that the output does not show, or shows only where nobody looks.

        `below` are those that nobody downstream of the output sees; `absent` says by block what
        is never there.
        """
        return []

    def absent(self, joint: Joint, known: list[list[Absence]]) -> list[Absence]:
        """Directions that the output never has, from those that its inputs never have."""
        return []

    def translate(self, joint: Joint, k: int, change: Change, at: Values) -> list[Change] | None:
        """The changes of the output that an additive change of input k makes; None refuses."""
        return None

    @property
    def has_words(self) -> bool:
        """Whether the output is a sum of products, so that words describe its value."""
        return False

    @property
    def constant_term(self) -> float:
        """A number that is added to every entry."""
        return 0.0

    def constants(self, joint: Joint) -> list[Change] | None:
        """The words of what is added to a block of the input; None where it has no words."""
        return [Change(self.constant_term, {})] if self.constant_term else []

    def power_step(self, block: Block | None = None) -> tuple[str, float] | None:
        """("copy", 1), ("power", n) or ("offset", c) for entrywise powers of shifted copies.

        With a block, what is so there; the whole tensor without.
        """
        return None

    # -- numbers -----------------------------------------------------------------------------
    def run(self, *tensors: torch.Tensor) -> torch.Tensor:
        """The output on numbers, by `compute` where a rule gives it.

        Raises `NotComputed` where nothing is known of it.
        """
        return (self.compute or self.evaluate)(*tensors)

    def evaluate(self, *tensors: torch.Tensor) -> torch.Tensor:
        """The output, computed from the numbers of the inputs and of what else is `given`."""
        raise NotComputed(self.title)


class Entrywise(Primitive):
    """Operations with broadcasting: axes are matched from the last one on."""

    def labels(self) -> tuple[list[Labels], Labels]:
        n = self.out.ndim
        return [tuple(range(n - t.ndim, n)) for t in self.inputs], tuple(range(n))


# -- what several primitives share ---------------------------------------------------------------


def pull(
    joint: Joint, k: int, below: list[Unseen], lost: Set[int] = frozenset(),
    flat: Unseen | None = None,
) -> list[Unseen]:  # fmt: skip
    """Unseen changes of the output of a linear map that renames slots, seen from input k.

    A slot of the output that the input lacks sees the input constant. What is constant along one
    of the slots `lost`, where the output shows other entries, is unseen if the input is `flat`.
    """
    kept = {there: here for here, there in joint.forward(k).items() if there not in lost}
    found = []
    for pattern in below:
        there = {s: renamed_along(s, kept) for s in pattern}
        new = {here: pattern[s].renamed(kept) for s, here in there.items() if here is not None}
        rest = {s for s, here in there.items() if here is None}
        along = flat if rest & lost else {}
        if along is not None and all(pattern[s].is_ones for s in rest):
            found.append(new | along)
    return found


def flat_along(joint: Joint, k: int, dims: Collection[Any]) -> Unseen | None:
    """Constancy along whole axes of input k; None where a block is only a part of one."""
    if not all(joint.is_single(k, d) for d in dims):
        return None
    return {s: ONES for at, s in joint.slots(k).items() if at[0] in dims}


def centred(joint: Joint, dims: tuple[int, ...]) -> list[Unseen]:
    """What is constant along the axes that are centred does not show."""
    flat = flat_along(joint, 0, dims)
    return [] if flat is None else [flat]


def known_sum(joint: Joint, dims: tuple[int, ...], offset: tuple[Offset, ...]) -> list[Absence]:
    """The entries of the output along one axis sum to a known number."""
    place = joint.out.places[dims[0]] if len(dims) == 1 else None
    if place is None or not place.leaves or not joint.is_single(-1, dims[0]):
        return []
    inner, *outer = sorted(joint.out.stride(dims[0], n) for n in range(len(place.leaves)))
    if not outer:
        return [Absence(inner, ONES, offset)]
    size = joined_size((inner, *outer), joint.out.sizes)
    if size is None or any(o.factors for o in offset):  # the letter of a part counts one leaf
        return []
    return [Absence(inner, ONES, offset, tuple(outer), size)]


def carry(joint: Joint, k: int, change: Change, by: float = 1.0) -> list[Change] | None:
    """A change that a linear map passes on slot by slot; None if it varies along a lost slot."""
    forward = joint.forward(k)
    if not change.at.keys() <= forward.keys():
        return None
    return [change.moved({forward[s]: x for s, x in change.at.items()}, by)]


def push(joint: Joint, k: int, absences: list[Absence]) -> list[Absence]:
    """Absences of input k whose slots the output has as well, there."""
    forward, sizes = joint.forward(k), joint.out.sizes
    whole = (a for a in absences if joint.whole(k).issuperset(a.strides))
    return [found for a in whole if (found := a.renamed(forward, sizes)) is not None]


def are_gains(frame: Frame) -> bool:
    """Whether a frame is a product of parameters as they are."""
    return all(power == 1 and not offset for (_, offset), power in frame)


def kernels(
    joint: Joint, k: int, shared: Mapping[int, int], along: Collection[int],
    modulo: tuple[tuple[int, Frame], ...] = (),
) -> Iterator[tuple[int, Profile]]:  # fmt: skip
    """Slots along which the parameter that input k is has to have a kernel, with these kernels.

    `shared` leads from slots of the parameter to those of another block, where the kernels are:
    along each of `along` there is one, for every unit of the other shared slots, if the columns,
    which all further slots index, are fewer than the units. `modulo` names a slot of columns that
    need only agree along it, in a frame of gains.
    """
    block = joint.inputs[k]
    power = power_of(block.tensor, block=block) if block.tensor.moves else None
    told = all(s in joint.whole(k) and s not in shared and are_gains(f) for s, f in modulo)
    if power is None or (power.power, power.offset) != (1, 0) or not told:
        return
    slots = tuple((s, leaf.size) for _, leaf, s in block.slots)
    for stride, target in shared.items():
        if stride in along and stride in joint.whole(k):
            batch = tuple(sorted((s, t) for s, t in shared.items() if s != stride))
            columns = Columns(power.source.name, block.start, slots, stride, batch, modulo)
            if columns.count < dict(slots)[stride]:
                yield target, Profile(kernel=(columns,))

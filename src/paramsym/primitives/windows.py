"""Fixed maps along axes: windows, pooling, lookups, rotations of pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from paramsym.primitives import index as ix
from paramsym.primitives.base import (
    Entrywise,
    Labels,
    Primitive,
    Values,
    carry,
    flat_along,
    kernels,
    pull,
    push,
)
from paramsym.primitives.directions import Absence, Unseen, minimal
from paramsym.primitives.index import Node
from paramsym.primitives.joint import Joint
from paramsym.primitives.sites import BasisSite, Equation, ScaleSite
from paramsym.primitives.tensor import Tensor
from paramsym.primitives.words import Atom, Change, Letter, fresh


@dataclass(eq=False, kw_only=True)
class Along(Primitive):
    """A map along the axes `dims`, which are replaced by others and frozen; the others pass."""

    dims: tuple[int, ...] = ()

    @property
    def is_closed(self) -> bool:
        return False

    @property
    def is_linear(self) -> bool:
        """Whether sums pass."""
        return True

    @property
    def is_mean(self) -> bool:
        """Whether it is linear and constants pass."""
        return True

    @property
    def passes_constants(self) -> bool:
        """Whether what is added to all entries along the axes is added to each result."""
        return self.is_mean

    def scales(self, at: ScaleSite) -> Iterator[Equation]:
        """A scale passes that does not vary along an axis that is replaced, or along a new one."""
        return at.unless(
            bool(at.inside & {*self.dims}) or any(isinstance(k, tuple) for k in at.inside)
        )

    def bases(self, at: BasisSite) -> None:
        (x,) = at.parts
        if not self.is_linear or x is None or at.out is None:
            at.hold(f"coordinates are treated one by one at {self.where}")
        else:
            at.join(x, at.out)

    def unread(
        self, joint: Joint, k: int, below: list[Unseen], absent: Mapping[Any, list[Absence]]
    ) -> list[Unseen]:
        if not self.is_linear:
            return []
        new = {s for at, s in joint.slots(-1).items() if isinstance(at[0], tuple)}
        return pull(joint, k, below, new, flat_along(joint, k, self.dims) if self.is_mean else None)

    def translate(self, joint: Joint, k: int, change: Change, at: Values) -> list[Change] | None:
        passes = self.passes_constants and change.atom is None
        flat = flat_along(joint, k, self.dims) if passes else None
        if flat is None or flat.keys() & change.at.keys():
            return None
        return carry(joint, k, change)


@dataclass(eq=False, kw_only=True)
class Mix(Along):
    """A fixed map along axes.

    `how` is "linear", "mean" (the weights sum to one everywhere), "max" (homogeneous) or "other".
    Along the axes `stays`, which are some of `dims`, the map is another one at each place, and
    reads what is there alone.
    """

    how: str = "linear"
    stays: tuple[int, ...] = ()
    lifts: bool = False  # of a maximum: what is added to all entries is added to each result

    def is_total(self, k: int) -> bool:
        return self.is_linear or self.lifts  # a root of a sum has no value below zero

    def labels(self) -> tuple[list[Labels], Labels]:
        x = self.inputs[0]
        outs = tuple(
            ("new", k) if k in self.dims or k >= x.ndim else k for k in range(self.out.ndim)
        )
        return [tuple(range(x.ndim))], outs

    def scales(self, at: ScaleSite) -> Iterator[Equation]:
        if self.how == "other" or (self.how == "max" and at.signs):
            return at.hold()
        return super().scales(at)

    @property
    def is_linear(self) -> bool:
        return self.how in ("linear", "mean")

    @property
    def is_mean(self) -> bool:
        return self.how == "mean"

    @property
    def passes_constants(self) -> bool:
        return self.is_mean or (self.how == "max" and self.lifts)

    def unread(
        self, joint: Joint, k: int, below: list[Unseen], absent: Mapping[Any, list[Absence]]
    ) -> list[Unseen]:
        """What is constant where entries are chosen, and arbitrary along the axes that stay."""
        found = super().unread(joint, k, below, absent)
        if not (self.stays and self.is_mean):
            return found
        new = {s: at[0] for at, s in joint.slots(-1).items() if isinstance(at[0], tuple)}
        apart = {s for s, label in new.items() if label[1] in self.stays}
        chosen = [d for d in self.dims if d not in self.stays]
        patterns = [pattern for pattern in below if not pattern.keys() & apart]
        return minimal([*found, *pull(joint, k, patterns, {*new}, flat_along(joint, k, chosen))])

    def absent(self, joint: Joint, known: list[list[Absence]]) -> list[Absence]:
        if not self.is_linear:
            return []
        return [a for a in push(joint, 0, known[0]) if a.is_zero or self.is_mean]


@dataclass(frozen=True)
class Mark:
    """The places at which an input, given by the id of its value, has one number."""

    data: int
    number: int


@dataclass(eq=False, kw_only=True)
class Lookup(Along):
    """Rows of a table chosen by data: `dims` are replaced, at `at`, by `count` index axes.

    What is `given` are the positions along each of `dims`. `read` is the id of the input whose
    numbers they are; `apart` is a position that is read at the places of a mark, and nowhere else;
    `row` is one that is read everywhere, whatever the inputs are.
    """

    at: int = 0
    count: int = 0
    index: Tensor | None = None
    read: int | None = None
    apart: tuple[int, Mark] | None = None
    row: int | None = None

    @property
    def is_closed(self) -> bool:
        return self.row is not None

    @property
    def has_words(self) -> bool:
        return self.row is not None

    def labels(self) -> tuple[list[Labels], Labels]:
        x = self.inputs[0]
        kept = [k for k in range(x.ndim) if k not in self.dims]
        fresh = [("new", k) for k in range(self.count)]
        return [tuple(range(x.ndim))], (*kept[: self.at], *fresh, *kept[self.at :])

    def mark_of(self, position: int) -> Mark | None:
        """The places at which one row is read, if they are the places of a mark."""
        if self.read is not None:
            return Mark(self.read, position)
        return self.apart[1] if self.apart is not None and self.apart[0] == position else None

    def translate(self, joint: Joint, k: int, change: Change, at: Values) -> list[Change] | None:
        """What is added to one row is added at the places of its mark."""
        rows = [s for place, s in joint.slots(k).items() if place[0] in self.dims]
        if len(rows) != 1 or rows[0] not in change.at or not joint.is_single(k, self.dims[0]):
            return super().translate(joint, k, change, at)
        letter, forward = change.at[rows[0]], joint.forward(k)
        if self.row is not None and (word := _in_row(change, letter, self.row)) is not None:
            return carry(joint, k, word)
        position = at.position(letter)
        mark = None if position is None else self.mark_of(position)
        if mark is None or change.atom is not None or letter in change.letters():
            return None
        kept = {forward[s]: x for s, x in change.at.items() if s != rows[0]}
        return [_masked(mark, joint, replace(change, at=kept))]

    def absent(self, joint: Joint, known: list[list[Absence]]) -> list[Absence]:
        """Fewer rows than coordinates span no more than themselves."""
        shared = joint.forward(0) if flat_along(joint, 0, self.dims) is not None else {}
        rows = [Absence(s, p, ()) for s, p in kernels(joint, 0, shared, shared)]
        return [*push(joint, 0, known[0]), *rows]

    def evaluate(self, *tensors: torch.Tensor) -> torch.Tensor:
        if len(tensors) != 1 + len(self.dims):
            return super().evaluate(*tensors)
        table, *positions = tensors
        return table[(*[slice(None)] * self.at, *(p.long() for p in positions))]


def _in_row(change: Change, letter: Letter, row: int) -> Change | None:
    """A change in one row of a table, which a parameter names; None where something else does."""
    naming = [word for word in change.factors if letter in word.letters]
    if len(naming) != 1 or naming[0].kernel or letter in change.atom_letters():
        return None
    at = {s: x for s, x in change.at.items() if x != letter}
    factors = tuple(w.at(letter, row) if w is naming[0] else w for w in change.factors)
    return replace(change, at=at, factors=factors)


def _masked(mark: Mark, joint: Joint, change: Change) -> Change:
    """A change at the places of a mark alone, which index axes tell, block by block."""
    target = joint.slots(-1)
    new = {p: fresh() for p in sorted(p for p in target if isinstance(p[0], tuple))}
    axes = zip(joint.labels[-1], joint.out.places, strict=True)
    starts = (p.start for label, p in axes if isinstance(label, tuple) and p is not None)
    atom = Atom((-1 - mark.data, mark.number, *starts), tuple(enumerate(new.values())))
    at = {**change.at, **{target[p]: x for p, x in new.items()}}
    return replace(change, at=at, atom=atom)


@dataclass(eq=False, kw_only=True)
class Rotate(Entrywise):
    """Pairs of coordinates along `dim` turned by angles that depend on the axes `varies`.

    `pair` is the leaf that counts the two members of a pair. Where others read one member alone it
    is no leaf any more: then the axis is one thing, none of whose parts says anything by itself.
    """

    noun = "a rotation of pairs"
    dim: int = 0
    pair: Node
    varies: tuple[int, ...] = ()

    @property
    def is_closed(self) -> bool:
        return False

    @property
    def combined(self) -> tuple[Any, ...]:
        return () if self._is_whole else (self.dim,)

    @property
    def _is_whole(self) -> bool:
        """Whether everybody reads both members of a pair."""
        return ix.resolve(self.pair).kind == "leaf"

    def scales(self, at: ScaleSite) -> Iterator[Equation]:
        pair, whole = ix.resolve(self.pair), self._is_whole
        along = [leaf for label, _, leaf in at.places if label == self.dim]
        yield from at.unless(any(leaf is pair or not whole for leaf in along))
        if not whole:
            yield from at.alike()

    def bases(self, at: BasisSite) -> None:
        (x,) = at.parts
        if x is None or at.out is None:
            return at.hold(f"it is repeated at {self.where}")
        if at.label == self.dim and not self._is_whole:
            return at.hold(f"one member of a pair is read alone behind {self.where}")
        at.join(x, at.out)
        if at.leaf is ix.resolve(self.pair) and at.label == self.dim:
            at.cap(at.out, "complex")

    def unread(
        self, joint: Joint, k: int, below: list[Unseen], absent: Mapping[Any, list[Absence]]
    ) -> list[Unseen]:
        turned = {s for at, s in joint.slots(-1).items() if at[0] in (self.dim, *self.varies)}
        return pull(joint, k, below, turned)

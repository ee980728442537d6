"""Fixed maps along axes: windows, pooling, lookups, rotations of pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from paramsym.tracing import index as ix
from paramsym.tracing.directions import Absence, Columns, Profile, Unseen
from paramsym.tracing.gains import power_of
from paramsym.tracing.index import Node
from paramsym.tracing.joint import At, Joint
from paramsym.tracing.primitives.base import (
    Entrywise,
    Labels,
    Primitive,
    Values,
    carry,
    is_flat,
    pull,
    push,
)
from paramsym.tracing.sites import BasisSite, Equation, ScaleSite
from paramsym.tracing.tensor import Tensor
from paramsym.tracing.words import Change


def _new(joint: Joint) -> set[At]:
    """The slots of the output along axes that the input does not have."""
    return {at for at in joint.slots(-1) if isinstance(at[0], tuple)}


def _along(at: ScaleSite, dims: tuple[int, ...]) -> bool:
    """Whether a scale varies along an axis that the map replaces, or along a new one."""
    return bool(at.inside & set(dims)) or any(isinstance(k, tuple) for k in at.inside)


@dataclass(eq=False, kw_only=True)
class Mix(Primitive):
    """A fixed map along the axes `dims`, which are frozen; the others pass.

    `how` is "linear", "mean" (the weights sum to one everywhere), "max" (homogeneous) or "other".
    """

    dims: tuple[int, ...] = ()
    how: str = "linear"

    def labels(self) -> tuple[list[Labels], Labels]:
        x = self.inputs[0]
        outs = tuple(
            ("new", k) if k in self.dims or k >= x.ndim else k for k in range(self.out.ndim)
        )
        return [tuple(range(x.ndim))], outs

    def scales(self, at: ScaleSite) -> Iterator[Equation]:
        signed = self.how == "max" and at.signs
        return at.unless(signed or self.how == "other" or _along(at, self.dims))

    @property
    def is_linear(self) -> bool:
        """Whether sums pass."""
        return self.how in ("linear", "mean")

    def bases(self, at: BasisSite) -> None:
        (x,) = at.parts
        if not self.is_linear or x is None or at.out is None:
            at.hold(f"coordinates are treated one by one at {self.where}")
        else:
            at.join(x, at.out)

    @property
    def is_closed(self) -> bool:
        return False

    def unread(
        self, joint: Joint, k: int, below: list[Unseen], absent: Mapping[Any, list[Absence]]
    ) -> list[Unseen]:
        if not self.is_linear:
            return []
        flat = self.dims if self.how == "mean" else None
        return pull(joint, k, below, flat, _new(joint))

    def absent(self, joint: Joint, known: list[list[Absence]]) -> list[Absence]:
        if not self.is_linear:
            return []
        return [a for a in push(joint, 0, known[0]) if a.is_zero or self.how == "mean"]

    def translate(self, joint: Joint, k: int, change: Change, at: Values) -> list[Change] | None:
        flat = self.how == "mean" and change.atom is None and is_flat(joint, k, self.dims, change)
        return carry(joint, k, change) if flat else None


@dataclass(eq=False, kw_only=True)
class Lookup(Primitive):
    """Rows of a table chosen by data: `dims` are replaced, at `at`, by `count` index axes.

    What is `given` are the positions along each of `dims`.
    """

    dims: tuple[int, ...] = ()
    at: int = 0
    count: int = 0
    index: Tensor | None = None

    def labels(self) -> tuple[list[Labels], Labels]:
        x = self.inputs[0]
        kept = [k for k in range(x.ndim) if k not in self.dims]
        fresh = [("new", k) for k in range(self.count)]
        return [tuple(range(x.ndim))], (*kept[: self.at], *fresh, *kept[self.at :])

    def scales(self, at: ScaleSite) -> Iterator[Equation]:
        return at.unless(_along(at, self.dims))

    def bases(self, at: BasisSite) -> None:
        (x,) = at.parts
        if x is None or at.out is None:
            at.hold(f"coordinates are treated one by one at {self.where}")
        else:
            at.join(x, at.out)

    @property
    def is_closed(self) -> bool:
        return False

    def unread(
        self, joint: Joint, k: int, below: list[Unseen], absent: Mapping[Any, list[Absence]]
    ) -> list[Unseen]:
        return pull(joint, k, below, self.dims, _new(joint))

    def absent(self, joint: Joint, known: list[list[Absence]]) -> list[Absence]:
        return [*push(joint, 0, known[0]), *self._rows(joint)]

    def _rows(self, joint: Joint) -> list[Absence]:
        """Fewer rows than coordinates span no more than themselves."""
        block = joint.inputs[0]
        power = power_of(block.tensor) if block.tensor.moves else None
        if power is None or (power.power, power.offset) != (1, 0):
            return []
        if not all(joint.is_single(0, d) for d in self.dims):
            return []
        slots = tuple((s, leaf.size) for _, leaf, s in block.slots)
        forward, sizes = joint.forward(0), dict(slots)
        found = []
        for stride, target in forward.items():
            batch = tuple(sorted((s, t) for s, t in forward.items() if s != stride))
            columns = Columns(
                power.source.name, block.start, slots, stride, batch
            )  # fmt: skip
            if columns.count < sizes[stride] and joint.is_whole(0, stride):
                found.append(Absence(target, Profile(kernel=(columns,)), ()))
        return found

    def translate(self, joint: Joint, k: int, change: Change, at: Values) -> list[Change] | None:
        flat = change.atom is None and is_flat(joint, k, self.dims, change)
        return carry(joint, k, change) if flat else None

    def evaluate(self, *tensors: torch.Tensor) -> torch.Tensor:
        if self.compute is not None or len(tensors) != 1 + len(self.dims):
            return super().evaluate(*tensors)
        table, *positions = tensors
        return table[(*[slice(None)] * self.at, *(p.long() for p in positions))]


@dataclass(eq=False, kw_only=True)
class Rotate(Entrywise):
    """Pairs of coordinates along `dim` turned by angles that depend on the axes `varies`.

    `pair` is the leaf that counts the two members of a pair.
    """

    dim: int = 0
    pair: Node
    varies: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        return "a rotation of pairs"

    def scales(self, at: ScaleSite) -> Iterator[Equation]:
        pair = ix.resolve(self.pair)
        return at.unless(any(lb == self.dim and leaf is pair for lb, _, leaf in at.places))

    def bases(self, at: BasisSite) -> None:
        (x,) = at.parts
        if x is not None and at.out is not None:
            at.join(x, at.out)
            if at.leaf is ix.resolve(self.pair) and at.label == self.dim:
                at.cap(at.out, "complex")
        else:
            at.hold(f"it is repeated at {self.where}")

    @property
    def is_closed(self) -> bool:
        return False

    def unread(
        self, joint: Joint, k: int, below: list[Unseen], absent: Mapping[Any, list[Absence]]
    ) -> list[Unseen]:
        turned = {at for at in joint.slots(-1) if at[0] in (self.dim, *self.varies)}
        return pull(joint, k, below, None, turned)

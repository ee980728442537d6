"""Reductions over axes, norms and softmax."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from paramsym.primitives.base import (
    NEGLIGIBLE,
    Entrywise,
    Labels,
    Primitive,
    Values,
    carry,
    centred,
    flat_along,
    known_sum,
    pull,
    push,
)
from paramsym.primitives.directions import Absence, Unseen, length_along, slots_of
from paramsym.primitives.joint import Joint
from paramsym.primitives.sites import BasisSite, Equation, ScaleSite
from paramsym.primitives.words import Change

MET = 1e-6  # a least norm below it is never met


@dataclass(eq=False, kw_only=True)
class Reduce(Primitive):
    """A symmetric function over the axes `dims`.

    `how` is "sum", "mean", "max" (homogeneous), "norm2" (`weight` times the sum of squares) or
    "other".
    """

    dims: tuple[int, ...] = ()
    how: str = "sum"
    weight: float = 1.0

    @property
    def title(self) -> str:
        return self.name or f"a {self.how}"

    @property
    def is_linear(self) -> bool:
        """Whether it is a sum or a mean."""
        return self.how in ("sum", "mean")

    def labels(self) -> tuple[list[Labels], Labels]:
        x = self.inputs[0]
        if self.out.ndim == x.ndim:
            outs = tuple(("one", k) if k in self.dims else k for k in range(x.ndim))
        else:
            outs = tuple(k for k in range(x.ndim) if k not in self.dims)
        return [tuple(range(x.ndim))], outs

    def scales(self, at: ScaleSite) -> Iterator[Equation]:
        x = at.parts[0]
        if at.inside & set(self.dims) and (self.how != "norm2" or not at.signs):
            yield from at.hold(x)
        elif self.how == "other" or (self.how == "max" and at.signs):
            yield from at.hold()
        elif self.how == "norm2":
            yield from at.equal(None) if at.signs else at.equal(x, 2)
        else:
            yield from at.equal(x)

    def bases(self, at: BasisSite) -> None:
        (x,) = at.parts
        if at.label in self.dims:
            if self.is_linear:
                at.cap(x, "ones")
            elif self.how == "norm2":
                at.cap(x, "orthogonal")
            else:
                at.hold(f"coordinates are compared at {self.where}")
        elif not self.is_linear or x is None or at.out is None:
            at.hold(f"coordinates are treated one by one at {self.where}")
        else:
            at.join(x, at.out)

    def unread(
        self, joint: Joint, k: int, below: list[Unseen], absent: Mapping[Any, list[Absence]]
    ) -> list[Unseen]:
        return pull(joint, k, below) if self.is_linear else []

    def absent(self, joint: Joint, known: list[list[Absence]]) -> list[Absence]:
        if not self.is_linear:
            return []
        found = push(joint, 0, known[0])
        return [a for a in found if a.is_zero or self.how == "mean"]

    def translate(self, joint: Joint, k: int, change: Change, at: Values) -> list[Change] | None:
        if self.how == "max":  # what is added to all entries is added to the largest
            flat = flat_along(joint, k, self.dims) if change.atom is None else None
            return (
                None if flat is None or flat.keys() & change.at.keys() else carry(joint, k, change)
            )
        if not self.is_linear:
            return None
        block, forward, weight = joint.inputs[k], joint.forward(k), 1.0
        for d in self.dims:  # a joined axis counts piece by piece
            place = block.places[d]
            for leaf, step in place.leaves if place else ():
                weight *= 1 if step * block.tensor.strides[d] in change.at else leaf.size
            weight /= block.tensor.shape[d] if self.how == "mean" else 1
        return [change.moved({forward[s]: x for s, x in change.at.items() if s in forward}, weight)]

    @property
    def has_words(self) -> bool:
        return self.is_linear

    def evaluate(self, *tensors: torch.Tensor) -> torch.Tensor:
        if self.how not in ("sum", "mean", "norm2"):
            return super().evaluate(*tensors)
        x = self.weight * tensors[0].abs().square() if self.how == "norm2" else tensors[0]
        keep = self.out.ndim == tensors[0].ndim
        if not self.dims:
            return x
        return x.mean(self.dims, keep) if self.how == "mean" else x.sum(self.dims, keep)


@dataclass(eq=False, kw_only=True)
class Center(Entrywise):
    """x − mean(x) over the axes `dims`: what is constant along them disappears."""

    noun = "a centring"
    dims: tuple[int, ...] = ()

    @property
    def combined(self) -> tuple[Any, ...]:
        return self.dims

    @property
    def common(self) -> tuple[int, ...]:
        return self.dims

    def scales(self, at: ScaleSite) -> Iterator[Equation]:
        yield from at.unless(bool(at.inside & set(self.dims)))
        yield from at.alike()

    def bases(self, at: BasisSite) -> None:
        (x,) = at.parts
        if x is None or at.out is None:
            return at.hold(f"coordinates are treated one by one at {self.where}")
        at.join(x, at.out)
        if at.label in self.dims:
            at.cap(at.out, "ones")

    def unread(
        self, joint: Joint, k: int, below: list[Unseen], absent: Mapping[Any, list[Absence]]
    ) -> list[Unseen]:
        inside, sizes = self._inside(joint), joint.inputs[k].sizes
        found = centred(joint, self.common)
        for pattern in pull(joint, k, below):
            if any(inside.intersection(slots_of(s)) for s in pattern):
                continue
            # a change that each unit inside hides by itself is not hidden in their mean
            alike = {s: profile.untied(inside) for s, profile in pattern.items()}
            if all(profile.fits(length_along(s, sizes)) for s, profile in alike.items()):
                found.append(alike)
        return found

    def absent(self, joint: Joint, known: list[list[Absence]]) -> list[Absence]:
        inside, sizes = self._inside(joint), joint.out.sizes
        kept = [
            replace(a, profile=a.profile.untied(inside)) for a in known[0]
            if a.is_zero and not inside.intersection(a.strides)
        ]  # fmt: skip
        fits = (a for a in push(joint, 0, kept) if a.profile.fits(length_along(a.stride, sizes)))
        return [*known_sum(joint, self.dims, ()), *fits]

    def translate(self, joint: Joint, k: int, change: Change, at: Values) -> list[Change] | None:
        inside = self._inside(joint)
        passed = carry(joint, k, change)
        if passed is not None and not change.at.keys() & inside:
            return []
        if passed is None or change.atom is not None:
            return None
        sizes = joint.inputs[k].sizes
        share = math.prod(1 / sizes[s] for s in change.at.keys() & inside)
        rest = {s: x for s, x in change.at.items() if s not in inside}
        return passed + (carry(joint, k, change.moved(rest, -share)) or [])

    def _inside(self, joint: Joint) -> set[int]:
        """The slots of the input along which the mean is taken."""
        return {s for at, s in joint.slots(0).items() if at[0] in self.dims}

    @property
    def has_words(self) -> bool:
        return True

    def evaluate(self, *tensors: torch.Tensor) -> torch.Tensor:
        return tensors[0] - tensors[0].mean(self.dims, True)


@dataclass(eq=False, kw_only=True)
class Normalize(Entrywise):
    """(x − mean, if `center`) / √(mean square + ε) over the axes `dims`.

    Without `mean` the sum of squares takes the place of their mean; the root is at least `floor`.
    """

    noun = "a norm"
    dims: tuple[int, ...] = ()
    center: bool = False
    epsilon: float = 0.0
    mean: bool = True
    floor: float = 0.0

    @property
    def combined(self) -> tuple[Any, ...]:
        return self.dims

    @property
    def common(self) -> tuple[int, ...]:
        return self.dims if self.center else ()

    def scales(self, at: ScaleSite) -> Iterator[Equation]:
        along = bool(at.inside & set(self.dims))
        if at.signs:  # those of one piece alone would change the mean
            yield from at.unless(self.center and along)
            yield from at.alike() if self.center else ()
        elif self.epsilon > NEGLIGIBLE or self.floor > MET or along:
            yield from at.hold()
        else:
            if at.result is not None:
                yield from at.hold(at.result)
            yield from at.alike()

    def bases(self, at: BasisSite) -> None:
        (x,) = at.parts
        if at.label in self.dims and x is not None and at.out is not None:
            at.join(x, at.out)
            at.cap(at.out, "orthogonal")
            if self.center:
                at.cap(at.out, "ones")
        else:
            at.hold(f"each coordinate is normalised by itself at {self.where}")

    def is_total(self, k: int) -> bool:
        return self.epsilon > 0 or self.floor > 0  # units that are all zero have no length

    def unread(
        self, joint: Joint, k: int, below: list[Unseen], absent: Mapping[Any, list[Absence]]
    ) -> list[Unseen]:
        return centred(joint, self.common) if self.common else []

    def absent(self, joint: Joint, known: list[list[Absence]]) -> list[Absence]:
        return known_sum(joint, self.dims, ()) if self.center else []

    def evaluate(self, *tensors: torch.Tensor) -> torch.Tensor:
        (x,) = tensors
        x = x - x.mean(self.dims, True) if self.center else x
        squares = x.abs().square()
        size = squares.mean(self.dims, True) if self.mean else squares.sum(self.dims, True)
        return x / (size + self.epsilon).sqrt().clamp_min(self.floor)


@dataclass(eq=False, kw_only=True)
class Softmax(Entrywise):
    """Softmax along one axis: its entries sum to one, and a common shift has no effect."""

    noun = "softmax"
    dim: int = 0
    log: bool = False

    @property
    def combined(self) -> tuple[Any, ...]:
        return (self.dim,)

    @property
    def common(self) -> tuple[int, ...]:
        return (self.dim,)

    def unread(
        self, joint: Joint, k: int, below: list[Unseen], absent: Mapping[Any, list[Absence]]
    ) -> list[Unseen]:
        return centred(joint, self.common)

    def evaluate(self, *tensors: torch.Tensor) -> torch.Tensor:
        made = torch.log_softmax if self.log else torch.softmax
        return made(tensors[0], self.dim)

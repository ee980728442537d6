"""Group elements and Lie algebra elements of a parameter symmetry.

An element is a word of parts, applied from the first to the last: one value per space, or one
offset per shift. Products of parts of values are multiplied out; shifts depend on the parameters
that they meet, so that they stay letters of the word. That keeps composition and inverse exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from paramsym.algebra import Element, Tangent

if TYPE_CHECKING:
    from paramsym.structure.symmetry import ParameterSymmetry, Space

# The size of a shift of strength 1: that of customary initial weights. `to_scale` adapts it.
SHIFT = 0.02

Values = Mapping[str, Element]
Offsets = Mapping[str, torch.Tensor]


@dataclass(frozen=True, eq=False)
class GroupElement:
    """One element of the group of a `ParameterSymmetry`; `g @ h` applies h first, `~g` inverts."""

    symmetry: ParameterSymmetry
    parts: tuple[tuple[Values, Offsets], ...] = ()  # each part: values, then shifts

    def __getitem__(self, name: str) -> Element | torch.Tensor:
        """The value of a space or the offset of a shift, of an element with a single part."""
        if len(self.parts) != 1:
            raise KeyError(
                f"GroupElement[{name!r}]: the element is a product of {len(self.parts)} parts "
                "with shifts between them; read .parts instead."
            )
        values, offsets = self.parts[0]
        return values[name] if name in values else offsets[name]

    def __matmul__(self, other: GroupElement) -> GroupElement:
        if self.symmetry != other.symmetry:
            raise ValueError(
                "g @ h: the elements belong to different symmetries. Both must come from the "
                "same ParameterSymmetry; sample or read them from one object."
            )
        parts = list(other.parts)
        for values, offsets in self.parts:
            if parts and not parts[-1][1]:
                before, _ = parts.pop()
                parts.append((_compose(self.symmetry, values, before), offsets))
            else:
                parts.append((values, offsets))
        return GroupElement(self.symmetry, tuple(parts))

    def __invert__(self) -> GroupElement:
        parts: list[tuple[Values, Offsets]] = []
        for values, offsets in reversed(self.parts):
            if offsets:
                for name in reversed(list(offsets)):
                    parts.append(({}, {name: ("inverse", offsets[name])}))  # type: ignore[dict-item]
            if values:
                parts.append((_inverse(self.symmetry, values), {}))
        return GroupElement(self.symmetry, tuple(parts))


@dataclass(frozen=True, eq=False)
class AlgebraElement:
    """A velocity at the identity: one Lie algebra value per space, one offset per shift."""

    symmetry: ParameterSymmetry
    values: Mapping[str, Tangent]
    offsets: Offsets

    def exp(self, time: float = 1.0) -> GroupElement:
        """The element that is reached after flowing for `time`."""
        spaces = self.symmetry.spaces
        values = {s: spaces[s].group.exp(a.scaled(time)) for s, a in self.values.items()}
        parts: list[tuple[Values, Offsets]] = [(values, {})] if values else []
        parts += [({}, {name: time * delta}) for name, delta in self.offsets.items()]
        return GroupElement(self.symmetry, tuple(parts))


def batch_of(symmetry: ParameterSymmetry, space: Space) -> tuple[int, ...]:
    """One copy of the group per unit of the spaces below."""
    return tuple(symmetry.spaces[base].size for base in space.over)


def sample(
    symmetry: ParameterSymmetry,
    generator: torch.Generator,
    strength: float,
    only: list[str] | tuple[str, ...] | None,
    dtype: torch.dtype,
) -> GroupElement:
    """See `ParameterSymmetry.sample`."""
    wanted = None if only is None else set(only)
    if wanted is not None:
        known = {*symmetry.spaces, *(s.name for s in symmetry.shifts)}
        if missing := sorted(wanted - known):
            raise KeyError(
                f"sample(only={list(only or ())}): {missing} are neither spaces nor shifts. "
                f"Expected some of {sorted(known)[:12]}; print(symmetry) lists all."
            )
    values: dict[str, Element] = {}
    for space in symmetry.spaces.values():
        chosen = space.exact if wanted is None else space.name in wanted
        leader = space.order_of
        shared = values[leader].order if leader is not None and leader in values else None
        if not chosen and shared is None:
            continue
        batch = batch_of(symmetry, space)
        if chosen:
            value = space.group.sample(generator, strength, batch=batch, dtype=dtype)
        else:
            value = space.group.identity(batch=batch, dtype=dtype)
        if leader is not None and space.group.apply is not None:
            value = value._replace(order=shared)
        values[space.name] = value
    parts: list[tuple[Values, Offsets]] = [(values, {})] if values else []
    for shift in symmetry.shifts:
        if wanted is None or shift.name in wanted:
            delta = torch.randn(shift.shape, generator=generator, dtype=dtype)
            parts.append(({}, {shift.name: delta * (SHIFT * strength)}))
    return GroupElement(symmetry, tuple(parts))


def _order(symmetry: ParameterSymmetry, values: Values, name: str) -> torch.Tensor | None:
    """The permutation of a space under an element, wherever it is kept."""
    for space in (name, symmetry.spaces[name].order_of):
        if space is not None and space in values and values[space].order is not None:
            return values[space].order
    return None


def reindex(
    symmetry: ParameterSymmetry, space: Space, value: Element, values: Values, inverse: bool = False
) -> Element:
    """Copies of a fibered value read through the permutations of the spaces below it."""
    for axis, base in enumerate(space.over):
        order = _order(symmetry, values, base)
        if order is None:
            continue
        if inverse:
            order = torch.argsort(order, dim=-1)
        below = symmetry.spaces[base].over

        def pick(tensor: torch.Tensor, tail: int, axis=axis, order=order, below=below):
            if not below:
                return tensor.index_select(axis, order.to(tensor.device))
            lead = list(below)  # the order depends on the copies of these
            shape = [
                order.shape[lead.index(b)] if b in lead else (order.shape[-1] if k == axis else 1)
                for k, b in enumerate(space.over)
            ]
            index = order.reshape(*shape, *[1] * tail)
            target = [n if k != axis else order.shape[-1] for k, n in enumerate(tensor.shape)]
            return torch.gather(tensor, axis, index.expand(target))

        value = value.map(pick)
    return value


def _compose(symmetry: ParameterSymmetry, g: Values, h: Values) -> Values:
    """Values of the product: h first, then g."""
    result: dict[str, Element] = {}
    for name, space in symmetry.spaces.items():
        if name not in h and name not in g:
            continue
        second = h.get(name)
        if second is not None:
            second = reindex(symmetry, space, second, g)
        first = g.get(name)
        if first is None or second is None:
            result[name] = first if first is not None else second  # type: ignore[assignment]
        else:
            result[name] = space.group.compose(first, second)
    return result


def _inverse(symmetry: ParameterSymmetry, g: Values) -> Values:
    inverted = {name: symmetry.spaces[name].group.inverse(value) for name, value in g.items()}
    return {
        name: reindex(symmetry, symmetry.spaces[name], value, g, inverse=True)
        for name, value in inverted.items()
    }

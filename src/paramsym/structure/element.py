"""Group elements and Lie algebra elements of a parameter symmetry.

An element is a word of parts, applied from the first to the last. A part is one value per space,
or one slide along a shift. Parts of values are multiplied out where their spaces commute; slides
depend on the parameters that they meet, and stay letters of the word. That keeps composition and
inverse exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import torch

from paramsym.algebra import Element, Tangent
from paramsym.algebra.linear import AbstractRotation
from paramsym.structure import coordinates, given, stored
from paramsym.structure.data import SymmetryData, batch_of
from paramsym.structure.membership import leading, require_element, require_tangent
from paramsym.structure.multiplying import Values, clash, compose, inverse, letters
from paramsym.structure.patterns import Patterns, matching
from paramsym.structure.space import Space

Rotations: TypeAlias = Literal["haar", "woven"]
ROTATIONS: tuple[Rotations, ...] = get_args(Rotations)
# The size of a shift of strength 1: that of customary initial weights. `to_scale` adapts it.
SHIFT = 0.02


@dataclass(frozen=True, eq=False)
class Slide:
    """The move by `offset` along a shift, or the move that undoes it."""

    shift: str
    offset: torch.Tensor
    inverse: bool = False


Part = Values | Slide


def _speaks(part: Part, name: str) -> bool:
    return part.shift == name if isinstance(part, Slide) else name in part


@dataclass(frozen=True, eq=False)
class GroupElement:
    """One element of the group of a `ParameterSymmetry`; `g @ h` applies h first, `~g` inverts."""

    symmetry: SymmetryData
    parts: tuple[Part, ...] = ()

    def __getitem__(self, name: str) -> Element | torch.Tensor:
        """The value of a space in the whole word, or the offset of a shift.

        Values of several parts are multiplied out, copies read through the orders that follow; a
        space that no part moves has the identity, and a shift the offset zero. Raises `KeyError`
        for unknown names and where parts do not combine: values with something between them that
        does not commute, offsets of several slides, a slide that is undone.
        """
        speaking = [part for part in self.parts if _speaks(part, name)]
        if name in self.symmetry.spaces and (len(speaking) < 2 or not self._clashes(name)):
            return self._value(self.symmetry.spaces[name])
        shape = next((s.shape for s in self.symmetry.shifts if s.name == name), None)
        if shape is not None and not speaking:
            return torch.zeros(shape)
        (slide,) = speaking if len(speaking) == 1 else (None,)
        if isinstance(slide, Slide) and not slide.inverse:
            return slide.offset
        raise KeyError(
            f"GroupElement[{name!r}]: {len(speaking)} of the {len(self.parts)} parts of the "
            "element speak of it, and parts of one space or shift of its symmetry were "
            "expected, which combine. The element is a word; read its .parts, from the first that "
            "acts to the last."
        )

    @cached_property
    def places(self) -> dict[str, list[int]]:
        """The parts that speak of each space or shift, by their places in the word."""
        found: dict[str, list[int]] = {}
        for k, part in enumerate(self.parts):
            for name in (part.shift,) if isinstance(part, Slide) else part:
                found.setdefault(name, []).append(k)
        return found

    def __repr__(self) -> str:
        moved = [n for p in self.parts for n in ([p.shift] if isinstance(p, Slide) else [*p])]
        names = ", ".join(dict.fromkeys(moved)) or "nothing"
        more = f"{names[:200]}…" if names[200:] else names
        return f"GroupElement({len(self.parts)} part{'s'[: len(self.parts) != 1]} moving {more})"

    def _clashes(self, name: str) -> bool:
        """Whether something that moves here does not commute with a space."""
        moved = {n for part in self.parts if not isinstance(part, Slide) for n in part}
        return any(
            (name == basis and others & moved) or (name in others and basis in moved)
            for basis, others in self.symmetry.clashes.items()
        )

    def _value(self, space: Space) -> Element:
        """The product of the values of one space, and of the orders that its copies follow."""
        names = {space.name, *space.over}
        product: Values = {}
        for part in self.parts:
            if not isinstance(part, Slide) and not names.isdisjoint(part):
                own = {n: value for n, value in part.items() if n in names}
                product = compose(self.symmetry, own, product) if product else own
        return product.get(space.name) or space.group.identity(batch_of(self.symmetry, space))

    def save(self, path: str | Path) -> None:
        """Write the element with the fingerprint of its symmetry, for its owner alone to read.

        A path that ends in `.json` becomes text, one line for each tensor with every number in
        full; any other becomes safetensors. The file is written under another name and renamed, so
        that an old one is never half gone.

        Raises:
            ValueError: there are more than 100,000 numbers for text, or a value could not be read
                back: it lies outside its group, or stands for many elements at once.
        """
        stored.write(path, "GroupElement", self.symmetry, parts_of(self), word_of)

    @staticmethod
    def load(path: str | Path, symmetry: SymmetryData) -> GroupElement:
        """Read what `save` wrote, as safetensors or as text, to the same numbers.

        Args:
            path: the file.
            symmetry: the symmetry that the element belongs to, of the same fingerprint.

        Raises:
            ValueError: the file is none, belongs to another symmetry, or says what its groups do
                not allow.
        """
        return stored.read(path, "GroupElement", symmetry, word_of)

    def __matmul__(self, other: GroupElement) -> GroupElement:
        if self.symmetry != other.symmetry:
            raise ValueError(
                "g @ h: the elements belong to different symmetries. Both must come from the "
                "same ParameterSymmetry; sample or read them from one object."
            )
        parts = list(other.parts)
        for part in self.parts:
            last = parts[-1] if parts else None
            if (
                isinstance(part, Slide)
                or last is None
                or isinstance(last, Slide)
                or clash(self.symmetry, part, last)
            ):
                parts.append(part)
            else:
                parts[-1] = compose(self.symmetry, part, last)
        return GroupElement(self.symmetry, tuple(parts))

    def __invert__(self) -> GroupElement:
        parts: list[Part] = []
        for part in reversed(self.parts):
            if isinstance(part, Slide):
                parts.append(replace(part, inverse=not part.inverse))
            else:
                parts += [
                    inverse(self.symmetry, values)
                    for values in reversed(letters(self.symmetry, part))
                ]
        return GroupElement(self.symmetry, tuple(parts))


@dataclass(frozen=True, eq=False)
class AlgebraElement:
    """A velocity at the identity: one Lie algebra value per space, one offset per shift."""

    symmetry: SymmetryData
    values: Mapping[str, Tangent]
    offsets: Mapping[str, torch.Tensor]

    def exp(self, time: float | torch.Tensor = 1.0) -> GroupElement:
        """The element on the curve exp(t·values) followed by the slides t·offsets, at t = `time`.

        Its velocity at t = 0 is this element. For a single space, or for spaces that commute, it
        is the element that is reached after flowing for `time`.
        """
        spaces = self.symmetry.spaces
        values = {s: spaces[s].group.exp(a.scaled(time)) for s, a in self.values.items()}
        parts: list[Part] = [values] if values else []
        parts += [Slide(name, time * delta) for name, delta in self.offsets.items()]
        return GroupElement(self.symmetry, tuple(parts))

    def __getitem__(self, name: str) -> Tangent | torch.Tensor:
        """The velocity of a space, or the offset of a shift. Raises `KeyError` for others."""
        return self.values[name] if name in self.values else self.offsets[name]

    def coordinates(self) -> torch.Tensor:
        """The velocity as one vector of shape (generators,), which `symmetry.algebra` reads.

        Spaces come in the order of the symmetry, copy by copy in the coordinates of their group,
        then the shifts; those that it does not move are zero.
        """
        return coordinates.joined(self.symmetry, self.values, self.offsets)

    def save(self, path: str | Path) -> None:
        """Write the velocity with the fingerprint of its symmetry; see `GroupElement.save`."""
        fields = {**stored.fields_of(self.values), "offset": dict(self.offsets)}
        header = {"spaces": [*self.values], "shifts": [*self.offsets]}
        stored.write(path, "AlgebraElement", self.symmetry, [(header, fields)], _velocity)

    @staticmethod
    def load(path: str | Path, symmetry: SymmetryData) -> AlgebraElement:
        """Read what `save` wrote; see `GroupElement.load`."""
        return stored.read(path, "AlgebraElement", symmetry, _velocity)


def parts_of(element: GroupElement) -> stored.Parts:
    """The parts of an element as files hold them; `word_of` reads them."""
    parts: stored.Parts = []
    for part in element.parts:
        if isinstance(part, Slide):
            header = {"shift": part.shift, "inverse": part.inverse}
            parts.append((header, {"offset": {part.shift: part.offset}}))
        else:
            parts.append(({"spaces": [*part]}, stored.fields_of(part)))
    return parts


def word_of(symmetry: SymmetryData, parts: stored.Parts) -> GroupElement:
    """The element that was stored, or a batch of them, as the first of its values says."""
    lead: tuple[int, ...] | None = None
    word: list[Part] = []
    for header, fields in parts:
        if "shift" in header:
            name, inverse = header["shift"], header["inverse"]
            if not isinstance(inverse, bool):
                raise TypeError(f"'inverse' of {name!r} is true or false, and not {inverse!r:.20}")
            offset = fields["offset"][name]
            lead = _lead_of_offset(symmetry, name, offset) if lead is None else lead
            word.append(Slide(name, _offset(symmetry, name, offset, lead), inverse))
            continue
        values: Values = {}
        for name in header["spaces"]:
            space, value = symmetry.spaces[name], stored.element_of(name, fields)
            batch = batch_of(symmetry, space)
            lead = leading(space.group, batch, value) if lead is None else lead
            values[name] = require_element(space.group, (*lead, *batch), value)
        word.append(values)
    return GroupElement(symmetry, tuple(word))


def _velocity(symmetry: SymmetryData, parts: stored.Parts) -> AlgebraElement:
    """The velocity that was stored, or a batch of them, as the first of its values says."""
    ((header, fields),) = parts
    own = {field: named for field, named in fields.items() if field != "offset"}
    lead: tuple[int, ...] | None = None
    values, offsets = {}, {}
    for name in header["spaces"]:
        space, value = symmetry.spaces[name], stored.tangent_of(name, own)
        batch = batch_of(symmetry, space)
        lead = leading(space.group, batch, value) if lead is None else lead
        values[name] = require_tangent(space.group, (*lead, *batch), value)
    for name in header["shifts"]:
        offset = fields["offset"][name]
        lead = _lead_of_offset(symmetry, name, offset) if lead is None else lead
        offsets[name] = _offset(symmetry, name, offset, lead)
    return AlgebraElement(symmetry, values, offsets)


def _lead_of_offset(symmetry: SymmetryData, name: str, offset: torch.Tensor) -> tuple[int, ...]:
    return tuple(offset.shape[: max(0, offset.ndim - len(symmetry.shift_of[name].shape))])


def _offset(
    symmetry: SymmetryData, name: str, offset: torch.Tensor, lead: tuple[int, ...]
) -> torch.Tensor:
    """The offset of one shift, as it was stored."""
    return given.as_offset(offset, (*lead, *symmetry.shift_of[name].shape), name)


def element(symmetry: SymmetryData, values: given.Given | None, named: given.Given) -> GroupElement:
    """See `ParameterSymmetry.element`."""
    found, offsets = given.gathered(symmetry, values, named, "element(…)")
    made = {name: given.as_element(symmetry, name, value) for name, value in found.items()}
    parts: list[Part] = [made] if made else []
    return GroupElement(symmetry, (*parts, *(Slide(n, delta) for n, delta in offsets.items())))


def algebra_of(
    symmetry: SymmetryData, generators: Sequence[coordinates.Generators], vector: torch.Tensor
) -> AlgebraElement:
    """The velocity with these coordinates, of shape (generators,)."""
    parts, spaces = coordinates.split(generators, vector), symmetry.spaces
    values = {g.name: spaces[g.name].group.tangent(c) for g, c in parts if not g.is_shift}
    return AlgebraElement(symmetry, values, {g.name: delta for g, delta in parts if g.is_shift})


def algebra(symmetry: SymmetryData, vector: torch.Tensor) -> AlgebraElement:
    """See `ParameterSymmetry.algebra`."""
    generators = coordinates.generators_of(symmetry)
    count = sum(each.size for each in generators)
    if tuple(vector.shape) != (count,) or not vector.is_floating_point():
        raise ValueError(
            f"symmetry.algebra(…): coordinates of shape {tuple(vector.shape)} and dtype "
            f"{vector.dtype} came, but {count} real numbers were expected, one for each generator "
            "of this symmetry. velocity.coordinates() and tangent(symmetry, params).rmatvec(…) "
            "give such vectors."
        )
    return algebra_of(symmetry, generators, vector)


def velocity(
    symmetry: SymmetryData, values: given.Given | None, named: given.Given
) -> AlgebraElement:
    """See `ParameterSymmetry.velocity`."""
    found, offsets = given.gathered(symmetry, values, named, "velocity(…)")
    made = {name: given.as_tangent(symmetry, name, value) for name, value in found.items()}
    return AlgebraElement(symmetry, made, offsets)


def sample(
    symmetry: SymmetryData,
    generator: torch.Generator,
    strength: float,
    only: Patterns | None,
    dtype: torch.dtype,
    rotations: Rotations,
) -> GroupElement:
    """See `ParameterSymmetry.sample`."""
    if generator is None:  # torch would draw from the global state
        raise ValueError(
            "symmetry.sample(generator=None): nothing came, and a torch.Generator was expected, so "
            "that the draw can be repeated. Pass torch.Generator().manual_seed(0)."
        )
    if rotations not in ROTATIONS:
        raise ValueError(
            f"symmetry.sample(rotations={rotations!r}): expected one of {', '.join(ROTATIONS)}. "
            "Take 'haar' for rotations of which none is likelier than another, 'woven' for such as "
            "move wide streams quickly."
        )
    names = [*symmetry.spaces, *(shift.name for shift in symmetry.shifts)]
    wanted = None if only is None else matching(only, names, "symmetry.sample(only=…)")
    values: dict[str, Element] = {}
    for space in symmetry.spaces.values():
        if space.exact if wanted is None else space.name in wanted:
            batch = batch_of(symmetry, space)
            group = space.group
            if rotations == "woven" and isinstance(group, AbstractRotation) and not batch:
                value = group.sample_woven(generator, strength, dtype)
            else:
                value = group.sample(generator, strength, batch=batch, dtype=dtype)
            values[space.name] = value
    parts: list[Part] = [values] if values else []
    for shift in symmetry.shifts:
        if wanted is None or shift.name in wanted:
            delta = torch.randn(shift.shape, generator=generator, dtype=dtype)
            parts.append(Slide(shift.name, delta * (SHIFT * strength)))
    return GroupElement(symmetry, tuple(parts))

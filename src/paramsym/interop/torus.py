"""The scales of a symmetry, entry by entry: which of them multiplies which row or column.

The positive diagonal matrices in all groups of a symmetry form a torus. Its coordinates are
logarithms of scales, one for each unit of each space with scales (one for each pair under rotary
embeddings). Along an axis of a parameter the entry i is multiplied by

    exp Σ power · t[coordinate],    the sum over the spaces that the axis carries at i.

Permutations, signs and rotations have no part in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paramsym.algebra import GeneralLinear
from paramsym.geometry.costs import scales_of
from paramsym.interop.parts import NONE, Part
from paramsym.structure.axes import AxisType, Carried, Fixed, Piecewise, Sum, nodes_of, spaces_of
from paramsym.structure.data import batch_of
from paramsym.structure.space import Space
from paramsym.structure.symmetry import ParameterSymmetry

NOWHERE = -1
Place = tuple[Part, int]  # a part of a parameter, and one of its sides
Site = tuple[str, int]  # a space, and the expert whose copy of it is meant


@dataclass(frozen=True)
class Line:
    """One power of one space along a side: for each entry the coordinate, or `NOWHERE`."""

    space: str
    power: float
    at: np.ndarray


@dataclass(frozen=True)
class _Family:
    """Where the coordinates of one space start, how many copies there are, and scales in each."""

    start: int
    batch: tuple[int, ...]
    count: int

    @property
    def stop(self) -> int:
        return self.start + int(np.prod(self.batch, dtype=int)) * self.count


@dataclass(frozen=True)
class Logs:
    """Logarithms of some scales: coordinates in increasing order, and numbers beside them."""

    at: np.ndarray
    value: np.ndarray

    @staticmethod
    def of(at: np.ndarray, value: np.ndarray) -> Logs:
        """From coordinates in any order, of which equal ones have equal numbers."""
        if (at[1:] > at[:-1]).all():
            return Logs(at, value)
        at, first = np.unique(at, return_index=True)
        return Logs(at, value[first])

    def get(self, coordinates: np.ndarray) -> np.ndarray:
        """The numbers of some coordinates; zero for others and for `NOWHERE`."""
        if not len(self.at):
            return np.zeros(coordinates.shape)
        k = np.searchsorted(self.at, coordinates).clip(max=len(self.at) - 1)
        return np.where(self.at[k] == coordinates, self.value[k], 0.0)


class Torus:
    """The diagonal part of a symmetry.

    Args:
        symmetry: whose scales they are.
        parts: how parameters are cut, where they are; every other one is a part by itself.

    Attributes:
        places: for each space with scales, and each expert with a copy of its own, who carries it.
        across: spaces whose copies no side of a part tells apart, by part.
        by_pieces: spaces with scales that some side carries for pieces of another one alone. They
            have no coordinates here, as no side by itself says what they multiply.
    """

    def __init__(self, symmetry: ParameterSymmetry, parts: Iterable[Part]) -> None:
        self.symmetry = symmetry
        self._sizes = {name: space.size for name, space in symmetry.spaces.items()}
        self._families: dict[str, _Family] = {}
        told = _told_by_pieces(symmetry)
        self.by_pieces = [name for name in told if _scales(symmetry.spaces[name])]
        start = 0
        for name, space in symmetry.spaces.items():
            if name not in told and (count := _scales(space)):
                family = _Family(start, batch_of(symmetry, space), count)
                self._families[name], start = family, family.stop
        self._names = list(self._families)
        self._starts = np.array([family.start for family in self._families.values()])
        self._experts: dict[str, int] = {}  # for a space with copies by expert how many there are
        self._own: dict[tuple[str, str], bool] = {}
        self._units: dict[tuple[str, int], list[Line]] = {}
        self._lines: dict[tuple[str, int, int, tuple[int | None, ...]], list[Line]] = {}
        self.places: dict[Site, list[Place]] = defaultdict(list)
        self.across: dict[Part, set[str]] = defaultdict(set)
        cut: dict[str, list[Part]] = defaultdict(list)
        for part in dict.fromkeys(parts):
            cut[part.parameter].append(part)
        for parameter, axes in symmetry.signature.items():
            for part in cut.get(parameter) or [Part(parameter)]:
                self._enter(part, len(axes))

    def _enter(self, part: Part, axes: int) -> None:
        for side in range(axes):
            if part.expert != NONE and axes == 2:
                side = 2 if side == 1 else 0  # a bias has no columns
            for space in dict.fromkeys(line.space for line in self.lines((part, side))):
                own = NONE
                if self._by_expert(part, space):
                    own = part.expert
                    self._experts[space] = self.symmetry.shape(part.parameter)[0]
                self.places[space, own].append((part, side))

    def _by_expert(self, part: Part, space: str) -> bool:
        """Whether the experts of a parameter have copies of a space, each its own."""
        if part.expert == NONE:
            return False
        if (key := (part.parameter, space)) not in self._own:
            mine = {line.space for line in self._expanded_axis(part.parameter, 0)}
            self._own[key] = not mine.isdisjoint(self.symmetry.spaces[space].over)
        return self._own[key]

    # -- axes ----------------------------------------------------------------------------------
    def lines(self, place: Place) -> list[Line]:
        """What multiplies the entries of a side of a part."""
        part, side = place
        rows = part.rows if side == 0 else (None, None, None)
        axis = part.axis(side)
        if side == 2 and part.expert != NONE:
            rows = (part.expert, part.expert + 1, None)
        units = self._expanded_axis(part.parameter, axis)
        own = part.expert if any(self._by_expert(part, unit.space) for unit in units) else NONE
        key = (part.parameter, axis, own, rows)
        if key not in self._lines:
            units = [replace(unit, at=unit.at[slice(*rows)]) for unit in units]
            self._lines[key] = self._numbered(part, units)
        return self._lines[key]

    def _expanded_axis(self, parameter: str, axis: int) -> list[Line]:
        if (parameter, axis) not in self._units:
            type_ = self.symmetry.signature[parameter][axis]
            self._units[parameter, axis] = self._expanded(type_)
        return self._units[parameter, axis]

    def _expanded(self, axis: AxisType) -> list[Line]:
        """Every space of an axis, also one without scales, with the unit of each entry."""
        if isinstance(axis, Fixed | Piecewise):
            return []
        if isinstance(axis, Carried):
            units = np.arange(axis.size(self._sizes))
            return [Line(space, float(power), units) for space, power in axis.factors]
        if isinstance(axis, Sum):
            return self._joined(axis)
        found, inner, outer = [], axis.size(self._sizes), 1
        for factor in axis.factors:
            own = factor.size(self._sizes)
            inner //= own
            for line in self._expanded(factor):
                found.append(replace(line, at=np.tile(np.repeat(line.at, inner), outer)))
            outer *= own
        return found

    def _joined(self, axis: Sum) -> list[Line]:
        """The pieces of a direct sum, one line for each power of a space."""
        found: dict[tuple[str, float, int], np.ndarray] = {}
        start, size = 0, axis.size(self._sizes)
        for term in axis.terms:
            seen: dict[tuple[str, float], int] = defaultdict(int)
            own = term.size(self._sizes)
            for line in self._expanded(term):
                name = line.space, line.power
                at = found.setdefault((*name, seen[name]), np.full(size, NOWHERE))
                at[start : start + own] = line.at
                seen[name] += 1
            start += own
        return [Line(space, power, at) for (space, power, _), at in found.items()]

    def _numbered(self, part: Part, units: Sequence[Line]) -> list[Line]:
        """Lines of coordinates from lines of units."""
        found = []
        for line in units:
            if line.space not in self._families or not line.power:
                continue
            family = self._families[line.space]
            number, known = np.zeros_like(line.at), line.at >= 0
            over = self.symmetry.spaces[line.space].over
            for base, length in zip(over, family.batch, strict=True):
                copies = self._copies(part, units, base, line)
                number, known = number * length + copies, known & (copies >= 0)
            number = family.start + number * family.count
            number = number if family.count == 1 else number + line.at % family.count
            if not known.all():
                number = np.where(known, number, NOWHERE)
            if known.any():
                found.append(Line(line.space, line.power, number))
        return found

    def _copies(self, part: Part, units: Sequence[Line], base: str, line: Line) -> np.ndarray:
        """The unit of a space at each entry: as the side says it, or the expert."""
        told = [other.at for other in units if other.space == base]
        if told:
            return np.max(told, axis=0) if len(told) > 1 else told[0]
        if part.expert != NONE:
            for other in self._expanded_axis(part.parameter, 0):
                if other.space == base:
                    return other.at[part.expert : part.expert + 1]
        self.across[part].add(line.space)
        return np.full_like(line.at, NOWHERE)

    # -- what scales do ------------------------------------------------------------------------
    def touched(self, coordinates: np.ndarray) -> set[Place]:
        """Who may move where some coordinates, (count,), are not zero."""
        inside = np.searchsorted(self._starts, coordinates, side="right") - 1
        sites: set[Site] = set()
        for number in {*inside.tolist()}:
            name = self._names[number]
            family = self._families[name]
            sites.add((name, NONE))
            if name in self._experts:
                inner = (family.stop - family.start) // self._experts[name]
                copies = (coordinates[inside == number] - family.start) // inner
                sites |= {(name, copy) for copy in {*copies.tolist()}}
        return {place for site in sites for place in self.places.get(site, ())}

    def moved(self, t: Logs) -> dict[Place, np.ndarray]:
        """The logarithms by which the entries of all sides are multiplied that move."""
        made: dict[int, np.ndarray] = {}  # experts share lines
        found = {}
        for place in self.touched(t.at):
            lines = self.lines(place)
            if id(lines) not in made:
                parts = (line.power * t.get(line.at) for line in lines)
                made[id(lines)] = sum(parts, np.zeros(()))
            found[place] = made[id(lines)]
        return found


def _told_by_pieces(symmetry: ParameterSymmetry) -> set[str]:
    """The spaces that some axis carries for pieces of another one alone."""
    axes = (axis for own in symmetry.signature.values() for axis in own)
    parts = (part for axis in axes for part in nodes_of(axis))
    return {s for part in parts if isinstance(part, Piecewise) for s in spaces_of(part)}


def _scales(space: Space) -> int:
    """How many positive scales one copy of a space has; of a change of basis its diagonal.

    What holds but for the small ε of a norm has none here: a tool keeps the function, or not.
    """
    if not space.exact:
        return 0
    return space.size if isinstance(space.group, GeneralLinear) else scales_of(space)

"""The element that carries one checkpoint to another, read off samples of their tensors.

Spaces are taken one after the other. Where all other spaces of a tensor are known, the known ones
are applied to b, and what is left of the tensor is a small problem: of each axis that is fixed or
known some entries are enough. A gain says the scales behind it, a table the basis of its stream;
with these a layer says its units and heads, whatever the others are. Shifts are read before: both
checkpoints are led to where what they move freely has vanished, and then differ by values of spaces
alone. Nothing is claimed here: the element is a candidate, which a pass over all numbers accepts or
not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch

from paramsym.algebra import Element, GeneralLinear, Permutation
from paramsym.algebra.monomial import Trivial
from paramsym.checkpoints.streaming.gaps import Gap, units_of
from paramsym.checkpoints.streaming.nearest import nearest
from paramsym.checkpoints.streaming.sampled import sampled, to_rest
from paramsym.checkpoints.streaming.spelling import Named
from paramsym.geometry.same_orbit import Kind, same_orbit
from paramsym.structure.axes import AxisType, Carried, Fixed, frames_of, spaces_of, with_parts
from paramsym.structure.element import GroupElement
from paramsym.structure.fast import Rows
from paramsym.structure.origin import added
from paramsym.structure.pieces import cutting
from paramsym.structure.space import Space
from paramsym.structure.symmetry import ParameterSymmetry

_ROUNDED = 0.1  # of what counts as equal: a space that moves moves by more
_SAMPLE = 64  # entries of an axis that is known, at least
_LARGEST = 60_000_000  # numbers of a small problem


class NotFound(Exception):
    """No element was read off; says at which spaces it stopped."""


@dataclass
class _Search:
    """What is known so far; None for a space that stays as it is.

    `first` and `second` lead a and b to where their shifts are at rest.
    """

    symmetry: ParameterSymmetry
    a: Named
    b: Named
    first: GroupElement
    second: GroupElement
    tol: float
    generator: torch.Generator
    progress: Callable[[str], None]
    known: dict[str, Element | None] = field(default_factory=dict)

    @property
    def unknown(self) -> list[str]:
        """The spaces that may move and are not known, in the order of the symmetry."""
        moving = (s for s in self.symmetry.spaces.values() if not isinstance(s.group, Trivial))
        return [s.name for s in moving if s.exact and s.name not in self.known]

    @property
    def element(self) -> GroupElement:
        """What brings b next to a, where shifts are at rest, as far as spaces are known."""
        moving = {space: value for space, value in self.known.items() if value is not None}
        return GroupElement(self.symmetry, (moving,) if moving else ()) @ self.second


def found_by_samples(
    symmetry: ParameterSymmetry, a: Named, b: Named, tol: float,
    progress: Callable[[str], None],
) -> GroupElement:  # fmt: skip
    """An element that may carry b to a.

    Args:
        symmetry: of both; shifts through projectors stay where they are.
        a: tensors of files by the names of the model.
        b: others of the same shapes and dtypes.
        tol: the largest difference that counts as equal, as for `same_orbit`.
        progress: is told the spaces that are read.

    Raises:
        NotFound: some spaces cannot be told by tensors all of whose other spaces are known, or no
            value of theirs carries b to a.
    """
    first, second = (to_rest(symmetry, each, progress) for each in (a, b))
    search = _Search(symmetry, a, b, first, second, tol, torch.Generator().manual_seed(0), progress)
    while search.unknown:
        spaces, names = _next(search)
        progress(f"reading {', '.join(spaces[:3])}{' …' if len(spaces) > 3 else ''}")
        search.known |= _solved(search, spaces, names)
    return ~first @ search.element


def _next(search: _Search) -> tuple[list[str], list[str]]:
    """The next spaces to be read, and the tensors that tell them: as few spaces as possible."""
    unknown = search.unknown
    looked = set(unknown)
    left = {
        name: frozenset(s for axis in axes for s in spaces_of(axis) if s in looked)
        for name, axes in search.symmetry.signature.items() if name in search.a
    }  # fmt: skip
    for space in unknown:
        names = [n for n, spaces in left.items() if spaces == {space}]
        if names and not _framed(search, names, space):
            return [space], names
    components = _components(set(left.values()) - {frozenset()})
    if not components:
        raise NotFound(f"no tensor tells {', '.join(unknown[:3])}")
    least = min(components, key=lambda each: (len(each), min(map(unknown.index, each))))
    names = [n for n, spaces in left.items() if spaces and spaces <= least]
    return sorted(least, key=unknown.index), names


def _framed(search: _Search, names: Iterable[str], space: str) -> bool:
    """Whether a space acts in the frame of a gain on every one of some tensors."""
    signature = search.symmetry.signature
    return all(any(space in _framed_in(axis) for axis in signature[n]) for n in names)


def _framed_in(axis: AxisType) -> set[str]:
    return {s for s in spaces_of(axis)} if list(frames_of(axis)) else set()


def _components(sets: set[frozenset[str]]) -> list[frozenset[str]]:
    """Sets that share elements, joined."""
    found: list[frozenset[str]] = []
    for each in sets:
        near = [other for other in found if other & each]
        found = [other for other in found if not other & each]
        found.append(each.union(*near))
    return found


# -- one small problem -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Problem:
    """Samples of the tensors that tell some spaces, and their types."""

    axes: dict[str, tuple[AxisType, ...]]
    one: dict[str, torch.Tensor]
    two: dict[str, torch.Tensor]

    @property
    def size(self) -> int:
        """How many numbers each side has."""
        return sum(tensor.numel() for tensor in self.one.values())

    def symmetry(self, spaces: Mapping[str, Space], moving: list[str]) -> ParameterSymmetry:
        """That of the samples: what is known stands still."""
        carried = dict.fromkeys(s for own in self.axes.values() for x in own for s in spaces_of(x))
        below = dict.fromkeys(base for s in carried for base in spaces[s].over)
        held = {s: _held(spaces[s], s in moving) for s in {**below, **carried}}
        return ParameterSymmetry(held, self.axes)


def _problem(search: _Search, spaces: list[str], names: list[str]) -> _Problem:
    """Samples of some tensors; those where what is looked for acts in a frame are left out."""
    symmetry, looked = search.symmetry, set(spaces)
    dense = [symmetry.spaces[s].size for s in spaces if not _is_light(symmetry.spaces[s])]
    count = max(_SAMPLE, 2 * max(dense, default=0))
    found = _Problem({}, {}, {})
    for name in names:
        own = symmetry.signature[name]
        if any(_framed_in(axis) & looked for axis in own):
            continue
        by = cutting(own)
        picks = [
            None if k in by else _pick(search, axis, spaces, count) for k, axis in enumerate(own)
        ]
        origin = symmetry.offsets.get(name, 0.0)
        if not isinstance(origin, float | int) and not _all_there(search.a[name], picks):
            continue
        found.axes[name] = tuple(
            Fixed(len(pick)) if pick is not None else _without_frames(axis)
            for axis, pick in zip(own, picks, strict=True)
        )
        one = sampled(search.a, name, symmetry, search.first, picks)
        two = sampled(search.b, name, symmetry, search.element, picks)
        found.one[name], found.two[name] = added(one, origin), added(two, origin)
    return found


def _solved(search: _Search, spaces: list[str], names: list[str]) -> dict[str, Element | None]:
    """The values of some spaces, by tensors whose other spaces are known."""
    own, said = search.symmetry.spaces, ", ".join(spaces[:3])
    problem = _problem(search, spaces, names)
    if not problem.one:
        raise NotFound(f"{said} act in frames alone")
    small = problem.symmetry(own, spaces)
    if _at_rest(small, spaces, problem, search.tol):
        return dict.fromkeys(spaces)
    alone = own[spaces[0]] if len(spaces) == 1 else None
    if alone is not None and isinstance(alone.group, Permutation) and not alone.over:
        order = _order(problem, spaces[0], search.generator)
        if order is not None:
            return {spaces[0]: Element(order=order)}
    if problem.size > _LARGEST:
        raise NotFound(f"{said} are too large a problem")
    found = same_orbit(small, problem.one, problem.two, search.tol)
    if found.kind is not Kind.EQUAL:
        raise NotFound(f"at {said}: {found.reason}")
    values = {space: found.element[space] for space in spaces}
    return {space: value for space, value in values.items() if isinstance(value, Element)}


def _at_rest(small: ParameterSymmetry, spaces: list[str], problem: _Problem, tol: float) -> bool:
    """Whether samples are equal but for a little rounding, every unit at its own size.

    Bases may be so uneven that a whole direction is less than rounding: they move unless nothing
    differs.
    """
    if any(isinstance(small.spaces[s].group, GeneralLinear) for s in spaces):
        return all(torch.equal(x, problem.two[name]) for name, x in problem.one.items())
    for name, x in problem.one.items():
        gap = Gap(units_of(small, name), x.shape)
        gap.add(x, problem.two[name])
        if gap.relative(0.0) > _ROUNDED * tol:
            return False
    return True


def _is_light(space: Space) -> bool:
    """Whether few numbers tell a value, however large the space is."""
    return not space.group.dimension > space.size


def _held(space: Space, moves: bool) -> Space:
    return space if moves else Space(space.name, Trivial(space.size), space.over)


def _pick(search: _Search, axis: AxisType, spaces: list[str], count: int) -> torch.Tensor | None:
    """Some entries of an axis; None for one that carries what is looked for, or what tells its
    copies apart."""
    own = search.symmetry.spaces
    if not {*spaces, *(base for s in spaces for base in own[s].over)}.isdisjoint(spaces_of(axis)):
        return None
    size = axis.size(search.symmetry.sizes)
    if size <= count:
        return torch.arange(size)
    return torch.randperm(size, generator=search.generator)[:count].sort().values


def _all_there(x: Rows, picks: list[torch.Tensor | None]) -> bool:
    """Whether some entries of a tensor along each axis are all of them."""
    return all(pick is None or len(pick) == n for pick, n in zip(picks, x.shape, strict=True))


def _without_frames(axis: AxisType) -> AxisType:
    """An axis in whose frames only what is known acts, which has been applied."""
    return with_parts(axis, lambda part: Carried(part.factors))


def _is_plain(axis: AxisType) -> bool:
    return isinstance(axis, Carried) and len(axis.factors) == 1


# -- orders ------------------------------------------------------------------------------------


def _order(problem: _Problem, space: str, generator: torch.Generator) -> torch.Tensor | None:
    """The order of the units of a space, each by the nearest of the others; None if two share one.

    Units are compared by all numbers that their tensors have of them.
    """
    mine, theirs = [], []
    for name, own in problem.axes.items():
        carrying = [k for k, axis in enumerate(own) if space in spaces_of(axis)]
        if len(carrying) != 1 or not _is_plain(own[carrying[0]]):
            continue
        for tensors, rows in ((problem.one, mine), (problem.two, theirs)):
            x = tensors[name].movedim(carrying[0], 0)
            rows.append(x.reshape(x.shape[0], -1).float())
    if not mine:
        return None
    found = nearest(torch.cat(mine, 1), torch.cat(theirs, 1), generator)
    return found if len(found.unique()) == len(found) else None

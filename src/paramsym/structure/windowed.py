"""What an element does to a window on a tensor, as what it does to a tensor of its own.

Files may hold a tensor in pieces: one matrix for each expert, where the network has them stacked.
A piece is a window; it can be moved without the others where nothing that acts on the tensor
reaches across its edges. Of an axis that carries an order a window may have a single index k: by

    (g x)[k] = g_k · x[σ(k)]

it is read from the window at σ(k), and is moved by the copy of each space that belongs to k.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from paramsym.algebra import Element
from paramsym.structure.axes import AxisType, Carried, Fixed, Sizes, Sum, spaces_of, with_parts
from paramsym.structure.element import GroupElement, Slide, Values
from paramsym.structure.fast import axis_plans
from paramsym.structure.needs import Steps
from paramsym.structure.pieces import at_place, cutting
from paramsym.structure.space import Space
from paramsym.structure.symmetry import ParameterSymmetry

Range = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """A box of a tensor, whose axes may come in another order.

    `box` has a range of each axis of the tensor, or one index of an axis that the window has not;
    `axes` are the axes of the tensor that those of the window are.
    """

    box: tuple[Range | int, ...]
    axes: tuple[int, ...]

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """What is seen of a tensor; a view."""
        places = [k for k, own in enumerate(self.box) if not isinstance(own, int)]
        seen = tensor[tuple(own if isinstance(own, int) else slice(*own) for own in self.box)]
        return seen.permute([places.index(axis) for axis in self.axes])


@dataclass(frozen=True)
class Windowed:
    """A window as a tensor of its own: `element` of `symmetry` moves what is read from `source`."""

    symmetry: ParameterSymmetry
    element: GroupElement
    source: Window


def windowed(
    symmetry: ParameterSymmetry, element: GroupElement, name: str, window: Window, found: Steps
) -> Windowed | None:
    """What an element does to a window on a tensor; None where more than a window is needed.

    Args:
        symmetry: as for `act`.
        element: as for `act`.
        name: of the tensor; the window has this name in the symmetry that is returned.
        window: on that tensor.
        found: the steps of the element to it, see `steps`.
    """
    values = _values(symmetry, element, name, found)
    if values is None:
        return None
    spaces = {**symmetry.spaces, **element.symmetry.spaces}
    axes = _in_box(_acting(symmetry.signature[name], spaces, values), window.box)
    if axes is None:
        return None
    indexed = _indices(axes, window, spaces)
    cut = None if indexed is None else _cuts(axes, window, spaces, values)
    if indexed is None or cut is None:
        return None
    types, source = cut
    small = _symmetry_of(name, types, spaces, indexed)
    copies = {s: _copy(spaces, spaces[s], values[s], indexed) for s in values if s in small.spaces}
    return Windowed(small, GroupElement(small, (copies,) if copies else ()), source)


def _values(
    symmetry: ParameterSymmetry, element: GroupElement, name: str, found: Steps
) -> Values | None:
    """The values by which an element moves a tensor; None where it does more than that."""
    if len(found.moved) != 1 or symmetry.offsets.get(name):
        return None
    ((place, moved),) = found.moved.items()
    part = element.parts[place]
    return None if moved != (name,) or isinstance(part, Slide) else part


def _acting(
    axes: tuple[AxisType, ...], spaces: Mapping[str, Space], values: Values
) -> tuple[AxisType, ...]:
    """The axes of a tensor with nothing but what acts, and what tells the copies of that apart."""
    moving = {s for s in _everything(axes) if s in values}
    acting = moving | {base for s in moving for base in spaces[s].over}

    def change(part: Carried) -> AxisType:
        left = tuple(factor for factor in part.factors if factor[0] in acting)
        if not left:
            return Fixed(spaces[part.factors[0][0]].size)
        return Carried(left, part.frame if left[0] == part.factors[0] else ())

    return tuple(with_parts(axis, change) for axis in axes)


def _in_box(
    axes: tuple[AxisType, ...], box: tuple[Range | int, ...]
) -> tuple[AxisType, ...] | None:
    """The types in a box, where they are the same in all of it; None otherwise."""
    by = cutting(axes)
    ends = [(own, own + 1) if isinstance(own, int) else own for own in box]
    places = [range(*own) if k in by else own[:1] for k, own in enumerate(ends)]
    found = {tuple(at_place(axes, place)) for place in itertools.product(*places)}
    return found.pop() if len(found) == 1 else None


def _everything(axes: tuple[AxisType, ...]) -> Iterator[str]:
    for axis in axes:
        yield from spaces_of(axis)


def _indices(
    axes: tuple[AxisType, ...], window: Window, spaces: Mapping[str, Space]
) -> dict[str, int] | None:
    """The unit of each space of which a window has one; None where that does not tell a copy."""
    pairs = zip(axes, window.box, strict=True)
    found = {s: own for axis, own in pairs if isinstance(own, int) for s in spaces_of(axis)}
    carried = [*_everything(axes)]
    if any(carried.count(s) > 1 or spaces[s].over for s in found):
        return None
    return found


def _cuts(
    axes: tuple[AxisType, ...], window: Window, spaces: Mapping[str, Space], values: Values
) -> tuple[tuple[AxisType, ...], Window] | None:
    """The types of the axes of a window, and the window that it is read from."""
    cut = []
    for axis, own in zip(axes, window.box, strict=True):
        found = _cut(axis, own, spaces, values)
        if found is None:
            return None
        cut.append(found)
    types = tuple(cut[k][0] for k in window.axes)
    carried = [*_everything(types)]
    if len({*carried}) < len(carried) and [*window.axes] != sorted(window.axes):
        return None  # which of several axes tells a copy depends on their order
    return types, Window(tuple(place for _, place in cut), window.axes)


def _cut(
    axis: AxisType, own: Range | int, spaces: Mapping[str, Space], values: Values
) -> tuple[AxisType, Range | int] | None:
    """The type of what a window has of an axis, and from where on the axis it is read."""
    sizes = {s: spaces[s].size for s in spaces_of(axis)}
    if isinstance(own, int):
        return _indexed(axis, own, spaces, values)
    low, high = own
    if not sizes:
        return Fixed(high - low), own
    terms = [*_terms(axis, low, high, sizes)]
    if sum(term.size(sizes) for term in terms) != high - low:
        return None
    return (terms[0] if len(terms) == 1 else Sum(tuple(terms))), own


def _terms(axis: AxisType, low: int, high: int, sizes: Sizes) -> Iterator[AxisType]:
    """The terms of a sum that lie in a range; what is cut by an end of it is left out."""
    if not isinstance(axis, Sum):
        if low <= 0 and axis.size(sizes) <= high:
            yield axis
        return
    for term in axis.terms:
        size = term.size(sizes)
        if low < size and high > 0:
            yield from _terms(term, low, high, sizes)
        low, high = low - size, high - size


def _indexed(
    axis: AxisType, index: int, spaces: Mapping[str, Space], values: Values
) -> tuple[AxisType, int] | None:
    """Of which index of an axis a window with one index of it is read."""
    if not any(spaces_of(axis)):
        return Fixed(1), index
    if not isinstance(axis, Carried) or axis.frame:
        return None
    own = {s: spaces[s] for s in spaces_of(axis)}
    if any(space.over for space in own.values()):
        return None
    alone = ParameterSymmetry(own, {_AXIS: (axis,)})
    plans = axis_plans(alone, own, {s: v for s, v in values.items() if s in own}, _AXIS,
                       torch.float64, {})  # fmt: skip
    if plans is None or plans[0].mixed or plans[0].second or plans[0].scale is not None:
        return None
    order = plans[0].order
    return Fixed(1), index if order is None else int(order[index])


_AXIS = "axis"


def _symmetry_of(
    name: str, axes: tuple[AxisType, ...], spaces: Mapping[str, Space], gone: Mapping[str, int]
) -> ParameterSymmetry:
    """That of one tensor, in which some indices have been chosen."""
    carried = dict.fromkeys(_everything(axes))
    below = dict.fromkeys(base for s in carried for base in spaces[s].over if base not in gone)
    left = {}
    for s in {**below, **carried}:
        over = tuple(base for base in spaces[s].over if base not in gone)
        left[s] = Space(s, spaces[s].group, over)
    return ParameterSymmetry(left, {name: axes})


def _copy(
    spaces: Mapping[str, Space], space: Space, value: Element, indexed: Mapping[str, int]
) -> Element:
    """The value of the copies of a space that stand over some indices."""
    value = value.expand(torch.Size(spaces[base].size for base in space.over))
    for place, base in reversed([*enumerate(space.over)]):
        if base in indexed:
            value = value.map(lambda x, _, k=place, i=indexed[base]: x.select(k, i))
    return value

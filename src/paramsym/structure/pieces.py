"""Piecewise types taken apart: tensors, and products, in pieces in which each axis has one type."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from paramsym.structure.axes import (
    AxisType,
    Fixed,
    Piecewise,
    Product,
    Sizes,
    Sum,
    piecewise,
    whole_of,
)


def cutting(axes: Iterable[AxisType]) -> set[int]:
    """The axes by whose pieces others have their types."""
    found = (part for axis in axes for part in whole_of(axis))
    return {part.by for part in found if isinstance(part, Piecewise)}


def unfolded(axes: Sequence[AxisType], at: int) -> list[AxisType]:
    """The axes with the factors of a product for itself."""
    product = axes[at]
    assert isinstance(product, Product)
    return [*axes[:at], *(_counted_from(factor, at) for factor in product.factors), *axes[at + 1 :]]


def _counted_from(axis: AxisType, at: int) -> AxisType:
    """A factor of a product whose first one is at a place among the axes."""
    if not isinstance(axis, Piecewise):
        return axis
    pieces = tuple((n, _counted_from(part, at)) for n, part in axis.pieces)
    return Piecewise(axis.by + at, pieces)


def cut(axis: AxisType, counts: Sequence[int], sizes: Sizes) -> list[AxisType]:
    """An axis in pieces of so many entries.

    Raises `ValueError` where a cut goes through something that is one.
    """
    if len(counts) == 1:
        return [axis]
    if isinstance(axis, Fixed):
        return [Fixed(n) for n in counts]
    if not isinstance(axis, Sum):
        raise ValueError(f"'{axis}' is one, and no pieces of {', '.join(map(str, counts))}")
    left, found = list(axis.terms), []
    for count in counts:
        mine: list[AxisType] = []
        while missing := count - sum(term.size(sizes) for term in mine):
            if (rest := left[0].size(sizes) - missing) > 0:
                left[:1] = cut(left[0], (missing, rest), sizes)
            mine.append(left.pop(0))
        found.append(mine[0] if len(mine) == 1 else Sum(tuple(mine)))
    return found


def first_pieces(
    axes: Sequence[AxisType], sizes: Sizes
) -> tuple[int, list[tuple[int, list[AxisType]]]] | None:
    """The axis by which the first piecewise one is, and the entries and types of each piece.

    None where no axis is piecewise.
    """
    for axis in axes:
        if isinstance(axis, Piecewise):
            found, start, by = [], 0, axis.by
            parts = cut(axes[by], [n for n, _ in axis.pieces], sizes)
            for (count, _), part in zip(axis.pieces, parts, strict=True):
                typed = [_narrowed(other, by, start, start + count) for other in axes]
                typed[by] = part
                found.append((count, typed))
                start += count
            return by, found
    return None


def _narrowed(axis: AxisType, by: int, low: int, high: int) -> AxisType:
    """An axis, of whose pieces by another one some entries are left."""
    if not isinstance(axis, Piecewise):
        return axis
    pieces, start = [], 0
    for count, part in axis.pieces:
        left = min(high, start + count) - max(low, start) if axis.by == by else count
        if left > 0:
            pieces.append((left, _narrowed(part, by, low, high)))
        start += count
    return piecewise(axis.by, pieces)


def plain(
    axes: Sequence[AxisType], sizes: Sizes, starts: tuple[int, ...] | None = None
) -> Iterator[tuple[tuple[int, ...], list[AxisType]]]:
    """The pieces of a tensor in each of which no axis is piecewise: their first places, their axes.

    Raises `ValueError` where a cut goes through something that is one.
    """
    starts = starts or (0,) * len(axes)
    found = first_pieces(axes, sizes)
    if found is None:
        yield starts, list(axes)
        return
    by, cuts = found
    for count, typed in cuts:
        yield from plain(typed, sizes, starts)
        starts = (*starts[:by], starts[by] + count, *starts[by + 1 :])


def at_place(axes: Sequence[AxisType], places: Sequence[int]) -> list[AxisType]:
    """The types that hold at a place of each axis, none of them piecewise; the axes as they are."""
    found = list(axes)
    for k, axis in enumerate(found):
        while isinstance(axis, Piecewise):
            start = itertools.accumulate(n for n, _ in axis.pieces)
            axis = axis.pieces[next(i for i, end in enumerate(start) if places[axis.by] < end)][1]
        found[k] = axis
    return found

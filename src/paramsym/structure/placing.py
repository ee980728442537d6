"""Where a tensor carries the spaces below a space: which copy of its group moves which entries.

A space that stands over others has one copy of its group for each of their units. Every tensor
that carries the space must therefore carry the spaces below it as well, in the same block.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from paramsym.structure.axes import AxisType, Carried, Product, Sum

if TYPE_CHECKING:
    from paramsym.structure.space import Space

Signature = Mapping[str, tuple[AxisType, ...]]
Missing = tuple[str, str, str]  # space, base, parameter


def base_axis(base: str, axes: Sequence[AxisType], origins: Sequence[int], at: int) -> int | None:
    """The position among split axes that tells the copy for what stands at position `at`.

    It is looked for on the same axis of the tensor first, closest from the outside inwards, then
    from the first axis on. None if the block does not carry the base.
    """
    found = [
        k
        for k, axis in enumerate(axes)
        if isinstance(axis, Carried) and any(s == base for s, _ in axis.factors)
    ]
    own = [k for k in found if origins[k] == origins[at] and k != at]
    before = [k for k in own if k < at]
    return (before[-1:] or own or [k for k in found if k != at] or [None])[0]


def blocks(axes: Sequence[AxisType]) -> Iterator[tuple[list[AxisType], list[int]]]:
    """Every choice of a summand on every axis: split axes without sums and products, with the axis
    of the tensor that each comes from."""
    for chosen in itertools.product(*(list(_readings(axis)) for axis in axes)):
        split = [(item, k) for k, items in enumerate(chosen) for item in items]
        yield [item for item, _ in split], [k for _, k in split]


def _readings(axis: AxisType) -> Iterator[tuple[AxisType, ...]]:
    if isinstance(axis, Sum):
        for term in axis.terms:
            yield from _readings(term)
    elif isinstance(axis, Product):
        for parts in itertools.product(*(list(_readings(f)) for f in axis.factors)):
            yield tuple(itertools.chain(*parts))
    else:
        yield (axis,)


def misplaced(spaces: Mapping[str, Space], signature: Signature) -> Iterator[Missing]:
    """Every (space, base, parameter) where a tensor carries a space without one below it."""
    if not any(space.over for space in spaces.values()):
        return
    for name, axes in signature.items():
        for split, origins in blocks(axes):
            for at, axis in enumerate(split):
                for space, _ in axis.factors if isinstance(axis, Carried) else ():
                    for base in spaces[space].over:
                        if base_axis(base, split, origins, at) is None:
                            yield space, base, name

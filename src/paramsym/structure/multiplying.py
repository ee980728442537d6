"""Products and inverses of the values of spaces; copies are read through the orders below them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from paramsym.algebra import Element
from paramsym.structure.data import SymmetryData
from paramsym.structure.space import Space

Values = Mapping[str, Element]


def reindex(
    symmetry: SymmetryData, space: Space, value: Element, values: Values, inverse: bool = False
) -> Element:
    """Copies of a fibered value read through the permutations of the spaces below it."""
    steps = [*enumerate(space.over)]
    for axis, base in reversed(steps) if inverse else steps:  # undone from the last to the first
        order = values[base].order if base in values else None
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


def clash(symmetry: SymmetryData, g: Values, h: Values) -> bool:
    """Whether some space of one part does not commute with one of the other."""
    return any(
        (basis in g and not others.isdisjoint(h)) or (basis in h and not others.isdisjoint(g))
        for basis, others in symmetry.clashes.items()
    )


def letters(symmetry: SymmetryData, part: Values) -> list[Values]:
    """A part as a product of parts without clashes: changes of basis that clash, then the rest."""
    first = {
        basis for basis, others in symmetry.clashes.items()
        if basis in part and not others.isdisjoint(part)
    }  # fmt: skip
    if not first:
        return [part]
    rest = {name: value for name, value in part.items() if name not in first}
    before = {
        name: reindex(symmetry, symmetry.spaces[name], part[name], rest, inverse=True)
        for name in part
        if name in first
    }
    return [before, rest]


def compose(symmetry: SymmetryData, g: Values, h: Values) -> Values:
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


def inverse(symmetry: SymmetryData, g: Values) -> Values:
    """Values that undo those of a part without clashes."""
    inverted = {name: symmetry.spaces[name].group.inverse(value) for name, value in g.items()}
    return {
        name: reindex(symmetry, symmetry.spaces[name], value, g, inverse=True)
        for name, value in inverted.items()
    }

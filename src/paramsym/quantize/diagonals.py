"""The scales inside changes of basis: diagonal matrices, along which ranges are convex.

A change of basis mixes weights, and a range is not convex along it. The positive diagonal matrices
in GL(n) multiply each weight by a number, as every other scale does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from paramsym.algebra import Element, GeneralLinear, PositiveScaling
from paramsym.algebra.element import dense
from paramsym.geometry.costs import scaled_by
from paramsym.structure.element import GroupElement, Slide
from paramsym.structure.symmetry import ParameterSymmetry


def with_diagonals(symmetry: ParameterSymmetry) -> ParameterSymmetry:
    """The subgroup in which every change of basis is a positive diagonal matrix, names unchanged.

    All other spaces keep their groups. Bases in the frame of a gain stay whole.
    """
    spaces = dict(symmetry.spaces)
    for name, space in symmetry.spaces.items():
        framed = any(leg.frame for leg in symmetry.legs(name))
        if isinstance(space.group, GeneralLinear) and not framed:
            spaces[name] = replace(space, group=PositiveScaling(space.size))
    return replace(symmetry, spaces=spaces) if spaces != symmetry.spaces else symmetry


def in_whole(symmetry: ParameterSymmetry, element: GroupElement) -> GroupElement:
    """An element of the subgroup with diagonals as the one of the whole symmetry that it is."""

    def one(name: str, value: Element) -> Element:
        space = symmetry.spaces[name]
        if value.matrix is None and isinstance(space.group, GeneralLinear):
            return Element(matrix=dense(value, space.size))
        return value

    parts = (
        part
        if isinstance(part, Slide)
        else {name: one(name, value) for name, value in part.items()}
        for part in element.parts
    )
    return GroupElement(symmetry, tuple(parts))


def scaled_within(symmetry: ParameterSymmetry, logs: Mapping[str, Tensor]) -> GroupElement:
    """The element of a symmetry with given logarithms of scales, by space, of shape (copies…, n);
    of a change of basis they are the logarithms of a diagonal matrix."""
    bases = {n for n in logs if isinstance(symmetry.spaces[n].group, GeneralLinear)}
    scales = scaled_by(symmetry, {n: y for n, y in logs.items() if n not in bases})
    if not bases:
        return scales
    return (
        symmetry.element({n: torch.diag_embed(logs[n].exp()) for n in logs if n in bases}) @ scales
    )

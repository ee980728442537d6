"""The compact part of a symmetry at parameters that have been reduced: what still lies between two.

Where a point of an orbit is balanced, the others that are balanced too differ from it by a compact
element (Kempf and Ness, 1979): orders, signs, rotations, phases. These keep all distances, so that
what is left to do is to bring one point near another by orthogonal maps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from torch import Tensor

from paramsym.algebra import Orthogonal
from paramsym.structure.axes import AxisType, Carried, Fixed, Product, Sum
from paramsym.structure.layout import widened
from paramsym.structure.origin import added
from paramsym.structure.symmetry import ParameterSymmetry


def compact_part(
    symmetry: ParameterSymmetry, units: Collection[str], held: Collection[str], counted: Collection[str]
) -> ParameterSymmetry:
    """The symmetry of orthogonal maps, without frames, on the effective parameters that count.

    Args:
        symmetry: derived or written by hand.
        units: gains that are one, in whose frames nothing is left to say.
        held: spaces that do not move.
        counted: the parameters on which it acts.
    """
    moving = [
        space.name
        for space in symmetry.spaces.values()
        if space.exact and space.name not in {*held, *_framed(symmetry, units)}
    ]
    if not moving:
        spaces, signature = {}, {n: tuple(_still(a, symmetry) for a in axes) for n, axes in symmetry.signature.items()}
    else:
        small = symmetry.restrict(Orthogonal, spaces=map(_literal, moving), translations=False)
        spaces, signature = small.spaces, small.signature
    return ParameterSymmetry(
        spaces,
        {n: tuple(map(_unframed, axes)) for n, axes in signature.items() if n in counted},
    )


def _literal(name: str) -> str:
    return name


def _framed(symmetry: ParameterSymmetry, units: Collection[str]) -> set[str]:
    """Spaces that act in the frame of a gain that is not one."""
    return {
        leg.space
        for space in symmetry.spaces
        for leg in symmetry.legs(space)
        if any(item.parameter not in units for item in leg.frame)
    }


def _still(axis: AxisType, symmetry: ParameterSymmetry) -> AxisType:
    return Fixed(axis.size(symmetry.sizes))


def _unframed(axis: AxisType) -> AxisType:
    if isinstance(axis, Carried):
        return Carried(axis.factors)
    if isinstance(axis, Product):
        return Product(tuple(map(_unframed, axis.factors)))
    if isinstance(axis, Sum):
        return Sum(tuple(map(_unframed, axis.terms)))
    return axis

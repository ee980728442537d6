"""The compact part of a symmetry at parameters that have been reduced: what still lies between two.

Where a point of an orbit is balanced, the others that are balanced too differ from it by a compact
element (Kempf and Ness, 1979): orders, signs, rotations, phases. These keep all distances, so that
what is left to do is to bring one point near another by orthogonal maps.
"""

from __future__ import annotations

from collections.abc import Collection

from paramsym.algebra import Orthogonal
from paramsym.structure.axes import AxisType, Carried, Product, Sum
from paramsym.structure.symmetry import ParameterSymmetry


def compact_part(
    symmetry: ParameterSymmetry, units: Collection[str], names: Collection[str]
) -> ParameterSymmetry:
    """The orthogonal maps of a symmetry, without frames, as they act on effective parameters.

    Approximate families are left out, and so is what acts in the frame of a gain that is not one:
    there it keeps no distances.

    Args:
        symmetry: derived or written by hand.
        units: gains that are one.
        names: the parameters on which it acts.
    """
    held = {
        space for space in symmetry.spaces for leg in symmetry.legs(space)
        if any(item.parameter not in units for item in leg.frame)
    }  # fmt: skip
    kept = [s.name for s in symmetry.spaces.values() if s.exact and s.name not in held]
    small = symmetry.restrict(Orthogonal, spaces=kept, translations=False)
    signature = {n: tuple(map(_unframed, axes)) for n, axes in small.signature.items()}
    return ParameterSymmetry(small.spaces, {n: signature[n] for n in names})


def _unframed(axis: AxisType) -> AxisType:
    if isinstance(axis, Carried):
        return Carried(axis.factors)
    if isinstance(axis, Product):
        return Product(tuple(map(_unframed, axis.factors)))
    if isinstance(axis, Sum):
        return Sum(tuple(map(_unframed, axis.terms)))
    return axis

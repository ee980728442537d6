"""The compact part of a symmetry at parameters that have been reduced: what still lies between two.

Where a point of an orbit is balanced, the others that are balanced too differ from it by a compact
element (Kempf and Ness, 1979): orders, signs, rotations, phases. These keep all distances, so that
what is left to do is to bring one point near another by orthogonal maps.
"""

from __future__ import annotations

from collections.abc import Collection

from paramsym.algebra import Orthogonal
from paramsym.geometry.unframed import without_frames
from paramsym.structure.symmetry import ParameterSymmetry


def compact_part(
    symmetry: ParameterSymmetry, stuck: Collection[str], names: Collection[str]
) -> ParameterSymmetry:
    """The orthogonal maps of a symmetry, as they act on parameters outside of frames.

    Args:
        symmetry: derived or written by hand; its approximate families are left out.
        stuck: spaces that cannot act.
        names: the parameters on which it acts.
    """
    plain = without_frames(symmetry, stuck)
    kept = [s.name for s in symmetry.spaces.values() if s.exact and s.name not in stuck]
    small = plain.restrict(Orthogonal, spaces=kept, translations=False)
    return ParameterSymmetry(small.spaces, {n: small.signature[n] for n in names})

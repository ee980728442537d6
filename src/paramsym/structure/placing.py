"""Where a tensor carries the spaces below a space: which copy of its group moves which entries.

A space that stands over others has one copy of its group for each of their units. Every tensor
that carries the space must therefore carry the spaces below it as well, in the same block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paramsym.structure.axes import spaces_of
from paramsym.structure.space import Space
from paramsym.structure.walk import Signature, blocks_of

Missing = tuple[str, str, str]  # space, base, parameter


def misplaced(spaces: Mapping[str, Space], signature: Signature) -> Iterator[Missing]:
    """Every (space, base, parameter) where a tensor carries a space without one below it."""
    copied = {space.name for space in spaces.values() if space.over}
    carrying = {
        name: axes for name, axes in signature.items()
        if any(space in copied for axis in axes for space in spaces_of(axis))
    }  # fmt: skip
    for name, found in blocks_of(spaces, carrying).items():
        for leg in (leg for block in found for leg in block.legs):
            for base, axis in zip(spaces[leg.space].over, leg.copies, strict=True):
                if axis < 0:
                    yield leg.space, base, name

"""Slices of a tensor that move by themselves: where nothing acts along the axis that is cut.

A weight whose rows are spread over ranks is moved column by column of a change of basis, and each
rank does so with its own rows: nothing is sent. Its type is that of the whole with the cut axis
held fixed at the length of the slice. What acts along the cut axis, or tells its copies apart
there, needs the whole (`whole`), which is also the twin of this in the tests.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import torch

from paramsym.structure.axes import Fixed, spaces_of
from paramsym.structure.blockwise import moved
from paramsym.structure.element import Part, Slide, Values
from paramsym.structure.needs import reads
from paramsym.structure.pieces import cutting
from paramsym.structure.shift import Params
from paramsym.structure.space import Space
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.whole import is_sharded, whole


def moved_in_slices(
    symmetry: ParameterSymmetry,
    spaces: Mapping[str, Space],
    values: Part,
    name: str,
    params: Params,
) -> torch.Tensor | None:
    """`blockwise.moved` of a `DTensor`, slice by slice; None where that would not be the same.

    Args:
        symmetry: of the whole.
        spaces: whose groups the values are of.
        values: what moves the tensor; slides read whole windows.
        name: the tensor.
        params: it and the gains that it needs, spread or not.
    """
    x: Any = params[name]
    if isinstance(values, Slide) or not is_sharded(x) or symmetry.offsets.get(name):
        return None
    if any(p.is_partial() for p in x.placements):
        return None
    cut = {p.dim for p in x.placements if not p.is_replicate()}
    if _reaches(symmetry, values, name, cut):
        return None
    from torch.distributed.tensor import DTensor

    mine = x.to_local()
    read = {n: whole(params[n]) for n in reads(symmetry, values, name)}  # by empty slices, too
    if mine.numel():
        axes = enumerate(symmetry.signature[name])
        typed = tuple(Fixed(mine.shape[k]) if k in cut else axis for k, axis in axes)
        mine = moved(_alone(symmetry, name, typed), spaces, values, name, {**read, name: mine})
    return DTensor.from_local(
        mine, x.device_mesh, x.placements, run_check=False, shape=x.shape, stride=x.stride()
    )


def _reaches(symmetry: ParameterSymmetry, values: Values, name: str, cut: Collection[int]) -> bool:
    """Whether values act along some axes of a tensor, or on copies or types that these tell."""
    axes = symmetry.signature[name]
    if cutting(axes):
        return True
    there = {s for k in cut for s in spaces_of(axes[k])}
    along = {s for k, axis in enumerate(axes) if k not in cut for s in spaces_of(axis)}
    bases = {base for s in along for base in symmetry.spaces[s].over}
    return not there.isdisjoint({*values} | bases)


def _alone(symmetry: ParameterSymmetry, name: str, axes: tuple[Any, ...]) -> ParameterSymmetry:
    """The symmetry of one tensor."""
    own = {s for axis in axes for s in spaces_of(axis)}
    own |= {base for s in own for base in symmetry.spaces[s].over}
    return replace(
        symmetry, spaces={n: s for n, s in symmetry.spaces.items() if n in own},
        signature={name: axes}, shifts=(), dead=(), ties={}, offsets={}, buffers=(), inputs={},
        outputs={},
    )  # fmt: skip

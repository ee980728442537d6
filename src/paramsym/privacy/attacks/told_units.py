"""Which units of a network its tensors tell apart: equal ones and dead ones have no name.

Two units that carry the same, up to their scales, can change places without anybody noticing, and a
unit whose every tensor is zero has no scale. Where one network is matched to a moved copy of
itself, such units are matched by chance, and nothing may be concluded from them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from paramsym.algebra import AbstractMonomial, Group
from paramsym.algebra.linear import AbstractRotation, OrthogonalFixingOnes
from paramsym.geometry.reduced import reduce
from paramsym.geometry.unframed import unframed_params, without_frames
from paramsym.structure.pairing import rows
from paramsym.structure.symmetry import ParameterSymmetry

_SAME = 1e-6  # of the largest unit: what is nearer is one, and what is smaller is nothing


def told_units(symmetry: ParameterSymmetry, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Which units of each space are told from all others, and along which bases anything stands.

    Units are compared at the reduced point, where scales are balanced: there, equal units carry
    equal rows. Rows that differ by signs count as equal, which may leave out more than need be. A
    change of basis is told as a whole or not at all.

    Args:
        symmetry: which spaces, and which tensors tell them.
        params: the complete state dict.

    Returns:
        By space a boolean tensor of shape (*copies, n).
    """
    point = reduce(symmetry, params)
    plain = without_frames(symmetry, point.stuck)
    units = unframed_params(symmetry, point.params, point.stuck)
    found: dict[str, Tensor] = {}
    for name, space in plain.spaces.items():
        copies = [plain.spaces[base].size for base in space.over]
        sides = _rows(plain, units, name)
        told = torch.zeros(*copies, space.size, dtype=torch.bool)
        if sides and name not in point.stuck:
            whole = torch.cat([*sides.values()], -1)
            if isinstance(space.group, AbstractMonomial):
                told = _are_told(whole, space.group.permutes)
            else:
                told = told | _is_spanned(space.group, sides, whole)[..., None]
        found[name] = told
    return found


def _rows(plain: ParameterSymmetry, units: Mapping[str, Tensor], space: str) -> dict[bool, Tensor]:
    """What the units of a space carry, by whether it is dual, each (*copies, n, entries)."""
    found: dict[bool, list[Tensor]] = {}
    for name in plain.parameters_of(space):
        if name in units and units[name].is_floating_point():
            for block in plain.blocks[name]:
                for leg in (leg for leg in block.legs if leg.space == space):
                    own = rows(block.view(units[name]), leg).double()
                    found.setdefault(leg.is_dual, []).append(own)
    return {side: torch.cat(own, -1) for side, own in found.items()}


def _is_spanned(group: Group, sides: Mapping[bool, Tensor], whole: Tensor) -> Tensor:
    """Whether what stands on a basis determines it, copy by copy."""
    if isinstance(group, OrthogonalFixingOnes):
        whole = torch.cat([whole, whole.amax() * torch.ones_like(whole[..., :1])], -1)
    alone = [whole] if isinstance(group, AbstractRotation) else [*sides.values()]
    ranks = [torch.linalg.matrix_rank(each, rtol=_SAME) for each in alone]
    return torch.stack(ranks).amax(0) == group.size


def _are_told(units: Tensor, permutes: bool) -> Tensor:
    """Which rows are not zero and, where they change places, differ from all others."""
    sizes = torch.linalg.vector_norm(units, dim=-1)  # (*copies, n)
    level = _SAME * sizes.amax()
    told = sizes > level
    if permutes:
        apart = torch.cdist(units.abs(), units.abs(), compute_mode="donot_use_mm_for_euclid_dist")
        apart.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
        told = told & (apart.amin(-1) > level)
    return told

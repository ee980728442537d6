"""How a covector pairs with all generators of a symmetry, read off the blocks of its tensors.

Let a space act on the rows of a block x, copy by copy, and let ξ be the block of a covector. With
the matrix M = Σ ξ xᵀ over everything else, a velocity A of the space pairs to

    ⟨ξ, A x⟩ = ⟨A, M⟩,        ⟨ξ, −Aᵀ x⟩ = ⟨A, −Mᵀ⟩        on a dual axis,

so that M, added up over all blocks with its sign, says everything; for powers p of monomial groups
p times its diagonal does. In the frame of a gain f the velocity is f A f⁻¹ x, and f ξ and f⁻¹ x
take the places of ξ and x. Coordinates are orthonormal, whence ⟨X_j, M⟩ are those of the projection
of M onto the algebra: `Group.coordinates`.

This is the adjoint of the derivative of `act` at the identity, at the cost of one product of
matrices for each axis instead of a pass forwards and one in reverse.
"""

from __future__ import annotations

import torch

from paramsym.algebra import AbstractMonomial, Tangent
from paramsym.structure.data import SymmetryData
from paramsym.structure.frames import frame_of, framed, unframed
from paramsym.structure.origin import added
from paramsym.structure.shift import Params
from paramsym.structure.sliding import shift_pairing
from paramsym.structure.walk import Blocks, Leg
from paramsym.structure.whole import whole


def paired(
    symmetry: SymmetryData, params: Params, covector: Params, blocks: Blocks | None = None
) -> dict[str, torch.Tensor]:
    """⟨ξ, X_j θ⟩ for the generators of every space and shift that moves what the covector names.

    Args:
        symmetry: whose generators they are.
        params: θ, the complete state dict.
        covector: ξ, by names of the signature and in the dtype of the parameters.
        blocks: what spaces do, if not `symmetry.blocks`.

    Returns:
        By space the coordinates of `Group.tangent`, of shape (copies…, dimension of the group), and
        by shift a tensor of its shape.

    Raises:
        ValueError: a gain that serves as a frame has a zero.
    """
    sums = _sums(symmetry, params, covector, symmetry.blocks if blocks is None else blocks)
    pairs = {
        space: symmetry.spaces[space].group.coordinates(_tangent(symmetry, space, m))
        for space, m in sums.items()
    }
    for shift in symmetry.shifts:
        if (along := shift_pairing(shift, covector, params)) is not None:
            pairs[shift.name] = along
    return pairs


def _sums(
    symmetry: SymmetryData, params: Params, covector: Params, blocks: Blocks
) -> dict[str, torch.Tensor]:
    """M of every space that some block moves."""
    sums: dict[str, torch.Tensor] = {}
    for name in covector:
        if name not in blocks:
            continue
        given = whole(covector[name])
        same = covector[name] is params[name]
        theta = given if same else whole(params[name]).to(given.dtype)
        own = added(theta, symmetry.offsets.get(name, 0.0))
        for block in blocks[name]:
            legs = [leg for leg in block.legs if leg.power and _moves(symmetry, leg)]
            if not legs:
                continue
            xi = block.view(given)
            x = xi if same and own is given else block.view(own)
            for leg in legs:
                found = _along(symmetry, params, leg, xi, x)
                sums[leg.space] = sums[leg.space] + found if leg.space in sums else found
    return sums


def _moves(symmetry: SymmetryData, leg: Leg) -> bool:
    return symmetry.spaces[leg.space].group.dimension > 0


def _tangent(symmetry: SymmetryData, space: str, m: torch.Tensor) -> Tangent:
    monomial = isinstance(symmetry.spaces[space].group, AbstractMonomial)
    return Tangent(diagonal=m) if monomial else Tangent(matrix=m)


def _along(
    symmetry: SymmetryData, params: Params, leg: Leg, xi: torch.Tensor, x: torch.Tensor
) -> torch.Tensor:
    """The matrix M of one leg with its sign, of shape (*copies, n, n), or its diagonal."""
    if isinstance(symmetry.spaces[leg.space].group, AbstractMonomial):
        both = torch.linalg.vecdot(rows(xi, leg), rows(x, leg))  # frames commute
        return float(leg.power) * (both.real if both.is_complex() else both)
    same = xi is x
    if leg.frame:
        frame, same = frame_of(leg, params, x, x.dtype), False
        xi, x = framed(xi, leg, frame), unframed(x, leg, frame)
    left = rows(xi, leg)
    right = left if same else rows(x, leg)
    m = (left.conj() @ right.mT).real if left.is_complex() else left @ right.mT
    return -m.mT if leg.power == -1 else m


def rows(x: torch.Tensor, leg: Leg) -> torch.Tensor:
    """A block as (*copies, n, everything else), the axis of a leg as its rows."""
    front = (*leg.copies, leg.axis)
    return x.movedim(front, tuple(range(len(front)))).reshape(*(x.shape[k] for k in front), -1)

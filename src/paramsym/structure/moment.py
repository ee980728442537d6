"""The moment map: how fast the norm of the parameters changes under every generator."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.tangent import tangent


def moment_map(
    symmetry: ParameterSymmetry, params: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The moments of parameters, one for each generator X_j of the symmetry:

        μ_j(θ) = ⟨θ, X_j θ⟩ = d/dt ½ ‖exp(t X_j) · θ‖² at t = 0.

    Gradient flow moves θ at right angles to every X_j θ, because the loss is constant along
    orbits; where X_j is symmetric, as for scales and changes of basis, it therefore keeps μ_j. For
    a linear interface W₂ W₁ it is W₁ W₁ᵀ − W₂ᵀ W₂. The moments vanish exactly at the points of an
    orbit where the norm is stationary.

    The norm is that of the parameters as they are stored; buffers do not count, and tied tensors
    count once. It costs one Gram matrix for each axis that moves, with its sign and its power, and
    a contraction for each term of a shift; nothing is moved.

    Args:
        symmetry: what `find_symmetry` derived.
        params: the complete state dict.

    Returns:
        By space the matrix μ with ⟨θ, A θ⟩ = ⟨A, μ⟩ for every A of its Lie algebra, of shape
        (copies…, n, n), skew for rotations. For groups that mix nothing its diagonal, (copies…, n),
        for complex scalings in complex numbers, (copies…, n/2); where a group has copies of its
        own, the coordinates of `Group.tangent`. By shift a tensor of its shape. Spaces without a
        continuous part have none.

    Raises:
        ValueError: as `act`.
    """
    own = {n: p for n, p in params.items() if n not in symmetry.buffers}
    return pairings(symmetry, params, own)


def pairings(
    symmetry: ParameterSymmetry,
    params: Mapping[str, torch.Tensor],
    covector: Mapping[str, torch.Tensor],
) -> dict[str, torch.Tensor]:
    """⟨ξ, X_j θ⟩ for every generator, by space and shift, in the shapes of `moment_map`."""
    operator = tangent(symmetry, params)
    return {
        block.name: part if block.is_shift else _shaped(symmetry, block.name, part)
        for block, part in operator.split(operator.rmatvec(covector))
    }


def _shaped(symmetry: ParameterSymmetry, space: str, coordinates: torch.Tensor) -> torch.Tensor:
    """An element of the Lie algebra as its matrix, or its diagonal."""
    velocity = symmetry.spaces[space].group.tangent(coordinates)
    found = velocity.diagonal if velocity.matrix is None else velocity.matrix
    return coordinates if found is None else found

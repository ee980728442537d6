"""Gram matrices of a space: how much of the parameters stands on its axes, and how it is mixed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch

from paramsym.algebra import AbstractMonomial
from paramsym.structure.frames import frame_of, unframed
from paramsym.structure.origin import added
from paramsym.structure.pairing import rows as rows_of
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.walk import Leg
from paramsym.structure.whole import whole


class Gram(NamedTuple):
    """The covariant and the dual Gram matrix of a space, one for each copy of its group.

    Of shape (*copies, n, n); of a monomial group, which does not mix coordinates, the diagonals
    alone, (*copies, n).
    """

    covariant: torch.Tensor
    dual: torch.Tensor


def gram(symmetry: ParameterSymmetry, params: Mapping[str, torch.Tensor], space: str) -> Gram:
    """The Gram matrices of what carries a space, covariantly and dually.

    With X the blocks that carry the space (to the power 1, folded into the frame where it acts in
    one) as matrices with its coordinates as rows, and Y those that carry its dual,

        covariant = Σ X Xᵀ,    dual = Σ Y Yᵀ,

    so that g acts by g G gᵀ and g⁻ᵀ G g⁻¹, and d/dt ½‖exp(tA)·θ‖² = ⟨A, covariant − dual⟩ where
    there are no frames. Powers p of monomial groups enter with the weight |p|, on the side of their
    sign. Entries of complex tensors count by their modulus.

    Args:
        symmetry: whose space it is.
        params: parameters by name, at which the matrices are taken; tied names count once.
        space: the name of the space.

    Returns:
        Two tensors in the dtype of the parameters, of shape (*copies, n, n), or (*copies, n) for a
        monomial group, with the units of what the space stands over as leading dimensions.

    Raises:
        KeyError: the symmetry has no such space.
        ValueError: a gain in whose frame it acts has a zero.

    Source: Du, Hu and Lee, "Algorithmic regularization in learning deep homogeneous models: layers
    are automatically balanced" (2018): gradient flow conserves covariant − dual.
    """
    if space not in symmetry.spaces:
        raise KeyError(
            f"gram(…, {space!r}): it is no space of this symmetry. Expected one of "
            f"{[*symmetry.spaces][:12]}; print(symmetry) lists them."
        )
    own, first = symmetry.spaces[space], next(iter(params.values()))
    shape = [*(symmetry.spaces[base].size for base in own.over), own.size]
    diagonal = isinstance(own.group, AbstractMonomial)
    numbers = first.is_floating_point() or first.is_complex()
    zero = torch.zeros(
        shape if diagonal else [*shape, own.size], device=first.device,
        dtype=first.dtype.to_real() if numbers else None,
    )  # fmt: skip
    sums = [zero, zero]
    for leg, x in _blocks(symmetry, params, space):
        rows = rows_of(_unframed(x, leg, params), leg)
        if diagonal:
            found = abs(float(leg.power)) * rows.abs().square().sum(-1)
        else:
            found = (rows @ rows.mH).real if rows.is_complex() else rows @ rows.mT
        k = int(leg.is_dual)
        sums[k] = sums[k] + found.to(zero.dtype)
    return Gram(*sums)


def _blocks(
    symmetry: ParameterSymmetry, params: Mapping[str, torch.Tensor], space: str
) -> Iterator[tuple[Leg, torch.Tensor]]:
    """Every leg of a space with the block that it acts on, the model's own constants added."""
    for name in symmetry.parameters_of(space):
        if name in params and name not in symmetry.ties:
            tensor = added(whole(params[name]), symmetry.offsets.get(name, 0.0))
            for block in symmetry.blocks[name]:
                for leg in block.legs:
                    if leg.space == space and leg.power:
                        yield leg, block.view(tensor)


def _unframed(x: torch.Tensor, leg: Leg, params: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """A block out of the frame of its gains."""
    return unframed(x, leg, frame_of(leg, params, x, x.dtype)) if leg.frame else x

"""Draws that know what a network's weights are like, but share nothing else with it.

What two unrelated networks of one architecture have in common sets how near they can be brought by
chance. Three things are in common before anything is copied, and a draw keeps all three:

    the spectrum         how large and of what rank each tensor is
    what is fixed        inputs, outputs, vocabulary, positions and places in a kernel mean the same
                         to both, so that data leaves the same covariance along them
    what ones see        means over units: orders keep them, and training moves them alike

Everything else lies along axes on which the symmetry acts. There a draw is turned by a rotation R
of its own for each tensor, Haar among those that keep (1, …, 1): W = U S Vᵀ becomes R W Qᵀ, with
the same singular values. A vector has its entries put in a random order.

Draws with Haar U and V of every matrix leave out the second and the third. They lie too far out:
two networks that were trained independently, on the same images, reach 0.6 to 0.8 of their
distance, and 0.8 to 0.9 of the distance of these.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from paramsym.algebra import OrthogonalFixingOnes
from paramsym.geometry.bringing import counted
from paramsym.structure.layout import laid_like, widened
from paramsym.structure.origin import added
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.walk import Block


def independent_draw(
    symmetry: ParameterSymmetry, params: Mapping[str, Tensor], generator: torch.Generator
) -> dict[str, Tensor]:
    """Parameters with the spectra of those given, turned at random along all axes that move.

    Each block of each tensor is multiplied, along each axis on which a space acts, by a random
    rotation that keeps (1, …, 1), drawn anew for every axis. Vectors are put in a random order.
    Axes on which nothing acts are left alone, and so are buffers and what is dead. Constants that
    the model adds (a gain stored as γ − 1) are added before and taken off afterwards.

    Args:
        symmetry: which axes move. It should be that at which `params` are reduced: spectra depend
            on the place in the orbit.
        params: the complete state dict, which is only read.
        generator: of the randomness.

    Returns:
        A new dict, with tied tensors tied.

    Source: Haar rotations by QR: Mezzadri, How to generate random matrices from the classical
        compact groups (2007), arXiv math-ph/0609050.
    """
    drawn = dict(params)
    for name in counted(symmetry, params):
        own = params[name]
        origin = symmetry.offsets.get(name, 0.0)
        tensor = added(widened(own), origin).clone(memory_format=torch.contiguous_format)
        for block in symmetry.blocks[name]:
            _turn(block, tensor, generator)
        tensor = added(tensor, -origin) if origin else tensor
        made = laid_like(tensor.to(own.dtype), own)
        drawn |= {n: made for n in (name, *symmetry.aliases.get(name, ())) if n in params}
    return drawn


def _turn(block: Block, tensor: Tensor, generator: torch.Generator) -> None:
    """Turn one block of a tensor in place."""
    view = block.view(tensor)
    axes = sorted({leg.axis for leg in block.legs if view.shape[leg.axis] > 1})
    for axis in axes:
        size = view.shape[axis]
        if view.numel() == size:
            order = torch.randperm(size, generator=generator, device=generator.device)
            view.copy_(view.index_select(axis, order.to(view.device)))
            continue
        turn = OrthogonalFixingOnes(size).sample(generator, dtype=torch.float64).matrix
        assert turn is not None
        rows = view.movedim(axis, 0)
        rows.copy_((turn.to(view) @ rows.reshape(size, -1)).reshape(rows.shape))

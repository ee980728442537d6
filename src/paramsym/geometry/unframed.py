"""Coordinates in which changes of basis act without frames.

In the frame f of some gains a basis g moves an axis by x ↦ d f g f⁻¹ x, with d the scales beside
it. For x̃ = f⁻¹ x (f x on dual axes) that is x̃ ↦ d̃ g x̃, where d̃ is what is left of d after the
frame has moved as well: often nothing. In these coordinates rotations keep the norm, and Kempf and
Ness apply as if there were no gains.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from fractions import Fraction

import torch
from torch import Tensor

from paramsym.structure.axes import AxisType, Carried, Fixed, Product, Sum, frames_of
from paramsym.structure.frames import frame_of, unframed
from paramsym.structure.origin import added
from paramsym.structure.symmetry import ParameterSymmetry

Params = Mapping[str, Tensor]


def without_frames(symmetry: ParameterSymmetry, stuck: Collection[str]) -> ParameterSymmetry:
    """The symmetry as it acts on `unframed_params`, without shifts and constants.

    Args:
        symmetry: derived or written by hand.
        stuck: spaces whose frames stay, because they cannot act.
    """
    signature = {
        name: tuple(_typed(symmetry, axis, stuck) for axis in axes)
        for name, axes in symmetry.signature.items()
    }
    return replace(symmetry, signature=signature, shifts=(), offsets={}, inputs={}, outputs={})


def _typed(symmetry: ParameterSymmetry, axis: AxisType, stuck: Collection[str]) -> AxisType:
    if isinstance(axis, Product):
        return Product(tuple(_typed(symmetry, part, stuck) for part in axis.factors))
    if isinstance(axis, Sum):
        return Sum(tuple(_typed(symmetry, part, stuck) for part in axis.terms))
    if isinstance(axis, Fixed) or axis.factors[0][0] in stuck:
        return axis
    (space, power), *beside = axis.factors
    charges: dict[str, Fraction] = {}
    for name, own in beside:
        charges[name] = charges.get(name, Fraction(0)) + own
    for frame in axis.frame:
        exponent = Fraction(frame.exponent) * (-1 if power < 0 else 1)
        for name, own in _factors(symmetry, frame.parameter):
            charges[name] = charges.get(name, Fraction(0)) - exponent * own
    left = [(name, charge) for name, charge in charges.items() if charge]
    return Carried(((space, power), *left))


def _factors(symmetry: ParameterSymmetry, name: str) -> tuple[tuple[str, Fraction], ...]:
    """The scales of a gain, which is a vector."""
    axes = symmetry.signature.get(name, ())
    return axes[0].factors if len(axes) == 1 and isinstance(axes[0], Carried) else ()


def unframed_params(
    symmetry: ParameterSymmetry, params: Params, stuck: Collection[str]
) -> dict[str, Tensor]:
    """The effective parameters, constants added, each taken out of the frames of its gains.

    Args:
        symmetry: whose frames they are.
        params: the complete state dict.
        stuck: spaces whose frames stay.
    """
    found = dict(params)
    for name, axes in symmetry.signature.items():
        if name not in params:
            continue
        tensor = added(params[name], symmetry.offsets.get(name, 0.0))
        if any(True for axis in axes for _ in frames_of(axis)):
            tensor = _out_of_frames(symmetry, params, name, tensor, stuck)
        found[name] = tensor
    return found


def _out_of_frames(
    symmetry: ParameterSymmetry, params: Params, name: str, tensor: Tensor, stuck: Collection[str]
) -> Tensor:
    made = tensor.clone(memory_format=torch.contiguous_format)
    for block in symmetry.blocks[name]:
        view = block.view(made)
        for leg in block.legs:
            if leg.frame and leg.space not in stuck:
                view.copy_(unframed(view, leg, frame_of(leg, params, view, view.dtype)))
    return made


def zero_gains(symmetry: ParameterSymmetry, params: Params) -> dict[str, str]:
    """The spaces that cannot act, because a gain of their frames has a zero or is no vector."""
    found: dict[str, str] = {}
    for space in symmetry.spaces:
        for item in {item for leg in symmetry.legs(space) for item in leg.frame}:
            gain = params[item.parameter] + item.offset
            axes = symmetry.signature.get(item.parameter, ())
            vector = len(axes) == 1 and isinstance(axes[0], Carried | Fixed)
            if bool((gain == 0).any()) or not vector:
                found[space] = item.parameter
    return found

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
from typing import TypeGuard

import torch
from torch import Tensor

from paramsym.geometry.pair import is_order
from paramsym.structure.axes import (
    AxisType,
    Carried,
    Fixed,
    Piecewise,
    Product,
    Sum,
    carried,
    frames_of,
    powers_of,
    with_inside,
)
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
    if isinstance(axis, Sum | Piecewise):
        return with_inside(axis, lambda part: _typed(symmetry, part, stuck))
    factors = axis.factors if isinstance(axis, Product) else (axis,)
    framed = next((f for f in factors if _is_framed(f, stuck)), None)
    if framed is not None:
        return _taken_out(symmetry, factors, _charges(symmetry, framed))
    return with_inside(axis, lambda part: _typed(symmetry, part, stuck))


def _taken_out(
    symmetry: ParameterSymmetry, factors: tuple[AxisType, ...], charges: dict[str, Fraction]
) -> AxisType:
    """An axis without its frame, which the scales of its gains move to these powers."""
    parts = [_lessened(symmetry, part, charges) for part in factors]
    parts += [carried(name, -charge) for name, charge in charges.items() if charge]
    parts = [part for part in parts if part != Fixed(1)]
    return parts[0] if len(parts) == 1 else Product(tuple(parts))


def _is_framed(part: AxisType, stuck: Collection[str]) -> TypeGuard[Carried]:
    """Whether a part of an axis acts in a frame that is taken away."""
    return isinstance(part, Carried) and bool(part.frame) and part.factors[0][0] not in stuck


def _charges(symmetry: ParameterSymmetry, item: Carried) -> dict[str, Fraction]:
    """To which power the scales of its gains move a frame, seen from its axis."""
    sign = -1 if item.factors[0][1] < 0 else 1
    charges: dict[str, Fraction] = {}
    for frame in item.frame:
        for axis in symmetry.signature.get(frame.parameter, ()):
            for name, power in powers_of(axis):
                if not is_order(symmetry.spaces[name]):
                    own = sign * Fraction(frame.exponent) * power
                    charges[name] = charges.get(name, Fraction(0)) + own
    return charges


def _lessened(
    symmetry: ParameterSymmetry, part: AxisType, charges: dict[str, Fraction]
) -> AxisType:
    """A part of an axis without what the frame carries of it; what has been used is taken out."""
    if not isinstance(part, Carried):
        return part
    factors = []
    for name, power in part.factors:
        power -= charges.pop(name, Fraction(0))
        if power or is_order(symmetry.spaces[name]):
            factors.append((name, power))
    size = part.size(symmetry.sizes)
    if size > 1:  # scales of the same coordinates stand beside a basis, those of units behind it
        for name in [n for n, charge in charges.items() if charge and symmetry.sizes[n] == size]:
            factors.append((name, -charges.pop(name)))
    return Carried(tuple(factors)) if factors else Fixed(size)


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
    """The spaces that cannot act, because a gain of their frames has a zero, with that gain."""
    found: dict[str, str] = {}
    for space in symmetry.spaces:
        for item in {item for leg in symmetry.legs(space) for item in leg.frame}:
            if bool((params[item.parameter] + item.offset == 0).any()):
                found[space] = item.parameter
    return found

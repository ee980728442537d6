"""Readings moved along a symmetry, as the activations of a network move with its parameters."""

from __future__ import annotations

from dataclasses import replace

from paramsym.geometry.reading import Reading
from paramsym.structure.element import GroupElement
from paramsym.structure.feature import Feature
from paramsym.structure.interfaces import act_outputs
from paramsym.structure.shift import Params
from paramsym.structure.symmetry import ParameterSymmetry

_NAME = "reading"


def act_reading(
    symmetry: ParameterSymmetry,
    element: GroupElement,
    reading: Reading,
    params: Params | None = None,
) -> Reading:
    """Move a reading along its symmetry: x ↦ ρ(g) x, sample by sample.

    Shifts are left out: they add what the type does not say.

    Args:
        symmetry: whose spaces the type carries.
        element: what moves the parameters.
        reading: at the parameters before they move.
        params: these parameters, needed where the type moves in the frame of a gain.

    Raises:
        ValueError: the values do not fit the type, the type does not say which copy of a space
            is meant, or as `act_outputs`.
    """
    opened = replace(symmetry, outputs={_NAME: Feature(reading.type)})
    moved = act_outputs(opened, element, {_NAME: reading.values}, params)
    return Reading(reading.type, moved[_NAME])

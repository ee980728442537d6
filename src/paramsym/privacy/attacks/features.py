"""Inputs as rows of features, on the side that is plain and on the side that is sent.

A key acts along one axis of an input, sample by sample and position by position. Against whoever
looks for the key, every position is thus a sample of its own: an image whose channels are mixed
gives as many known pairs as it has pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paramsym.structure.element import GroupElement
from paramsym.structure.feature import Feature
from paramsym.structure.interfaces import Params, act_inputs
from paramsym.structure.symmetry import ParameterSymmetry

_ROUNDINGS = 10.0  # singular values below so many of them, times the longer side, are none


def features_of(inputs: Tensor, feature: Feature | int) -> Tensor:
    """The rows that a key moves one by one: x̃ = A x for each row x.

    Args:
        inputs: a tensor with a feature axis and others, of real numbers.
        feature: the feature that the symmetry names, or its axis alone.

    Returns:
        A tensor of shape (samples, n) in float64, samples and positions in one axis, in the order
        in which they lie in memory.

    Raises:
        ValueError: the inputs have no such axis, or hold integers.
    """
    axis = feature if isinstance(feature, int) else feature.axis
    if not -inputs.dim() <= axis < inputs.dim():
        raise ValueError(
            f"features_of(inputs, feature): inputs of shape {tuple(inputs.shape)} came, and an "
            f"axis {axis} was expected. Pass the inputs in batches, as the model takes them."
        )
    if not inputs.is_floating_point():
        raise ValueError(
            f"features_of(inputs, feature): inputs of {inputs.dtype} came, and real numbers were "
            "expected, which a matrix can mix. Orders of tokens are attacked by other means."
        )
    return inputs.detach().double().movedim(axis, -1).flatten(0, -2)


def map_on_input(
    symmetry: ParameterSymmetry,
    element: GroupElement,
    dimensions: int,
    params: Params | None = None,
) -> Tensor:
    """The matrix A by which an element moves the one freed input, x ↦ A x along its feature axis.

    Read off from unit vectors, whatever the type of the axis: matrices, orders, repeats of them.

    Args:
        symmetry: one that frees one input.
        element: of that symmetry.
        dimensions: how many axes the input has, two at least.
        params: the parameters before they move, where gains serve as frames.

    Returns:
        A tensor of shape (n, n) in float64.

    Raises:
        ValueError: the symmetry frees another number of inputs, or none.
    """
    if len(symmetry.inputs) != 1:
        raise ValueError(
            f"map_on_input(symmetry, element, …): the symmetry frees {len(symmetry.inputs)} "
            f"inputs, {[*symmetry.inputs][:8]}, and one was expected. Look at each by itself with "
            "find_symmetry(…, free_inputs=[name])."
        )
    (feature,) = symmetry.inputs.values()
    size = feature.type.size(symmetry.sizes)
    axis = feature.axis % dimensions
    shape = [1] * dimensions
    shape[0 if axis else 1] = shape[axis] = size
    units = torch.eye(size, dtype=torch.float64).reshape(shape)
    return act_inputs(symmetry, element, units, params).reshape(size, size).T  # units were rows


def pseudo_inverse(matrix: Tensor, precision: torch.dtype = torch.float64) -> Tensor:
    """A⁺, with singular values that are only the rounding of some dtype counted as zero."""
    return torch.linalg.pinv(matrix, rtol=relative_rounding(matrix, precision))


def relative_rounding(matrix: Tensor, precision: torch.dtype) -> float:
    """Up to which share of the largest singular value the others are only rounding."""
    return _ROUNDINGS * max(matrix.shape) * torch.finfo(precision).eps

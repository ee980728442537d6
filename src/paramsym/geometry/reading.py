"""What a space looks like on data: activations that carry it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from paramsym.structure.axes import AxisType


@dataclass(frozen=True)
class Reading:
    """Activations whose feature axis carries spaces, at some place of a network.

    Attributes:
        type: how the feature axis carries spaces.
        values: the activations, of shape (samples, size of the type).
    """

    type: AxisType
    values: Tensor

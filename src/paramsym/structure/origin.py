"""Constants that a model adds to a parameter before using it: the group acts on the sum."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Diagonal:
    """A multiple of the identity: W is used as W + value·I."""

    value: float = 1.0

    def __neg__(self) -> Diagonal:
        return Diagonal(-self.value)


Origin = float | Diagonal  # a number is added to every entry


def added(tensor: torch.Tensor, origin: Origin) -> torch.Tensor:
    """A parameter with a constant added: a number to every entry, or on the diagonal alone."""
    if not isinstance(origin, Diagonal):
        return tensor + origin if origin else tensor
    eye = torch.eye(tensor.shape[-1], dtype=tensor.dtype, device=tensor.device)
    return tensor + origin.value * eye

"""What a method of making members gives: g before the hidden layer, and π behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from paramsym.ensembles.correction import Correction


@dataclass(frozen=True)
class Draw:
    """From what a member is drawn.

    Attributes:
        hidden: H of the fitting batch, (h, k), in double precision.
        function: σ, entry by entry.
        strength: ε ≥ 0.
        generator: for all that is random.
    """

    hidden: Tensor
    function: Callable[[Tensor], Tensor]
    strength: float
    generator: torch.Generator

    @property
    def units(self) -> int:
        """h, the width of the hidden layer."""
        return self.hidden.shape[0]

    def identity(self) -> Tensor:
        """I, (h, h)."""
        return torch.eye(self.units, dtype=self.hidden.dtype, device=self.hidden.device)

    def normal(self, *shape: int) -> Tensor:
        """Independent standard normal numbers, drawn where the generator lives."""
        place, dtype = self.generator.device, self.hidden.dtype
        drawn = torch.randn(*shape, generator=self.generator, dtype=dtype, device=place)
        return drawn.to(self.hidden.device)

    def permutation(self, size: int) -> Tensor:
        """A uniform order of `size` things."""
        place = self.generator.device
        drawn = torch.randperm(size, generator=self.generator, device=place)
        return drawn.to(self.hidden.device)


@dataclass(frozen=True)
class Method:
    """One way to make members; a new one is a new module and a row in `METHODS`.

    Attributes:
        element: g, (h, h), from a draw.
        after: π for that g; a `Correction` where it was fitted.
        fits: whether it is.
    """

    element: Callable[[Draw], Tensor]
    after: Callable[[Tensor, Draw], Correction | Tensor]
    fits: bool = False


def near_identity(draw: Draw) -> Tensor:
    """g = I + εM, the entries of M independent and normal with variance 1 / h.

    The singular values of M then lie in [0, 2] at any width, so that one ε moves narrow and wide
    layers alike.
    """
    size = draw.units
    return draw.identity() + draw.strength * draw.normal(size, size) / size**0.5

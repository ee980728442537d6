"""Networks between their kinks: every ReLU held on the side on which it is.

Where no pre-activation z changes sign, a network of ReLUs is smooth in its parameters. Here each
activation with a kink goes on along the side that is chosen for it, also past the kink,

    z ↦ z or s·z,        s = 0 for ReLU, the slope of a leaky one, −1 for the modulus,

so that a solver of differential equations meets a smooth field, and a sign that no longer fits its
side is an event. Pre-activations are seen as torch functions pass by: modules, functions and
methods alike.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch.overrides import TorchFunctionMode

from paramsym.recording.graph import canonical_name

Bend = Callable[[torch.Tensor, float | torch.Tensor], torch.Tensor]  # (z, slope below zero)


def _relu(bend: Bend, z: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    return bend(z, 0.0)


def _leaky(
    bend: Bend, z: torch.Tensor, negative_slope: float = 0.01, inplace: bool = False
) -> torch.Tensor:
    return bend(z, negative_slope)


def _prelu(bend: Bend, z: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return bend(z, weight if weight.numel() == 1 else weight.view(-1, *[1] * (z.ndim - 2)))


def _modulus(bend: Bend, z: torch.Tensor) -> torch.Tensor:
    return bend(z, -1.0)


def _hardtanh(
    bend: Bend, z: torch.Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> torch.Tensor:
    return min_val + bend(z - min_val, 0.0) - bend(z - max_val, 0.0)


_RULES = {
    "relu": _relu, "leaky_relu": _leaky, "prelu": _prelu, "abs": _modulus, "hardtanh": _hardtanh,
}  # fmt: skip


@lru_cache(maxsize=4096)
def _rule(function: Callable) -> Callable | None:
    return _RULES.get(canonical_name(function))


class Sides(TorchFunctionMode):
    """Runs a block with every kink on a chosen side, and collects the pre-activations.

    Attributes:
        found: the pre-activations of each call, in the order of the calls.
    """

    def __init__(self, sides: torch.Tensor | None = None) -> None:
        """Sides as one vector over all calls, true above zero; None for those of the signs."""
        super().__init__()
        self.sides, self.found, self._seen = sides, [], 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        rule = _rule(func)
        if rule is None or not (args and isinstance(args[0], torch.Tensor)):
            return func(*args, **(kwargs or {}))
        return rule(self._bend, *args, **(kwargs or {}))

    def _bend(self, z: torch.Tensor, slope: float | torch.Tensor) -> torch.Tensor:
        self.found.append(z)
        first, self._seen = self._seen, self._seen + z.numel()
        own = z > 0 if self.sides is None else self.sides[first : self._seen].view(z.shape)
        return torch.where(own, z, slope * z)

    def values(self) -> torch.Tensor:
        """All pre-activations as one vector."""
        return torch.cat([z.reshape(-1) for z in self.found]) if self.found else torch.zeros(0)

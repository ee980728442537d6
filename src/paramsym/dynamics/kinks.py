"""Networks between their kinks: every ReLU held on the side on which it is.

Where no pre-activation z changes sign, a network of ReLUs is smooth in its parameters. Here each
activation with a kink goes on along the side that is chosen for it, also past the kink,

    z ↦ z or s·z,        s = 0 for ReLU, the slope of a leaky one, −1 for the modulus,

so that a solver of differential equations meets a smooth field, and a sign that no longer fits its
side is an event. Pre-activations are seen as torch functions pass by: modules, functions and
methods alike. A maximum is max(x, y) = y + relu(x − y), whose z is x − y.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import torch
from torch.overrides import TorchFunctionMode

from paramsym.recording.graph import canonical_name

Bend = Callable[[torch.Tensor, float | torch.Tensor], torch.Tensor]  # (z, slope below zero)
Sizes = int | Sequence[int]


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


def _maximum(bend: Bend, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return y + bend(x - y, 0.0)


def _minimum(bend: Bend, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x - bend(x - y, 0.0)


def _max_pool(
    axes: int, bend: Bend, x: torch.Tensor, kernel_size: Sizes, stride: Sizes | None = None,
    padding: Sizes = 0, dilation: Sizes = 1, ceil_mode: bool = False, return_indices: bool = False,
) -> torch.Tensor | None:  # fmt: skip
    """The maximum of each window, entry by entry; None where windows reach over the edge."""
    sizes, steps = _each(kernel_size, axes), _each(stride or kernel_size, axes)
    if ceil_mode or return_indices or any(_each(padding, axes)) or {*_each(dilation, axes)} != {1}:
        return None
    windows = x
    for k, (size, step) in enumerate(zip(sizes, steps, strict=True)):
        windows = windows.unfold(x.ndim - axes + k, size, step)
    found, *others = windows.flatten(x.ndim).unbind(-1)
    for other in others:
        found = _maximum(bend, found, other)
    return found


def _each(sizes: Sizes, axes: int) -> list[int]:
    """A size for each axis, of which one may stand for all."""
    given = [sizes] if isinstance(sizes, int) else [*sizes]
    return given * axes if len(given) == 1 else given


_RULES = {
    "relu": _relu, "leaky_relu": _leaky, "prelu": _prelu, "abs": _modulus, "hardtanh": _hardtanh,
    "maximum": _maximum, "minimum": _minimum, "max_pool1d": partial(_max_pool, 1),
    "max_pool2d": partial(_max_pool, 2),
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
        rule = _rule(func) if args and isinstance(args[0], torch.Tensor) else None
        found = None if rule is None else rule(self._bend, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if found is None else found

    def _bend(self, z: torch.Tensor, slope: float | torch.Tensor) -> torch.Tensor:
        self.found.append(z)
        first, self._seen = self._seen, self._seen + z.numel()
        own = z > 0 if self.sides is None else self.sides[first : self._seen].view(z.shape)
        return torch.where(own, z, slope * z)

    def values(self) -> torch.Tensor:
        """All pre-activations as one vector."""
        return torch.cat([z.reshape(-1) for z in self.found]) if self.found else torch.zeros(0)

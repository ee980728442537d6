"""Networks between their kinks: every ReLU held on the side on which it is.

Where no pre-activation z changes sign, a network of ReLUs is smooth in its parameters. Here each
activation with a kink goes on along the side that is chosen for it, also past the kink,

    z ↦ z or s·z,        s = 0 for ReLU, the slope of a leaky one, −1 for the modulus,

so that a solver of differential equations meets a smooth field, and a sign that no longer fits its
side is an event. Pre-activations are seen as torch functions pass by: modules, functions and
methods alike. A maximum of x and y is
the one or the other, with z = x − y, and a clamp is a maximum and a minimum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import torch
from torch.overrides import TorchFunctionMode

from paramsym.recording.graph import canonical_name

Choose = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
Sizes = int | Sequence[int]
Bound = float | torch.Tensor | None


def _relu(choose: Choose, z: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    return choose(z, z, torch.zeros_like(z))


def _leaky(
    choose: Choose, z: torch.Tensor, negative_slope: float = 0.01, inplace: bool = False
) -> torch.Tensor:
    return choose(z, z, negative_slope * z)


def _prelu(choose: Choose, z: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    slope = weight if weight.numel() == 1 else weight.view(-1, *[1] * (z.ndim - 2))
    return choose(z, z, slope * z)


def _modulus(choose: Choose, z: torch.Tensor) -> torch.Tensor:
    return choose(z, z, -z)


def _clamp(
    choose: Choose, z: torch.Tensor, min: Bound = None, max: Bound = None, inplace: bool = False
) -> torch.Tensor:
    found = z if min is None else _maximum(choose, z, torch.as_tensor(min).to(z))
    return found if max is None else _minimum(choose, found, torch.as_tensor(max).to(z))


def _clamp_max(choose: Choose, z: torch.Tensor, max: Bound) -> torch.Tensor:
    return _clamp(choose, z, None, max)


def _hardtanh(
    choose: Choose, z: torch.Tensor, min_val: float = -1.0, max_val: float = 1.0,
    inplace: bool = False,
) -> torch.Tensor:  # fmt: skip
    return _clamp(choose, z, min_val, max_val)


def _relu6(choose: Choose, z: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    return _clamp(choose, z, 0.0, 6.0)


def _softshrink(choose: Choose, z: torch.Tensor, lambd: float = 0.5) -> torch.Tensor:
    return z - _clamp(choose, z, -lambd, lambd)


def _hardsigmoid(choose: Choose, z: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    return _clamp(choose, z / 6 + 0.5, 0.0, 1.0)


def _hardswish(choose: Choose, z: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    return z * _hardsigmoid(choose, z)


def _threshold(
    choose: Choose, z: torch.Tensor, threshold: float, value: float, inplace: bool = False
) -> torch.Tensor | None:
    """Where it is no maximum it jumps, and has no flow."""
    return _clamp(choose, z, threshold) if threshold == value else None


def _maximum(choose: Choose, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return choose(x - y, x, y)


def _minimum(choose: Choose, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return choose(x - y, y, x)


def _largest(choose: Choose, x: torch.Tensor, *args, **kwargs) -> torch.Tensor | None:
    """`max` of two tensors; over axes it is left to the operator."""
    return _maximum(choose, x, *args) if _two(args, kwargs) else None


def _smallest(choose: Choose, x: torch.Tensor, *args, **kwargs) -> torch.Tensor | None:
    return _minimum(choose, x, *args) if _two(args, kwargs) else None


def _two(args: tuple, kwargs: dict) -> bool:
    return len(args) == 1 and isinstance(args[0], torch.Tensor) and not kwargs


def _max_pool(
    axes: int, choose: Choose, x: torch.Tensor, kernel_size: Sizes, stride: Sizes | None = None,
    padding: Sizes = 0, dilation: Sizes = 1, ceil_mode: bool = False, return_indices: bool = False,
) -> torch.Tensor | None:  # fmt: skip
    """The maximum of each window, entry by entry; None for windows that have gaps or are cut."""
    sizes, steps = _each(kernel_size, axes), _each(stride or kernel_size, axes)
    if ceil_mode or return_indices or {*_each(dilation, axes)} != {1}:
        return None
    edges = [edge for size in reversed(_each(padding, axes)) for edge in (size, size)]
    windows = torch.nn.functional.pad(x, edges, value=-torch.inf) if any(edges) else x
    for k, (size, step) in enumerate(zip(sizes, steps, strict=True)):
        windows = windows.unfold(x.ndim - axes + k, size, step)
    found, *others = windows.flatten(x.ndim).unbind(-1)
    for other in others:
        found = _maximum(choose, found, other)
    return found


def _each(sizes: Sizes, axes: int) -> list[int]:
    """A size for each axis, of which one may stand for all."""
    given = [sizes] if isinstance(sizes, int) else [*sizes]
    return given * axes if len(given) == 1 else given


_RULES = {
    "relu": _relu, "leaky_relu": _leaky, "prelu": _prelu, "abs": _modulus, "absolute": _modulus,
    "clamp": _clamp, "clip": _clamp, "clamp_min": _clamp, "clamp_max": _clamp_max,
    "hardtanh": _hardtanh, "relu6": _relu6, "softshrink": _softshrink, "_threshold": _threshold,
    "threshold": _threshold, "hardsigmoid": _hardsigmoid, "hardswish": _hardswish,
    "maximum": _maximum, "minimum": _minimum, "fmax": _maximum, "fmin": _minimum,
    "max": _largest, "min": _smallest, "max_pool1d": partial(_max_pool, 1),
    "max_pool2d": partial(_max_pool, 2), "max_pool3d": partial(_max_pool, 3),
}  # fmt: skip


@lru_cache(maxsize=4096)
def _rule(function: Callable) -> Callable | None:
    return _RULES.get(canonical_name(function))


def _writes(func: Callable, args: tuple, kwargs: dict) -> bool:
    """Whether a function with a rule overwrites its first argument; no other flag is true there."""
    name = getattr(func, "__name__", "")
    return kwargs.get("inplace", args[-1] is True) or name.endswith("_") and name[-2:] != "__"


class Sides(TorchFunctionMode):
    """Runs a block with every kink on a chosen side, and collects the pre-activations.

    What autograd does not follow is left as it is: whole numbers, the inputs, the forward passes of
    functions with a backward of their own. Pre-activations that are not finite, as behind a mask or
    beyond the edge of a pool, stay on their side.

    Attributes:
        found: the pre-activations of each call, in the order of the calls.
    """

    def __init__(self, sides: torch.Tensor | None = None) -> None:
        """Sides as one vector over all calls, true above zero; None for those of the signs."""
        super().__init__()
        self.sides, self.found, self._seen = sides, [], 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        found = self._bent(func, args, kwargs)
        return func(*args, **kwargs) if found is None else found

    def _bent(self, func: Callable, args: tuple, kwargs: dict) -> torch.Tensor | None:
        """What a function with kinks returns, None for others."""
        rule = _rule(func) if args and isinstance(args[0], torch.Tensor) else None
        if rule is None or not args[0].is_floating_point() or "out" in kwargs:
            return None
        if not _writes(func, args, kwargs):
            return rule(self._choose, *args, **kwargs)
        found = rule(self._choose, args[0].clone(), *args[1:], **kwargs)
        return None if found is None else args[0].copy_(found)

    def _choose(self, z: torch.Tensor, above: torch.Tensor, below: torch.Tensor) -> torch.Tensor:
        if not (torch.is_grad_enabled() and z.requires_grad):
            return torch.where(z > 0, above, below)
        self.found.append(z)
        first, self._seen = self._seen, self._seen + z.numel()
        own = z > 0 if self.sides is None else self.sides[first : self._seen].view(z.shape)
        return torch.where(own, above, below)

    def values(self) -> torch.Tensor:
        """All pre-activations as one vector."""
        return torch.cat([z.reshape(-1) for z in self.found]) if self.found else torch.zeros(0)

    def margins(self) -> torch.Tensor:
        """By how much each keeps its side, relative to the sizes of itself and of its call."""
        if not self.found or self.sides is None:
            return torch.zeros(0)
        sizes = [z.detach().reshape(-1).abs() for z in self.found]
        typical = torch.cat([_typical(size).expand_as(size) for size in sizes])
        z = self.values().detach()
        z = torch.where(self.sides, z, -z) / (1 + typical + z.abs())
        return z.where(z.isfinite(), 1.0)


def _typical(sizes: torch.Tensor) -> torch.Tensor:
    """The median of the finite ones, which entries behind a mask do not move."""
    finite = sizes[sizes.isfinite()]
    return finite.median() if len(finite) else sizes.new_zeros(())

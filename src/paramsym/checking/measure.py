"""How much a function changes, slice by slice.

    error = maxᵢ |zᵢ − yᵢ| / sᵢ,    sᵢ = min over the axes a of  max { |yⱼ| : jₐ = iₐ }

An entry counts against the largest numbers of the slices through it, and of these against the
least: an output column of size 1e13 does not stand for its neighbours. Where a whole slice is small
by cancellation, rounding is all that it shows; its size is then at least what a relative unit of
all parameters would do to it. Rounding is coarse: an entry may be zero, or stay, by chance, so that
it counts as all those do that are as small and that a little more than rounding turns over. That
costs another forward pass, so whoever measures often asks for it only after an error without it,
which is never below the error with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from paramsym.checking.generic_weights import unit

_ROUNDINGS = 64  # how far parameters are nudged, in roundings of their dtype
SMALL = 1e-9  # of the largest output of a call: what may be the rounding of larger numbers
NUDGES = 3  # rounding comes in steps, and may come out alike once or twice
_TURNED = 4  # what rounding moves by a quarter is rounding
_COARSEST = 1 / 16  # and at most: in half precision 64 roundings are no small change


def step_of(dtype: torch.dtype) -> float:
    """The relative displacement of parameters that shows how sensitive outputs are to them."""
    return min(_ROUNDINGS * torch.finfo(dtype).eps, _COARSEST)


def nudged(
    x: torch.Tensor, draw: Callable[[torch.Tensor], torch.Tensor], step: float
) -> torch.Tensor:
    """A parameter displaced by a relative `step`; one that is zero by what is usual for its shape.

    `draw` gives normal numbers of its shape, which are used up. Integers stay.
    """
    if not (x.is_floating_point() or x.is_complex()):
        return x
    if x.numel() and not bool((x != 0).any()):
        return draw(x).mul_(step * unit(tuple(x.shape)))
    return draw(x).mul_(step).add_(1).mul_(x)  # what is infinite stays infinite


def size_of(y: torch.Tensor) -> torch.Tensor:
    """The modulus of the finite entries, and zero for the others."""
    return torch.where(y.isfinite(), y, 0).abs()


def slicewise(sizes: torch.Tensor) -> torch.Tensor:
    """Of the slices through each entry, along every axis, the least of their largest numbers."""
    scale = sizes.max() if sizes.numel() else sizes
    for axis in range(sizes.ndim):
        if sizes.numel():
            others = [k for k in range(sizes.ndim) if k != axis]
            scale = torch.minimum(scale, sizes.amax(others, keepdim=True) if others else sizes)
    return scale.expand(sizes.shape)


def around(y: torch.Tensor, others: Sequence[torch.Tensor] = (), step: float = 1.0) -> torch.Tensor:
    """The size of the outputs around each entry, as `scale_of` takes it; one where they vanish."""
    sizes = scale_of(y, others, step)
    return torch.where(sizes > 0, sizes, 1.0)


def scale_of(
    y: torch.Tensor, others: Sequence[torch.Tensor] = (), step: float = 1.0
) -> torch.Tensor:
    """For one output, what a change of an entry counts against.

    Args:
        y: the output.
        others: the same at nudged parameters, once or several times; its largest difference from
            y, divided by `step`, is a size as well.
        step: by how much they were nudged; see `step_of`.
    """
    sizes = size_of(_wide(y))
    moves = [size_of(_wide(other) - _wide(y)) for other in others if other.shape == y.shape]
    if moves and y.numel():
        moved = torch.stack(moves).amax(0)
        noise = torch.where(_TURNED * moved >= sizes, moved, 0).max()
        moved = torch.where(sizes <= noise, moved.clamp_min(noise), moved)
        sizes = torch.maximum(sizes, moved / step)
    return slicewise(sizes)


def change(before: torch.Tensor, after: torch.Tensor, scale: torch.Tensor) -> float:
    """The largest change of an entry of one output against its scale.

    Infinite where the shape differs, or where one of the two has a finite number and the other
    has not.
    """
    if before.shape != after.shape or not torch.equal(before.isfinite(), after.isfinite()):
        return math.inf
    if not before.numel():
        return 0.0
    moved = torch.where(before.isfinite(), _wide(after) - _wide(before), 0).abs()
    return float((moved / scale.clamp_min(torch.finfo(scale.dtype).tiny)).max())


def _wide(y: torch.Tensor) -> torch.Tensor:
    """Numbers whose differences and quotients fit into their dtype, as those of halves do not."""
    return y.to(torch.promote_types(y.dtype, torch.float32))

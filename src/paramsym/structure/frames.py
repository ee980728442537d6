"""The diagonal matrices in whose coordinates a change of basis acts."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from paramsym.algebra.following import is_transformed
from paramsym.structure.axes import Frame
from paramsym.structure.walk import Leg
from paramsym.structure.whole import whole


def frame_of(
    leg: Leg, params: Mapping[str, torch.Tensor], x: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """The product f of the gains of a leg, shaped to multiply a block along the axis of the leg.

    Args:
        leg: one with a frame.
        params: the parameters that hold the gains.
        x: the block.
        dtype: in which f is computed.

    Raises:
        ValueError: a gain has a zero.
    """
    return along(leg, gains_of(leg, params, dtype, x.device), x.ndim)


def along(leg: Leg, gain: torch.Tensor, ndim: int) -> torch.Tensor:
    """The gains of a leg, shaped to multiply a block with that many axes."""
    return gain.reshape(-1, *[1] * (ndim - leg.axis - 1))


def gains_of(
    leg: Leg, params: Mapping[str, torch.Tensor], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """The product of the gains of a leg, one after another; raises as `frame_of`."""
    gain = torch.ones((), dtype=dtype, device=device)
    for item in leg.frame:
        gain = gain * _factor(item, params, gain) ** item.exponent
    hidden = is_transformed(gain) or gain.is_meta
    if not hidden and bool(((gain == 0) | ~gain.isfinite()).any()):
        raise ValueError(_refusal(leg, params, gain))
    return gain.reshape(-1)


def _factor(item: Frame, params: Mapping[str, torch.Tensor], gain: torch.Tensor) -> torch.Tensor:
    return (whole(params[item.parameter]).to(gain) + item.offset).reshape(-1)


def _refusal(leg: Leg, params: Mapping[str, torch.Tensor], gain: torch.Tensor) -> str:
    """Which gain it is, and what to do."""
    zeros = {item.parameter: int((_factor(item, params, gain) == 0).sum()) for item in leg.frame}
    name = max(zeros, key=lambda name: zeros[name])
    count = zeros[name]
    what = f"has {count} zero{'s' * (count != 1)}" if count else "is not finite, or too near zero"
    return (
        f"act: the gain {name!r} {what}, so that {leg.space!r} cannot be moved in its frame. "
        "Non-zero gains were expected. Derive the symmetry at these weights, find_symmetry(model, "
        "…) on real tensors, where a gain with zeros is no frame; or hold that space still (sample "
        "with only=…), or prune the unit."
    )


def unframed(x: torch.Tensor, leg: Leg, frame: torch.Tensor) -> torch.Tensor:
    """A block in the coordinates in which its leg acts; on a dual axis frames are inverse."""
    return x * frame if leg.is_dual else x / frame


def framed(x: torch.Tensor, leg: Leg, frame: torch.Tensor) -> torch.Tensor:
    """A block back from the coordinates of `unframed`."""
    return x / frame if leg.is_dual else x * frame

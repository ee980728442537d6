"""Generic weights and buffers for a model, by shape: numbers at which no two things are alike.

The user's weights are not read. They may be fresh (all gains one, all biases zero), trained into a
corner, in half precision or not loaded at all, and a claim that holds there need not hold
elsewhere. Matrices get unit gain; vectors, which may be divided by as gains, keep away from zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from paramsym.recording.record import persistent_buffers
from paramsym.structure.layout import laid_like
from paramsym.structure.origin import Origin, added

SPREAD = 0.3  # of the entries of a vector around ±1
# Normal numbers that large tensors are cut from. A prime, so that no two rows of a matrix are
# copies of one another, whatever its width.
_POOL = 1_000_003


class Source:
    """Normal numbers, drawn one by one for small tensors and cut from a pool for large models."""

    def __init__(self, generator: torch.Generator, dtype: torch.dtype, pooled: bool):
        self.generator, self.dtype = generator, dtype
        self.pool = self._draw(_POOL) if pooled else None

    def normal(self, shape: tuple[int, ...], scale: float = 1.0) -> torch.Tensor:
        """Normal numbers of standard deviation `scale`."""
        if self.pool is None:
            return self._draw(math.prod(shape)).mul_(scale).reshape(shape)
        made = torch.empty(shape, dtype=self.dtype)
        flat = made.view(-1)
        start = int(torch.randint(len(self.pool), (), generator=self.generator))
        done = 0
        while done < len(flat):
            piece = self.pool[start : start + len(flat) - done]
            torch.mul(piece, scale, out=flat[done : done + len(piece)])
            done, start = done + len(piece), 0
        return made

    def _draw(self, count: int) -> torch.Tensor:
        return torch.randn(count, generator=self.generator, dtype=self.dtype)


def unit(shape: tuple[int, ...]) -> float:
    """The size of an entry: 1 in a vector, and in a matrix such that its gain is one."""
    wide = [n for n in shape if n != 1]
    return 1.0 if len(wide) < 2 else max(1, math.prod(wide[1:])) ** -0.5


def generic_state(
    model: torch.nn.Module,
    offsets: Mapping[str, Origin],
    source: Source,
    positive: bool = False,
) -> dict[str, torch.Tensor]:
    """Generic parameters and buffers of a model, ties once, on the devices where its own are.

    Integers, booleans, masks (two values, or infinite ones) and buffers that are not in the state
    dict are kept: the derivation reads them, or indices and patterns would be lost. Single numbers
    (a temperature) stay near the user's. Buffers that are positive throughout stay positive.

    Args:
        model: only read; half precision and float32 are replaced by the dtype of the source.
        offsets: constants that the model adds to a parameter: the sum is drawn like a vector.
        source: where the numbers come from.
        positive: draw vectors of positive numbers only, for models that take roots of them.
    """
    state = {
        name: laid_like(_drawn(tensor, source, offsets.get(name, 0.0), positive), tensor)
        for name, tensor in model.named_parameters()
    }
    own = persistent_buffers(model)
    for name, tensor in model.named_buffers():
        kept = name not in own or _is_pattern(tensor)
        positive_one = not kept and not tensor.is_complex() and bool((tensor > 0).all())
        if kept:
            state[name] = _widened(tensor.detach().clone(), source.dtype)
        elif positive_one and tensor.numel() > 1:
            noise = torch.rand(tensor.shape, generator=source.generator, dtype=source.dtype)
            state[name] = laid_like(0.5 + noise, tensor)
        else:
            state[name] = laid_like(_drawn(tensor, source, 0.0, positive), tensor)
    return state


def _drawn(tensor: torch.Tensor, source: Source, offset: Origin, positive: bool) -> torch.Tensor:
    shape = tuple(tensor.shape)
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor.detach().clone()
    if tensor.is_complex():
        return torch.complex(source.normal(shape, unit(shape)), source.normal(shape, unit(shape)))
    if sum(n != 1 for n in shape) >= 2:
        made = source.normal(shape, unit(shape))
    else:
        drawn = source.normal(shape)
        size = (1 - SPREAD + SPREAD * drawn.abs()).clamp_(max=1 + 2 * SPREAD)
        if tensor.numel() == 1:  # near the user's, whatever is added to it
            return size * _number(tensor) if _number(tensor) else SPREAD * drawn
        made = size if positive else size.copysign(drawn)
    return added(made, -offset)


def _number(tensor: torch.Tensor) -> float:
    value = float(tensor.detach())
    return value if math.isfinite(value) else 1.0


def _is_pattern(tensor: torch.Tensor) -> bool:
    """Whether a buffer carries indices, a mask or a pattern rather than numbers."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    if not bool(tensor.isfinite().all()):
        return True
    return tensor.ndim > 1 and len(tensor.unique()) == 2


def _widened(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if tensor.is_complex():
        return tensor.to(dtype.to_complex())
    return tensor.to(dtype) if tensor.is_floating_point() else tensor

"""The layout of tensors in memory: a model may read it, so that a moved tensor lies as before."""

from __future__ import annotations

import torch

from paramsym.algebra.following import is_transformed

_LOW = (torch.bfloat16, torch.float16)


def working_dtype(tensor: torch.Tensor) -> torch.dtype:
    """The dtype in which a tensor is moved: its own, or float32 for half precision."""
    return working_dtype_of(tensor.dtype)


def working_dtype_of(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a tensor of this one is moved."""
    return torch.float32 if dtype in _LOW else dtype


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in double precision, real or complex; integers as they are."""
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor


def laid_like(made: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on the device and, where it is dense, with the strides of another of its shape."""
    made = made.to(tensor.device)
    if made.stride() == tensor.stride() and not is_transformed(made):
        return made
    if tensor.is_contiguous():
        return made.contiguous()
    order = sorted(range(tensor.ndim), key=lambda k: -tensor.stride(k))
    back = sorted(range(tensor.ndim), key=order.__getitem__)
    return made.permute(order).clone(memory_format=torch.contiguous_format).permute(back)

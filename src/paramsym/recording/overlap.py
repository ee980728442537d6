"""Parameters and buffers that share memory without being one tensor: none of them can move.

A move writes each tensor by itself; where two overlap, the second write spoils the first. The same
holds for one tensor whose own entries overlap (an expanded parameter). A tensor under several
names is tied and no matter of this module.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch._subclasses.fake_tensor import FakeTensor

_EXACT = 1 << 22  # spans up to this many bytes are compared entry by entry


def overlapping(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Why a tensor must be held fixed, by name, for all that share memory with another tensor.

    Args:
        tensors: one name per tensor; meta tensors overlap if they share a storage.
    """
    held: dict[str, str] = {}
    extents = []
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided or not tensor.numel():
            continue
        if _overlaps_itself(tensor):
            held[name] = f"entries of {name!r} share memory with each other"
        extents.append((*_extent(tensor), name))
    extents.sort()
    open_: list[tuple[int, str]] = []
    place = None
    for memory, start, stop, name in extents:
        open_ = [(end, other) for end, other in open_ if memory == place and end > start]
        place = memory
        for _, other in open_:
            if _meet(tensors[other], tensors[name]):
                for a, b in ((other, name), (name, other)):
                    held.setdefault(a, f"{a!r} shares memory with {b!r} and is another tensor")
        open_.append((stop, name))
    return held


def _extent(tensor: torch.Tensor) -> tuple[tuple[str, int], int, int]:
    """(address space, first byte, end); a storage without memory is a space of its own."""
    size = tensor.element_size()
    if tensor.device.type == "meta" or isinstance(tensor, FakeTensor):
        memory = ("meta", tensor.untyped_storage()._cdata)
        start = int(tensor.storage_offset()) * size
    else:
        memory, start = (str(tensor.device), 0), int(tensor.data_ptr())
    return memory, start, start + _span(tensor) * size


def _span(tensor: torch.Tensor) -> int:
    return 1 + sum(
        (int(n) - 1) * int(s) for n, s in zip(tensor.shape, tensor.stride(), strict=True)
    )


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether one place of the memory belongs to several entries."""
    reach = 1
    for stride, n in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if n > 1 and stride < reach:
            if stride == 0 or _span(tensor) > _EXACT:
                return True
            return len(_places(tensor, 0).unique()) < tensor.numel()
        reach += (n - 1) * stride
    return False


def _places(tensor: torch.Tensor, start: int) -> torch.Tensor:
    """The first byte of every entry, counted from `start`."""
    where = torch.full((), start, dtype=torch.int64)
    size = tensor.element_size()
    for n, stride in zip(tensor.shape, tensor.stride(), strict=True):
        where = where[..., None] + torch.arange(n) * (stride * size)
    return where.reshape(-1)


def _meet(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors with overlapping extents have an entry in common.

    Tensors of different types, or too large to be compared, are taken to have one.
    """
    (_, first, end), (_, second, stop) = _extent(a), _extent(b)
    if max(end, stop) - min(first, second) > _EXACT:
        return True
    if a.dtype != b.dtype:
        return True
    size = a.element_size()
    base = min(first, second)
    taken = torch.zeros(max(end, stop) - base + size, dtype=torch.bool)
    for shift in range(size):
        taken[_places(a, first - base) + shift] = True
    return any(bool(taken[_places(b, second - base) + shift].any()) for shift in range(size))

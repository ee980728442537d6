"""Whether all ranks move their slices by one and the same element."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import torch

from paramsym.structure.element import GroupElement, Slide
from paramsym.structure.membership import tensors_of
from paramsym.structure.whole import is_sharded


def require_agreed(element: GroupElement, tensors: Mapping[str, Any]) -> None:
    """Raise a `ValueError`, on every rank, if the ranks of a mesh hold different elements.

    Each rank moves the whole of a tensor and keeps its slice; slices that were moved by different
    elements are no tensor of the same function, and nothing would show it. Nothing is asked where
    no tensor is a `DTensor`.
    """
    meshes = dict.fromkeys(t.device_mesh for t in tensors.values() if is_sharded(t))
    if not meshes:
        return
    mine = torch.frombuffer(bytearray(digest(element)), dtype=torch.uint8).int()
    if not all(_is_same(mine, mesh) for mesh in meshes):
        raise ValueError(
            "act(symmetry, element, params): the parameters are DTensors, and the ranks of their "
            "mesh hold different elements. One element was expected on all ranks, or each would "
            "keep a slice of other parameters. Sample it on every rank with a torch.Generator of "
            "one seed, on the CPU, or save it on one rank and load it on all."
        )


def digest(element: GroupElement) -> bytes:
    """A hash (SHA-256) of what an element does: its parts in their order, bit by bit."""
    found = sha256()
    for part in element.parts:
        if isinstance(part, Slide):
            named = {f"{part.shift} {part.inverse}": [("offset", part.offset)]}
        else:
            named = {name: tensors_of(part[name]) for name in sorted(part)}
        found.update(b"part")
        for name, tensors in named.items():
            _enter(found, name, tensors)
    return found.digest()


def _enter(found: Any, name: str, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    for field, tensor in tensors:
        found.update(f"{name}\0{field}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        plain = real.detach().cpu().contiguous()
        found.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())


def _is_same(mine: torch.Tensor, mesh: Any) -> bool:
    """Whether all ranks of a mesh have one vector of integers; they all get the same answer.

    The least and the largest are found along one dimension of the mesh after the other.
    """
    import torch.distributed as dist

    least = mine.to(mesh.device_type)
    most = least.clone()
    for k in range(mesh.ndim):
        dist.all_reduce(least, dist.ReduceOp.MIN, group=mesh.get_group(k))
        dist.all_reduce(most, dist.ReduceOp.MAX, group=mesh.get_group(k))
    return bool(torch.equal(least, most))

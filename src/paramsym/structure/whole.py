"""Tensors that are spread over many processes: gathered to be read, and placed as before.

A `DTensor` (FSDP2, tensor parallel) knows the shape of the whole of which each rank holds a slice.
A group acts on whole axes: its order sends rows to other ranks, a change of basis mixes them. What
acts is therefore applied to the whole tensor, by every rank alike, one tensor at a time, and each
keeps its slice of the result. A bare slice knows nothing of the whole, and is refused by its shape.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch


def is_sharded(tensor: Any) -> bool:
    """Whether a tensor is a `DTensor`, whatever its placements."""
    # torch.distributed.tensor is slow to import, and no DTensor comes from where it was not
    distributed = sys.modules.get("torch.distributed.tensor")
    return distributed is not None and isinstance(tensor, distributed.DTensor)


def any_sharded(tensors: Iterable[Any]) -> bool:
    """Whether some tensor is a `DTensor`."""
    return "torch.distributed.tensor" in sys.modules and any(map(is_sharded, tensors))


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with all its entries on this rank: gathered, which every rank must ask for at once;
    one that is not spread is itself."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # pyright: ignore


def placed_like(made: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A whole tensor that every rank has, on the mesh and with the placements of another.

    Each rank cuts its own slice, uneven ones too: nothing is sent. A sum that is spread over ranks
    (`Partial`) becomes the same number on each of them.
    """
    if not is_sharded(like):
        return made
    from torch.distributed.tensor import DTensor, Replicate

    mesh = like.device_mesh  # pyright: ignore
    placements = [Replicate() if p.is_partial() else p for p in like.placements]  # pyright: ignore
    start = DTensor.from_local(made, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return start.redistribute(mesh, placements)


def placed_alike(made: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor placed as another of its shape; itself if it is already, or if it is not spread."""
    if not (is_sharded(made) and is_sharded(like)):
        return made
    same = made.device_mesh == like.device_mesh and made.placements == like.placements  # pyright: ignore
    return made if same else placed_like(whole(made), like)


def own_slice(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor; of a sum that is spread over ranks, the sum."""
    if not is_sharded(tensor):
        return tensor
    spread: Any = tensor
    summed = any(p.is_partial() for p in spread.placements)
    return (placed_like(whole(spread), spread) if summed else spread).to_local()  # pyright: ignore


def of_all_ranks(
    few: Mapping[str, torch.Tensor], like: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Vectors that every rank of a mesh has, of one length: those of all ranks end to end, on each.

    They are sent together, by the meshes of the tensors of the same names. What belongs to a tensor
    that is not spread stays as it is.
    """
    found, meshes = dict(few), dict[tuple[Any, torch.dtype], list[str]]()
    for name, vector in few.items():
        if is_sharded(like[name]):
            mesh: Any = like[name].device_mesh  # pyright: ignore
            meshes.setdefault((mesh, vector.dtype), []).append(name)
    for (mesh, _), names in meshes.items():
        from torch.distributed.tensor import DTensor, Shard

        mine = torch.cat([few[n] for n in names])[None]  # (1, entries)
        rows = DTensor.from_local(mine, mesh, [Shard(0)] * mesh.ndim, run_check=False)
        parts = rows.full_tensor().split([len(few[n]) for n in names], dim=1)
        found |= {n: part.reshape(-1) for n, part in zip(names, parts, strict=True)}
    return found

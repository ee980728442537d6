"""Reading weights: one tensor after the other, from safetensors or from tensors-only archives."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from paramsym.arguments import checked
from paramsym.checkpoints.errors import CheckpointError, few, first_line
from paramsym.checkpoints.nested import no_state_dict
from paramsym.formats.archive import NoArchive, check_unpacked
from paramsym.formats.header import once
from paramsym.formats.weights import read_safetensors, tensor_names

INDEX = ".safetensors.index.json"


@checked
def read_tensors(path: str | Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and tensors of a weights file, one after the other.

    Args:
        path: a `.safetensors` file, the index of a sharded one (`….safetensors.index.json`), or
            a file that `torch.save` wrote from a `state_dict()`. The latter is opened with
            `weights_only=True`; an archive with other objects in it is refused.

    Raises:
        CheckpointError: the file is missing, cut short, a pickle of other objects, or holds
            tensors that are not contiguous or overlap in part.
    """
    path = require_file(Path(path))
    if path.name.endswith(INDEX):
        yield from _read_index(path)
    elif path.suffix == ".safetensors":
        yield from read_safetensors(path)
    else:
        yield from _read_archive(path).items()


def names_of(path: Path) -> list[str]:
    """The names of the tensors in a weights file, without reading them where that is possible."""
    if path.name.endswith(INDEX):
        return list(read_index(path))
    if path.suffix == ".safetensors":
        return tensor_names(path)
    return list(_read_archive(path))


def require_file(
    path: Path, expected: str = "a weights file (.safetensors, its index, or .pt)"
) -> Path:
    """The path, if there is a file."""
    try:
        if path.is_file():
            return path
        came = "is a folder" if path.is_dir() else "there is no such file"
    except OSError as error:  # a name that is too long, a folder that may not be entered
        came = f"it cannot be looked at ({error.strerror})"
    raise CheckpointError(
        str(path), came, expected,
        "Check the spelling and the folder that the command runs in",
    )  # fmt: skip


# -- safetensors -------------------------------------------------------------------------------


def read_index(path: Path) -> dict[str, str]:
    """Name of tensor → name of the file that holds it, from the index of a sharded checkpoint."""
    try:
        text = path.read_text(encoding="utf-8")
    except ValueError as error:
        raise _no_index(str(path), error) from error
    return index_of(parsed_index(text, str(path)), str(path))


def parsed_index(text: str, where: str) -> Any:
    """What stands in an index."""
    try:
        return json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise _no_index(where, error) from error


def index_of(said: Any, where: str) -> dict[str, str]:
    """Name of tensor → name of its file, from what stands in an index."""
    try:
        table = said["weight_map"]
        if not isinstance(table, Mapping):
            raise KeyError("weight_map")
        if not table:
            raise KeyError("weight_map names no tensor")
        if wrong := [name for name, file in table.items() if not isinstance(file, str)]:
            raise TypeError(f"the file of {wrong[0]!r} is no text")
    except (KeyError, TypeError) as error:
        raise _no_index(where, error) from error
    outside = sorted({f for f in table.values() if Path(f).name != f or "\0" in f})
    if outside:
        raise CheckpointError(
            where, f"it names files in other folders: {few(outside)}",
            "files beside the index", "Put all shards into one folder",
        )  # fmt: skip
    return dict(table)


def _no_index(where: str, error: Exception) -> CheckpointError:
    return CheckpointError(
        where, f"the index cannot be read ({first_line(error)})",
        "JSON with a 'weight_map' from tensors to files",
        "Copy the index again, or write the checkpoint anew with save_pretrained",
    )  # fmt: skip


def _read_index(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    table = read_index(path)
    for shard in dict.fromkeys(table.values()):
        wanted = {name for name, file in table.items() if file == shard}
        found = set()
        for name, tensor in read_safetensors(require_file(path.parent / shard)):
            if name in wanted:
                found.add(name)
                yield name, tensor
        if wanted - found:
            raise CheckpointError(
                str(path.parent / shard), f"{few(sorted(wanted - found))} not in it",
                "every tensor that the index names", "Copy the shards and the index again",
            )  # fmt: skip


# -- archives of torch.save --------------------------------------------------------------------


def load_archive(path: Path) -> Any:
    """What `torch.save` wrote, if there is nothing in it but tensors and plain data."""
    try:
        check_unpacked(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except NoArchive as error:
        raise CheckpointError(
            str(path), f"{error}", "a file that torch.save wrote, which compresses nothing",
            "Save it anew with torch.save or safetensors.torch.save_file",
        ) from error  # fmt: skip
    except Exception as error:
        text = str(error)
        if "weights_only" in text or "Weights only" in text or "pickle" in text.lower():
            raise CheckpointError(
                str(path), "the file is a pickle with more in it than tensors",
                "tensors only: safetensors, or torch.save(model.state_dict(), …)",
                "Unpickling runs code of whoever wrote the file, so it is never done here. Where "
                "you trust the file, load it yourself and save model.state_dict()",
            ) from error  # fmt: skip
        raise CheckpointError(
            str(path), f"the file cannot be read ({first_line(error)})",
            "a complete file that torch.save wrote, or safetensors",
            "Copy the file again, or save it anew with safetensors.torch.save_file",
        ) from error  # fmt: skip


def _read_archive(path: Path) -> dict[str, torch.Tensor]:
    loaded = load_archive(path)
    if not isinstance(loaded, Mapping) or not all(
        isinstance(value, torch.Tensor) for value in loaded.values()
    ):
        raise no_state_dict(loaded, str(path))
    tensors = {str(k): v.detach() for k, v in loaded.items()}
    check_layout(tensors, str(path))
    return tensors


# -- checks ------------------------------------------------------------------------------------


def check_layout(tensors: Mapping[str, torch.Tensor], where: str) -> None:
    """Refuse tensors that are not contiguous, or that overlap in part.

    Several names for one whole tensor pass: whether they are tied is for the model to say.
    """
    instead = "Save {name: tensor.clone().contiguous()} for each of them"
    for name, tensor in tensors.items():
        check_kind(name, tensor, where)
        if tensor.layout != torch.strided or not tensor.is_contiguous():
            raise CheckpointError(
                where,
                f"{name!r} is not contiguous (shape {tuple(tensor.shape)}, "
                f"strides {tuple(tensor.stride()) if tensor.layout == torch.strided else '-'})",
                "dense tensors in row-major order",
                instead,
            )
    for names in shared_storage(tensors):
        if len({_window(tensors[name]) for name in names}) > 1:
            raise CheckpointError(
                where, f"{few(names)} share storage but are different parts of it",
                "tensors that own their numbers", instead,
            )  # fmt: skip


def check_kind(name: str, tensor: torch.Tensor, where: str) -> None:
    """Refuse a tensor that is no plain array of numbers in which PyTorch can compute."""
    if isinstance(tensor, (UninitializedParameter, UninitializedBuffer)):
        came, instead = "has no size yet (a lazy module)", "Call the model once on example inputs"
    elif tensor.is_quantized:
        came, instead = "is quantised", "Give the weights before quantisation, or dequantise them"
    elif tensor.is_nested:
        came, instead = "is a nested tensor", "Save its parts one by one"
    elif tensor.is_floating_point() and tensor.element_size() < 2:
        came = f"has the dtype {str(tensor.dtype).removeprefix('torch.')}"
        instead = "Multiply it by its scales and save it in bfloat16 or float32"
    else:
        return
    raise CheckpointError(where, f"{name!r} {came}", "an array of numbers to compute with", instead)


def shared_storage(tensors: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """Groups of names whose tensors overlap in memory."""
    owners: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.device.type != "meta" and tensor.numel():
            owners.setdefault(tensor.untyped_storage().data_ptr(), []).append(name)
    groups: list[list[str]] = []
    for names in owners.values():
        names = sorted(names, key=lambda n: tensors[n].storage_offset())
        reach = -1
        for name in names:
            start, end = _extent(tensors[name])
            if start < reach:
                groups[-1].append(name)
            else:
                groups.append([name])
            reach = max(reach, end)
    return [group for group in groups if len(group) > 1]


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes that a tensor uses in its storage."""
    last = sum(int((n - 1) * s) for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    size, start = tensor.element_size(), int(tensor.storage_offset())
    return start * size, (start + last + 1) * size


def _window(tensor: torch.Tensor) -> tuple:
    return (tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset())


def check_finite(tensors: Mapping[str, torch.Tensor], where: str, masks: set[str]) -> None:
    """Refuse NaN, and infinities except in `masks`: buffers, where they may be meant."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() and not tensor.is_complex():
            continue
        wide = tensor if tensor.element_size() > 1 else tensor.float()
        bad = wide.isnan() if name in masks else ~wide.isfinite()
        if bad.any():
            place = tuple(int(i) for i in bad.nonzero()[0])
            value = wide[place].item() if place else wide.item()
            raise CheckpointError(
                where,
                f"{name!r} holds {value} at {list(place)} ({int(bad.sum())} of "
                f"{tensor.numel()} entries are NaN or infinite)",
                "finite weights",
                "Take an earlier checkpoint, or repair the tensor; nothing can be verified with it",
            )


def overflowed(where: str, name: str, moved: torch.Tensor) -> CheckpointError:
    """What is wrong with an element that makes a finite tensor infinite."""
    kind = str(moved.dtype).removeprefix("torch.")
    return CheckpointError(
        where, f"{name!r} is finite, and the move makes it overflow {kind}",
        f"an element that leaves weights in the range of {kind}",
        "Draw a weaker one, with a smaller --strength, or leave out with --only what grows",
    )  # fmt: skip

"""Writing weights: completely, or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from paramsym.checkpoints.errors import CheckpointError
from paramsym.checkpoints.tensors import INDEX, read_index
from paramsym.structure.replacing import replacing


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """A path to write to, which becomes `out` when the block ends without an error.

    See `replacing`; its errors, and places where nothing may be written, are told as ours.
    """
    parent = out.absolute().parent
    if not parent.is_dir():
        raise CheckpointError(
            str(out), f"the folder {str(parent)!r} does not exist",
            "a place in an existing folder", "Create the folder first",
        )  # fmt: skip
    if out.is_dir() and any(out.iterdir()):
        raise CheckpointError(
            str(out), "the folder exists and is not empty", "a new name, or an empty folder",
            "Choose another name, or remove the folder",
        )  # fmt: skip
    with ExitStack() as stack:
        try:
            draft = stack.enter_context(replacing(out))
        except OSError as error:
            raise CheckpointError(
                str(out), f"nothing can be written there ({error.strerror})",
                "a folder with permission to write", "Choose another place",
            ) from error  # fmt: skip
        yield draft


def refuse_source(out: Path, sources: list[Path]) -> None:
    """Raise where writing to `out` would touch one of the sources."""
    for source in sources:
        same = out.exists() and source.exists() and out.samefile(source)
        inside = source.is_dir() and source.resolve() in out.resolve().parents
        if same or inside:
            raise CheckpointError(
                str(out), f"this is {'inside ' if inside else ''}the source {str(source)!r}",
                "another place, so that the source stays as it is", "Choose another name for OUT",
            )  # fmt: skip


def write_tensors(
    path: Path, tensors: Mapping[str, torch.Tensor], like: Path | None = None
) -> None:
    """Write tensors as safetensors (a file, or shards beside an index), or with `torch.save`.

    Args:
        path: where to; `.safetensors`, an index `….safetensors.index.json`, or `.pt`/`.pth`.
        tensors: what; names that share storage are written once each, as clones.
        like: the file that was read, for its metadata and its division into shards.
    """
    if path.name.endswith(INDEX):
        _write_shards(path, tensors, like)
    elif path.suffix == ".safetensors":
        metadata = {} if like is None else metadata_of(like)
        save_file(_owned(tensors), path, metadata={"format": "pt", **metadata})
    elif path.suffix in (".pt", ".pth", ".bin"):
        torch.save(_owned(tensors), path)
    else:
        raise CheckpointError(
            str(path), f"the suffix is {path.suffix!r}", ".safetensors (or .pt, .pth, .bin)",
            "Name the output file after its format",
        )  # fmt: skip


def metadata_of(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file; empty for other files."""
    if path.suffix != ".safetensors":
        return {}
    with safe_open(path, framework="pt") as file:
        return dict(file.metadata() or {})


def _write_shards(index: Path, tensors: Mapping[str, torch.Tensor], like: Path | None) -> None:
    if like is None or not like.name.endswith(INDEX):
        raise CheckpointError(
            str(index), "the source is not sharded", "a single file .safetensors",
            "Give OUT the suffix .safetensors",
        )  # fmt: skip
    table = read_index(like)
    for shard in dict.fromkeys(table.values()):
        part = {name: tensors[name] for name, file in table.items() if file == shard}
        write_tensors(index.parent / shard, part, like.parent / shard)
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    content = {"metadata": {"total_size": size}, "weight_map": table}
    index.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _owned(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Contiguous tensors, each with a storage of its own."""
    seen: set[int] = set()
    made = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().contiguous()
        storage = tensor.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() != tensor.numel() * tensor.element_size():
            tensor = tensor.clone()
        seen.add(tensor.untyped_storage().data_ptr())
        made[name] = tensor
    return made

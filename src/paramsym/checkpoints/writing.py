"""Writing weights: completely, or not at all."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError

from paramsym.checkpoints.errors import CheckpointError, few
from paramsym.checkpoints.tensors import INDEX, read_index
from paramsym.formats.drafts import draft_in, flush, remove_stale, replacing, workshop
from paramsym.formats.weights import metadata_of, write_safetensors

ARCHIVES = (".pt", ".pth", ".bin")  # what `torch.save` writes
_FILES = (".safetensors", INDEX, ".pt2", *ARCHIVES)


@contextmanager
def staged(out: Path, force: bool = False, room: int = 0) -> Iterator[Path]:
    """A path to write to, which becomes `out` when the block ends without an error.

    The file or folder grows under a temporary name beside its place and is renamed at the end, so
    that nobody ever sees half of it; after an error nothing is left, and what a killed run left is
    removed by the next.

    Args:
        out: the place. What stands there stays unless `force`.
        force: replace a file or a link; a folder only by one that has all of its entries.
        room: bytes that will be written, so that a disk too small for them is found beforehand.

    Raises:
        CheckpointError: something stands there, or the system does not let anything be written.
    """
    check_place(out, force)
    parent = out.absolute().parent
    remove_stale(parent)
    refuse_small_disk(out, room)
    try:
        with workshop(parent, out.name) as folder:
            draft = draft_in(folder, out)
            yield draft
            flush(draft)
            settle(draft, out, folder / "replaced")
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = system_reason(error)
        if reason is None:
            raise
        raise CheckpointError(
            str(out), f"nothing can be written there ({reason})",
            "a folder with permission to write, and room for all of it",
            "Nothing is kept. Make room, or choose another place",
        ) from error  # fmt: skip


def check_name(out: Path, suffixes: tuple[str, ...]) -> None:
    """Raise where a file would not end in one of these, or a folder would be named as a file.

    Args:
        out: what is to be written.
        suffixes: of the files that the writer can write; none where it writes a folder.
    """
    if suffixes and not out.name.endswith(suffixes):
        raise CheckpointError(
            str(out), f"the suffix is {out.suffix!r}", few(suffixes),
            "Name the output file after its format",
        )  # fmt: skip
    if not suffixes and out.name.endswith(_FILES):
        raise CheckpointError(
            str(out), f"the suffix is {out.suffix!r}, that of a file",
            "a folder, for the files that the source has", "Leave the suffix out",
        )  # fmt: skip


def check_place(out: Path, force: bool = False) -> None:
    """Raise where nothing can stand, or where something stands that must not be replaced."""
    parent = out.absolute().parent
    if not parent.is_dir():
        raise CheckpointError(
            str(out), f"the folder {str(parent)!r} does not exist",
            "a place in an existing folder", "Create the folder first",
        )  # fmt: skip
    if not os.access(parent, os.W_OK | os.X_OK):
        raise CheckpointError(
            str(out), f"nothing can be written to the folder {str(parent)!r}",
            "a folder with permission to write", "Choose another place",
        )  # fmt: skip
    refuse_existing(out, force)


def refuse_existing(out: Path, force: bool = False, option: str = "") -> None:
    """Raise where writing to `out` would replace something.

    With `force` files, links and folders may be replaced, never a device or a pipe. `option` says
    on the command line where `out` was given.
    """
    if not os.path.lexists(out):
        return
    if out.is_symlink():
        end = "" if out.exists() else ", which does not exist"
        came = f"it is a link to {os.readlink(out)!r}{end}"
    elif out.is_dir():
        if not any(out.iterdir()):
            return
        came = "the folder exists and is not empty"
    elif out.is_file():
        came = "there is such a file already"
    else:
        raise CheckpointError(
            f"{option} {out}".strip(), "it is neither a file nor a folder", "a new name",
            "Choose another name: devices and pipes are never replaced",
        )  # fmt: skip
    if not force:
        raise CheckpointError(
            f"{option} {out}".strip(), came, "a new name, or an empty folder",
            "Choose another name, or give --force to replace what is there",
        )  # fmt: skip


def refuse_small_disk(out: Path, room: int) -> None:
    """Raise where a disk has fewer bytes free than will be written."""
    free = shutil.disk_usage(out.absolute().parent).free
    if free < room:
        raise CheckpointError(
            str(out), f"the disk has {free:,} bytes free", f"room for {room:,} bytes",
            "Make room, or choose another place",
        )  # fmt: skip


def settle(draft: Path, out: Path, aside: Path) -> None:
    """Give what was written its name; what stood there goes with the temporary folder."""
    if out.is_dir() and not out.is_symlink():
        kept = sorted({p.name for p in out.iterdir()} - _entries(draft))
        if kept:
            raise CheckpointError(
                str(out), f"the folder also holds {few(kept)}",
                "a folder with no other entries than those that are written",
                "Nothing is kept. Choose another name, or remove the folder yourself",
            )  # fmt: skip
    if not out.is_dir() and not (draft.is_dir() and os.path.lexists(out)):
        return os.replace(draft, out)  # at once
    try:
        os.replace(out, aside)
        os.replace(draft, out)
    except BaseException:  # an interrupt, too, gives back what stood there
        if os.path.lexists(aside) and not os.path.lexists(out):
            os.replace(aside, out)
        raise


def _entries(draft: Path) -> set[str]:
    return {p.name for p in draft.iterdir()} if draft.is_dir() else set()


def system_reason(error: BaseException) -> str | None:
    """Why the system did not write, in its own words; None for an error of another kind.

    Writers wrap what the system says: safetensors and torch raise errors of their own, whose text
    names it.
    """
    if isinstance(error, OSError):
        return error.strerror or str(error)
    text = str(error)
    if found := re.search(r"(?:I/O error: )?([^:]*) \(os error \d+\)", text):
        return found[1].strip()
    if "PytorchStreamWriter failed" in text or "iostream error" in text:
        return "the file could not be written to its end"
    return None


def write_text(text: str, path: Path, option: str, mode: int = 0o644) -> None:
    """Write a file of text, completely or not at all; `option` says where it was given.

    Raises:
        CheckpointError: nothing can be written there.
    """
    try:
        with replacing(path, mode=mode) as draft:
            draft.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CheckpointError(
            f"{option} {path}", f"nothing can be written there ({error.strerror})",
            "a file in an existing folder", "Create the folder, or choose another place",
        ) from error  # fmt: skip


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
        told = None if like is None or like.suffix != ".safetensors" else like
        metadata = {} if told is None else metadata_of(told)
        write_safetensors(owned(tensors), path, metadata={"format": "pt", **metadata})
    elif is_archive(path):
        torch.save(owned(tensors), path)
    else:
        raise CheckpointError(
            str(path), f"the suffix is {path.suffix!r}", ".safetensors (or .pt, .pth, .bin)",
            "Name the output file after its format",
        )  # fmt: skip


def is_archive(path: Path) -> bool:
    """Is this the name of a file that `torch.save` writes?"""
    return path.suffix in ARCHIVES


def _write_shards(index: Path, tensors: Mapping[str, torch.Tensor], like: Path | None) -> None:
    if like is None or not like.name.endswith(INDEX):
        raise CheckpointError(
            str(index), "the source is not sharded", "a single file .safetensors",
            "Give OUT the suffix .safetensors",
        )  # fmt: skip
    table, size = read_index(like), 0
    for shard in dict.fromkeys(table.values()):
        part = {name: tensors[name] for name, file in table.items() if file == shard}
        write_tensors(index.parent / shard, part, like.parent / shard)
        size += sum(tensor.numel() * tensor.element_size() for tensor in part.values())
    said = json.loads(like.read_text(encoding="utf-8")).get("metadata")
    metadata = {**(said if isinstance(said, dict) else {}), "total_size": size}
    content = {"metadata": metadata, "weight_map": table}
    index.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def owned(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
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

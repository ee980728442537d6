"""Which files a checkpoint is written as, and which bytes of them each tensor gets."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paramsym.checkpoints.checkpoint import Checkpoint, Entry
from paramsym.checkpoints.tensors import INDEX

PIECE = 1 << 28  # bytes that are read, moved and flushed before the journal is told
_ALIGNED = 8  # bytes: the numbers of a file begin at a multiple


@dataclass(frozen=True)
class Placed:
    """A tensor of the source, and the byte of the new file at which it begins."""

    entry: Entry
    start: int


@dataclass(frozen=True)
class NewFile:
    """One file to be written: its first bytes, and where each tensor goes."""

    name: str
    head: bytes
    tensors: tuple[Placed, ...]

    @property
    def bytes(self) -> int:
        """The size of the file."""
        return len(self.head) + sum(placed.entry.bytes for placed in self.tensors)


@dataclass(frozen=True)
class Piece:
    """Some consecutive tensors of a new file: what one worker does at a time."""

    file: str
    tensors: tuple[Placed, ...]

    @property
    def key(self) -> str:
        """What a journal calls it."""
        return f"{self.file}:{self.tensors[0].start if self.tensors else 0}"

    @property
    def bytes(self) -> int:
        """What is read and written."""
        return sum(placed.entry.bytes for placed in self.tensors)


@dataclass(frozen=True)
class Layout:
    """The files that are written, in a folder or alone, and the name and text of their index."""

    files: tuple[NewFile, ...]
    index: tuple[str, str] | None = None
    in_folder: bool = True

    @property
    def bytes(self) -> int:
        """The size of all files together."""
        return sum(file.bytes for file in self.files)

    def pieces(self) -> Iterator[Piece]:
        """The files in pieces of about `PIECE` bytes, at least one for each file."""
        for file in self.files:
            held: list[Placed] = []
            size = 0
            for placed in file.tensors:
                if held and size + placed.entry.bytes > PIECE:
                    yield Piece(file.name, tuple(held))
                    held, size = [], 0
                held.append(placed)
                size += placed.entry.bytes
            yield Piece(file.name, tuple(held))


def layout_like(checkpoint: Checkpoint, name: str | None = None) -> Layout:
    """The files of a checkpoint, byte for byte but the numbers.

    `name` is that of a file alone, for a checkpoint that is one; None for files in a folder.
    """
    files = tuple(
        NewFile(name or f.name, f.head, tuple(Placed(e, e.start) for e in f.entries))
        for f in checkpoint.files
    )
    if checkpoint.index is None:
        return Layout(files, None, name is None)
    index, said = checkpoint.index
    return Layout(files, (index, _text(_with_size(said, checkpoint.entries.values()))))


def layout_of_size(checkpoint: Checkpoint, largest: int) -> Layout:
    """The tensors of a checkpoint in their order, in as few files of at most `largest` bytes.

    A tensor that is larger has a file of its own. Names are those of transformers.
    """
    groups: list[list[Entry]] = [[]]
    size = 0
    for file in checkpoint.files:
        for entry in file.entries:
            if groups[-1] and size + entry.bytes > largest:
                groups.append([])
                size = 0
            groups[-1].append(entry)
            size += entry.bytes
    metadata = {k: v for file in checkpoint.files for k, v in file.metadata.items()}
    names = [f"model-{k + 1:05}-of-{len(groups):05}.safetensors" for k in range(len(groups))]
    if len(groups) == 1:
        names = ["model.safetensors"]
    files = tuple(
        _new_file(name, group, metadata) for name, group in zip(names, groups, strict=True)
    )
    if len(groups) == 1:
        return Layout(files)
    said = _with_size(checkpoint.index[1] if checkpoint.index else {}, checkpoint.entries.values())
    said["weight_map"] = {
        e.name: name for name, group in zip(names, groups, strict=True) for e in group
    }
    return Layout(files, (f"model{INDEX}", _text(said)))


def _with_size(said: Mapping[str, Any], entries: Iterable[Entry]) -> dict[str, Any]:
    """What stands in an index, with the size of all numbers as it is."""
    about = said.get("metadata")
    kept = about if isinstance(about, dict) else {}
    return {**said, "metadata": {**kept, "total_size": sum(entry.bytes for entry in entries)}}


def _new_file(name: str, entries: Sequence[Entry], metadata: Mapping[str, str]) -> NewFile:
    table: dict[str, object] = {"__metadata__": {"format": "pt", **metadata}}
    # the format wants wider numbers first, so that all are aligned
    ordered = sorted(entries, key=lambda e: -e.dtype.itemsize)
    offset, offsets = 0, []
    for entry in ordered:
        offsets.append(offset)
        table[entry.name] = {
            "dtype": entry.code, "shape": list(entry.shape),
            "data_offsets": [offset, offset + entry.bytes],
        }  # fmt: skip
        offset += entry.bytes
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-(8 + len(text)) % _ALIGNED)
    head = struct.pack("<Q", len(text)) + text
    return NewFile(name, head, tuple(_placed(ordered, offsets, len(head))))


def _placed(entries: Iterable[Entry], offsets: Iterable[int], start: int) -> Iterator[Placed]:
    for entry, offset in zip(entries, offsets, strict=True):
        yield Placed(entry, start + offset)


def _text(said: Mapping[str, object]) -> str:
    return json.dumps(said, indent=2, ensure_ascii=False) + "\n"

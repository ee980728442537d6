"""Weights in safetensors files, opened without being read.

A checkpoint is a table of names: the headers say of each tensor its dtype, its shape and the bytes
that hold it. Everything that moves weights reads them through it, some rows at a time, so that what
is in memory is bounded by what must be together and not by the size of the files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
import xxhash

from paramsym.checkpoints.errors import CheckpointError, few
from paramsym.checkpoints.tensors import INDEX, index_of, parsed_index
from paramsym.formats.header import read_head
from paramsym.formats.places import Bytes, Place
from paramsym.structure.panels import as_they_are

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
    "BOOL": torch.bool, "C64": torch.complex64, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2, "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz, "F8_E8M0": torch.float8_e8m0fnu,
}  # fmt: skip
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.safetensors")
_GGUF = ".gguf"
_EXPECTED = "a .safetensors file, a folder with such files, or the index of a sharded checkpoint"


class Hash(Protocol):
    """A running hash."""

    def update(self, data: memoryview, /) -> None: ...


@dataclass(frozen=True)
class Entry:
    """One tensor in a file: what it is called there, what it is, and which bytes are its own."""

    name: str
    code: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def dtype(self) -> torch.dtype:
        """The dtype."""
        return DTYPES[self.code]

    @property
    def bytes(self) -> int:
        """The size in bytes."""
        return self.stop - self.start

    @property
    def meta(self) -> torch.Tensor:
        """The tensor without its numbers, on the meta device."""
        return torch.empty(self.shape, dtype=self.dtype, device="meta")

    @property
    def numel(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class WeightFile:
    """One safetensors file, of which the header has been read.

    `head` are its first bytes as they are, up to the numbers; `entries` come in the order of their
    numbers; `stamp` is the size and the time of the file when it was opened.
    """

    place: Place
    head: bytes
    entries: tuple[Entry, ...]
    metadata: Mapping[str, str]
    stamp: tuple[int, str]

    @property
    def name(self) -> str:
        """The name of the file in its folder."""
        return self.place.name

    def require_unchanged(self) -> None:
        """Raise a `CheckpointError` if the file is another than when it was opened."""
        now = self.place.stamp()
        if now != self.stamp:
            what = "size" if now[0] != self.stamp[0] else "time"
            raise CheckpointError(
                self.place.address, f"the file has changed while it was read (its {what})",
                "weights that nobody writes to meanwhile", "Wait for its writer, then start anew",
            )  # fmt: skip


class StoredTensor:
    """A tensor in a file, some rows of which can be read.

    `room` is memory to read into, good until the next read; without it each read has its own.
    `seen` is told every byte that is read.
    """

    def __init__(
        self, file: Bytes, entry: Entry, room: Room | None = None, seen: Hash | None = None
    ):
        self.file, self.entry, self.room, self.seen = file, entry, room, seen
        self.shape, self.dtype = torch.Size(entry.shape), entry.dtype

    def __getitem__(self, rows: slice) -> torch.Tensor:
        low, high = 0, 1
        if self.shape:
            low, high, step = rows.indices(self.shape[0])
            assert step == 1
        width = math.prod(self.shape[1:]) * self.dtype.itemsize
        count = max(0, high - low) * width
        made = torch.empty(count, dtype=torch.uint8) if self.room is None else self.room(count)
        data = made.numpy().data
        if count:
            self.file.read_into(self.entry.start + low * width, data)
        if self.seen is not None:
            self.seen.update(data)
        shape = (max(0, high - low), *self.shape[1:]) if self.shape else ()
        return made.view(self.dtype).view(shape)


class Room:
    """Memory that is read into again and again: new memory costs more than reading."""

    def __init__(self) -> None:
        self.bytes = torch.empty(0, dtype=torch.uint8)

    def __call__(self, count: int) -> torch.Tensor:
        if len(self.bytes) < count:
            self.bytes = torch.empty(count, dtype=torch.uint8)
        return self.bytes[:count]


class Checkpoint(Mapping[str, torch.Tensor]):
    """Weights in one safetensors file or in the shards of a folder, by name, read when asked for.

    `files` are the shards in the order of the index; `index` is what stands in the index, None for
    a single file; `aside` are the other files of the folder, which say what the weights are of.
    """

    def __init__(
        self, place: Place, files: tuple[WeightFile, ...],
        index: tuple[str, Mapping[str, Any]] | None = None, aside: tuple[str, ...] = (),
    ):  # fmt: skip
        self.place, self.files, self.index, self.aside = place, files, index, aside

    @classmethod
    def open(cls, source: str | Path) -> Checkpoint:
        """Open weights without reading them.

        Args:
            source: a `.safetensors` file; a folder with `model.safetensors` or with shards and
                their index; an index; or a URL of one of these that fsspec knows (`s3://…`,
                `hf://…`), for which its package has to be installed.

        Raises:
            CheckpointError: there is nothing, or a file that is no safetensors (GGUF); a shard
                is missing; a tensor stands in two shards; the index names what is not there, or
                leaves out what is.
        """
        place = Place(_local(str(source)))
        if place.name.lower().endswith(_GGUF):
            raise _no_gguf(place, "a GGUF file")
        if place.is_dir():
            return _open_folder(place)
        if not place.is_file():
            raise CheckpointError(
                place.address, "there is no such file or folder", _EXPECTED,
                "Check the spelling and the folder that the command runs in",
            )  # fmt: skip
        if place.name.endswith(INDEX):
            return _open_index(place, ())
        return cls(place, (_open_file(place),))

    @cached_property
    def entries(self) -> Mapping[str, Entry]:
        """Each tensor by name, in the order of the files."""
        return {e.name: e for file in self.files for e in file.entries}

    @cached_property
    def homes(self) -> Mapping[str, WeightFile]:
        """The file of each tensor."""
        return {e.name: file for file in self.files for e in file.entries}

    @property
    def is_file(self) -> bool:
        """Whether it is one file by itself, and no folder."""
        return self.index is None and self.place.name.endswith(".safetensors")

    @property
    def bytes(self) -> int:
        """The size of all files together."""
        return sum(file.stamp[0] for file in self.files)

    def __getitem__(self, name: str) -> torch.Tensor:
        entry = self.entries[name]
        with self.homes[name].place.opened() as file:
            return StoredTensor(file, entry)[:]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        return f"Checkpoint({self.place.address!r}, {len(self)} tensors, {self.bytes:,} bytes)"

    def meta(self) -> dict[str, torch.Tensor]:
        """All tensors without numbers, on the meta device."""
        return {name: entry.meta for name, entry in self.entries.items()}


class Opened:
    """The open files of a checkpoint: tensors as they are read, each file opened once.

    with Opened(checkpoint) as opened:
        opened["model.norm.weight"][:]
    """

    def __init__(self, checkpoint: Checkpoint):
        self.checkpoint, self.files, self.stack = checkpoint, {}, ExitStack()
        self.room = Room()

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def __getitem__(self, name: str) -> StoredTensor:
        return self.tensor(name)

    def hash(self, name: str) -> str:
        """The XXH3 of a tensor's bytes."""
        seen = xxhash.xxh3_128()
        for _ in as_they_are(self.tensor(name, self.room, seen)):
            pass
        return seen.hexdigest()

    def require_unchanged(self) -> None:
        """Raise a `CheckpointError` if one of the open files is another than when it was found."""
        for file in self.checkpoint.files:
            if file.place in self.files:
                file.require_unchanged()

    def tensor(self, name: str, room: Room | None = None, seen: Hash | None = None) -> StoredTensor:
        """One tensor; see `StoredTensor`."""
        place = self.checkpoint.homes[name].place
        if place not in self.files:
            self.files[place] = self.stack.enter_context(place.opened())
        return StoredTensor(self.files[place], self.checkpoint.entries[name], room, seen)


def _local(address: str) -> str:
    """A URL of a file on this machine as its path, so that it is known from where it is read."""
    for scheme in ("file://", "local://"):
        if address.startswith(scheme):
            return address.removeprefix(scheme)
    return address


# -- opening -----------------------------------------------------------------------------------


def _open_file(place: Place) -> WeightFile:
    stamp = place.stamp()
    with place.opened() as file:

        def read(start: int, count: int) -> bytes:
            made = bytearray(min(count, max(0, stamp[0] - start)))
            file.read_into(start, memoryview(made))
            return bytes(made)

        head, table = read_head(place.address, stamp[0], read)
    metadata = table.pop("__metadata__", {})
    entries = [
        Entry(name, e["dtype"], tuple(e["shape"]), *(len(head) + n for n in e["data_offsets"]))
        for name, e in table.items()
    ]
    return WeightFile(
        place, head, tuple(sorted(entries, key=lambda e: (e.start, e.stop))), metadata, stamp
    )


def _open_folder(place: Place) -> Checkpoint:
    names = place.names()
    weights = [name for name in names if name.endswith(".safetensors")]
    indices = [name for name in names if name.endswith(INDEX)]
    aside = tuple(n for n in names if n not in weights and n not in indices)
    if "model.safetensors" in weights or (len(weights) == 1 and not indices):
        single = place / ("model.safetensors" if "model.safetensors" in weights else weights[0])
        _require_complete(place, [single.name])
        return Checkpoint(place, (_open_file(single),), None, aside)
    if indices:
        main = f"model{INDEX}" if f"model{INDEX}" in indices else indices[0]
        return _open_index(place / main, aside)
    raise _no_weights(place, weights, names)


def _no_weights(place: Place, weights: list[str], names: list[str]) -> CheckpointError:
    """What is wrong with a folder in which nothing says what is to be opened."""
    if not weights and (packed := [name for name in names if name.lower().endswith(_GGUF)]):
        return _no_gguf(place, f"{few(packed)}, which is GGUF")
    came = f"{few(weights)} and no index" if weights else "no safetensors in it"
    return CheckpointError(
        place.address, came, "model.safetensors, or its shards and their index",
        "Copy the index, too, or write the checkpoint anew with save_pretrained",
    )  # fmt: skip


def _no_gguf(place: Place, came: str) -> CheckpointError:
    return CheckpointError(
        place.address, f"{came}, whose blocks hold codes and scales in one", _EXPECTED,
        "Move the safetensors that it was made from, and convert what comes out to GGUF again",
    )  # fmt: skip


def _open_index(place: Place, aside: tuple[str, ...]) -> Checkpoint:
    said = parsed_index(place.text(), place.address)
    table = index_of(said, place.address)
    folder, names = place.parent, list(dict.fromkeys(table.values()))
    _require_complete(folder, names)
    present = set(folder.names())
    if missing := [name for name in names if name not in present]:
        raise CheckpointError(
            place.address, f"it names {few(missing)}: there is no such file",
            f"the {len(names)} files that it names", "Copy or download the missing shards",
        )  # fmt: skip
    files = tuple(_open_file(folder / name) for name in sorted(names))
    _require_truth(place, table, files)
    return Checkpoint(folder, files, (place.name, said), aside)


def _require_complete(place: Place, names: list[str]) -> None:
    """Raise where the names of shards say that there are more of them than are named."""
    for name in names:
        if (found := _SHARD.fullmatch(name)) is not None and int(found[3]) != len(names):
            raise CheckpointError(
                place.address, f"{len(names)} shards, the first of which is {names[0]!r}",
                f"{int(found[3])}, as its name says", "Copy or download the missing shards",
            )  # fmt: skip


def _require_truth(place: Place, table: Mapping[str, str], files: tuple[WeightFile, ...]) -> None:
    """Raise where an index and the headers of its files say different things."""
    homes: dict[str, str] = {}
    instead = "Copy the shards and the index again, or write the checkpoint anew"
    for file in files:
        for entry in file.entries:
            if entry.name in homes:
                raise CheckpointError(
                    place.address,
                    f"{entry.name!r} stands in {homes[entry.name]!r} and in {file.name!r}",
                    "each tensor in one file", instead,
                )  # fmt: skip
            homes[entry.name] = file.name
    lost = [n for n, file in table.items() if homes.get(n) != file]
    if lost:
        found = homes.get(lost[0])
        where = f"which has it not{f', but {found!r} has' if found else ''}"
        raise CheckpointError(
            place.address, f"it says that {lost[0]!r} is in {table[lost[0]]!r}, {where}",
            "an index that agrees with the headers of its files", instead,
        )  # fmt: skip
    if extra := [name for name in homes if name not in table]:
        raise CheckpointError(
            place.address, f"it does not name {few(extra)}, in {homes[extra[0]]!r}",
            "an index of all tensors in its files", instead,
        )  # fmt: skip

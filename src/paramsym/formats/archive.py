"""The entries of a `.pt2` archive: which there are, how large they are, and what they hold.

The archive is read here by the reader that torch itself uses, so that both see the same entries:
in a zip file that was made for it, two readers can see two different files under one name.
"""

from __future__ import annotations

import io
import json
import math
import os
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import torch

from paramsym.formats.errors import few, first_line
from paramsym.formats.expressions import Untrusted, shown
from paramsym.formats.schema import Field, check

# Of zeros that an entry of no bytes stands for, and of a tensor that repeats its entries.
_FREE_BYTES = 1 << 28
_ITEM = {
    1: 1,
    2: 1,
    3: 2,
    4: 4,
    5: 8,
    6: 2,
    7: 4,
    8: 8,
    9: 4,
    10: 8,
    11: 16,
    12: 1,
    13: 2,
    28: 2,
    29: 1,
    30: 1,
    31: 1,
    32: 1,
    33: 1,
    34: 4,
    35: 8,
}  # bytes per ScalarType; fmt: skip
_MODEL = "models/model.json"
_TABLES = {
    "data/weights/model_weights_config.json": ("weight_",),
    "data/constants/model_constants_config.json": ("tensor_",),
}
_INPUTS = "data/sample_inputs/model.pt"


# What the two readers raise for a broken archive (RuntimeError includes NotImplementedError).
_BROKEN = (zipfile.BadZipFile, OSError, EOFError, RuntimeError, UnicodeDecodeError, struct.error,
           zlib.error, OverflowError)  # fmt: skip


class NoArchive(ValueError):
    """The file is no complete archive; the text says what is wrong with it."""


def check_archive(path: Path) -> None:
    """Refuse a program in which anything would be evaluated, imported or unpickled when it is read.

    Raises:
        NoArchive: the file is cut short, or no archive of torch.
        Field: a field, by its file and path.
    """
    _check_entries(path)
    try:
        reader = torch._C.PyTorchFileReader(str(path))
        names = [name for name in reader.get_all_records() if not name.startswith(".data/")]
        for name in names:
            _check_place(name)
        for name in (_MODEL, *_TABLES, _INPUTS, "archive_version"):
            if name not in names:
                raise NoArchive(f"it has no {name}")
        check("ExportedProgram", _json(reader, _MODEL), _MODEL)
        for table, prefixes in _TABLES.items():
            _check_table(reader, names, table, prefixes)
        _check_inputs(reader)
    except _BROKEN as error:
        raise NoArchive(first_line(error)) from error


def check_unpacked(path: Path) -> None:
    """Refuse an archive that unpacks to more bytes than it has; other files pass.

    Raises:
        NoArchive: with both numbers.
    """
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            _check_unpacked(archive, path.stat().st_size)


def _check_unpacked(archive: zipfile.ZipFile, size: int) -> None:
    total = sum(entry.file_size for entry in archive.infolist())
    if total > size:
        raise NoArchive(f"it unpacks to {total} bytes, more than its own {size}")


def _check_entries(path: Path) -> None:
    """One folder, every name once, nothing compressed: no more bytes come out than are there."""
    try:
        with zipfile.ZipFile(path) as archive:
            _check_unpacked(archive, path.stat().st_size)
            names = [entry.filename for entry in archive.infolist()]
            if len({name.lower() for name in names}) < len(names):
                raise NoArchive("it has two entries of one name")
            if len({name.split("/")[0] for name in names}) != 1:
                raise NoArchive("its entries are not in one folder")
            if broken := archive.testzip():
                raise NoArchive(f"damaged entry {broken!r}")
    except _BROKEN as error:
        raise NoArchive(first_line(error)) from error


def _check_place(name: str) -> None:
    """Refuse entries that torch would unpickle or load as compiled code."""
    if name.startswith("data/aotinductor/"):
        raise Field(name, Untrusted("compiled code", "a graph of operators"))
    if name.startswith("models/") and name != _MODEL:
        raise Field(name, Untrusted("a second program", "the one that torch.export.save wrote"))
    if name.startswith(("data/weights/", "data/constants/")) and name.endswith(".pt"):
        raise Field(name, Untrusted("weights in an older, pickled form", "plain tensors"))


def _json(reader: Any, name: str) -> Any:
    try:
        return json.loads(reader.get_record(name).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise Field(name, Untrusted(f"no JSON ({first_line(error, 80)})", "JSON")) from None


def _check_table(reader: Any, names: list[str], table: str, prefixes: tuple[str, ...]) -> None:
    found = _json(reader, table)
    check("PayloadConfig", found, table)
    objects = [name for name, meta in found["config"].items() if _pickled(meta, prefixes)]
    if objects:
        raise Field(f"{table}, config", Untrusted(f"pickled objects: {few(objects)}", "tensors"))
    folder = os.path.dirname(table)
    for name, meta in found["config"].items():
        entry, where = f"{folder}/{meta['path_name']}", f"{table}, {shown(name)}"
        if entry not in names:
            raise Field(where, Untrusted(f"the entry {shown(entry)}, which is not there", "one"))
        try:
            _check_extent(meta["tensor_meta"], reader.get_record_size(entry))
        except Untrusted as error:
            raise Field(where, error) from None


def _pickled(meta: dict[str, Any], prefixes: tuple[str, ...]) -> bool:
    plain = meta["path_name"].startswith(prefixes) and not meta["use_pickle"]
    return not plain or meta["tensor_meta"] is None


def _check_extent(meta: dict[str, Any], size: int) -> None:
    """A tensor lies inside its entry, and is no larger than it (or of a moderate size)."""
    if any("as_int" not in s for s in (*meta["sizes"], *meta["strides"], meta["storage_offset"])):
        raise Untrusted("a size that depends on others", "the sizes of a tensor of numbers")
    sizes, strides = ([s["as_int"] for s in meta[key]] for key in ("sizes", "strides"))
    offset, item = meta["storage_offset"]["as_int"], _ITEM.get(meta["dtype"], 0)
    described = f"sizes {sizes}, strides {strides}, offset {offset}"
    if len(sizes) != len(strides) or min([*sizes, *strides, offset, item]) < 0 or not item:
        raise Untrusted(shown(described), "sizes and strides of a tensor")
    count = math.prod(sizes)
    reach = offset + 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    if (count and reach * item > size) or count * item > max(size, _FREE_BYTES):
        raise Untrusted(f"{shown(described)} in an entry of {size} bytes", "a part of that entry")


def _check_inputs(reader: Any) -> None:
    """The example inputs can be read without unpickling objects."""
    content = reader.get_record(_INPUTS)
    try:
        if zipfile.is_zipfile(io.BytesIO(content)):
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                _check_unpacked(archive, len(content))
        if content:
            torch.load(io.BytesIO(content), weights_only=True)
    except NoArchive as error:
        raise Field(_INPUTS, Untrusted(str(error), "tensors and numbers")) from error
    except Exception as error:
        found = f"example inputs that are pickled objects ({first_line(error, 80)})"
        raise Field(_INPUTS, Untrusted(found, "tensors and numbers")) from error

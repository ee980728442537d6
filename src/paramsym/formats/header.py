"""The header of a safetensors file, believed only once every number in it has been compared.

The format: eight bytes with the length of the header, the header as JSON, the numbers. Each tensor
has a dtype, a shape and the bytes from where to where its numbers lie; together they cover the rest
of the file exactly once.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from paramsym.formats.errors import CheckpointError, first_line, reading

LONGEST = 100_000_000  # bytes of a header; the format's own limit
ITEM = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "U16": 2,
    "U32": 4,
    "U64": 8,
    "BOOL": 1,
    "C64": 8,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E4M3FNUZ": 1,
    "F8_E5M2FNUZ": 1,
    "F8_E8M0": 1,
}  # bytes per number; fmt: skip
EXPECTED = "a complete safetensors file"
_INSTEAD = "Copy or download the file again, and compare its size with the original's"


def read_header(path: Path) -> dict[str, Any]:
    """The header of a safetensors file, once the file agrees with it.

    Returns:
        Name of tensor → `{"dtype", "shape", "data_offsets"}`, and perhaps `__metadata__`. The
        numbers begin where the header ends, see `read_head`.

    Raises:
        CheckpointError: the file is missing, a folder, or not ours to read; it is cut short or too
            long, the header is no JSON, or a tensor has an unknown dtype, a wrong shape, or bytes
            that are not its own.
    """
    with reading(path, EXPECTED):
        size = path.stat().st_size
        with path.open("rb") as file:
            return read_head(str(path), size, lambda start, count: _part(file, start, count))[1]


def _part(file: BinaryIO, start: int, count: int) -> bytes:
    file.seek(start)
    return file.read(count)


def read_head(
    path: str, size: int, read: Callable[[int, int], bytes]
) -> tuple[bytes, dict[str, Any]]:
    """The first bytes of a safetensors file, up to its numbers, and the header that they hold.

    Args:
        path: what the file is called in errors.
        size: of the file, in bytes.
        read: gives a number of bytes from a place on, or those that there are.

    Raises:
        CheckpointError: as `read_header`, for what is in the file.
    """
    prefix = read(0, min(8, size))
    if len(prefix) < 8:
        raise CheckpointError(path, f"it has only {size} bytes", EXPECTED, _INSTEAD)
    (length,) = struct.unpack("<Q", prefix)
    # A header of 640 bytes begins like a pickle, so that its length is asked first.
    if 8 + length > size and prefix[:2] in (b"PK", b"\x80\x02", b"\x80\x04"):
        raise CheckpointError(
            path, "the file is a pickle or an archive of torch.save, whatever its name",
            "the safetensors format", "Save it with safetensors.torch.save_file",
        )  # fmt: skip
    if 8 + length > size or length > LONGEST:
        raise CheckpointError(
            path,
            f"the file is cut short or no safetensors file: its header should have {length} "
            f"bytes, the whole file has {size}",
            EXPECTED, _INSTEAD,
        )  # fmt: skip
    text = read(8, length)
    header = _parse(path, text)
    promised = 8 + length + _check_tensors(path, header)
    if promised != size:
        raise CheckpointError(
            path,
            f"the file is {'cut short' if size < promised else 'too long'}: it has {size} bytes, "
            f"its header promises {promised}",
            EXPECTED, _INSTEAD,
        )  # fmt: skip
    return prefix + text, header


def _parse(path: str, text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=once)
        if not isinstance(header, dict):
            raise ValueError(f"a {type(header).__name__} instead of a table")
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            path, f"its header cannot be read ({first_line(error)})", EXPECTED, _INSTEAD
        ) from error
    return header


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose names are all different: of two with one name a parser keeps either."""
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a name stands in it twice")
    return table


def _check_tensors(path: str, header: Mapping[str, Any]) -> int:
    """Check every tensor; return how many bytes they have together."""
    spans = []
    for name, entry in header.items():
        if name == "__metadata__":
            good = isinstance(entry, dict) and all(isinstance(v, str) for v in entry.values())
            if not good:
                raise _wrong(path, name, "metadata that is no table of texts")
        else:
            spans.append((*_check_tensor(path, name, entry), name))
    end = 0
    for start, stop, name in sorted(spans):
        if start != end:
            raise _wrong(path, name, f"numbers that begin at byte {start}, not at {end}")
        end = stop
    return end


def _check_tensor(path: str, name: str, entry: Any) -> tuple[int, int]:
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= set(entry):
        raise _wrong(path, name, "no table of dtype, shape and data_offsets")
    dtype, shape, span = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM:
        raise _wrong(path, name, f"the dtype {_short(dtype)}")
    if not _sizes(shape):
        raise _wrong(path, name, f"the shape {_short(shape)}")
    if not _sizes(span) or len(span) != 2 or span[0] > span[1]:
        raise _wrong(path, name, f"the data_offsets {_short(span)}")
    if math.prod(shape) * ITEM[dtype] != span[1] - span[0]:
        raise _wrong(
            path, name, f"{span[1] - span[0]} bytes for the shape {_short(shape)} of {dtype}"
        )
    return span[0], span[1]


def _sizes(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= 64
        and all(type(n) is int and 0 <= n < 1 << 63 for n in value)
        and math.prod(max(1, n) for n in value) < 1 << 63
    )


def _short(value: Any) -> str:
    text = repr(value) if not isinstance(value, (list, dict)) or len(value) < 9 else "of many parts"
    return text if len(text) <= 60 else text[:60] + "…"


def _wrong(path: str, name: str, came: str) -> CheckpointError:
    return CheckpointError(
        f"{path}, header, {_short(name)}", came,
        "a dtype, a shape of sizes, and data_offsets of just as many bytes, one tensor after the "
        "other", "Write the file anew with safetensors.torch.save_file",
    )  # fmt: skip

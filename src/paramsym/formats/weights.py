"""The one door to the tensors of a safetensors file: its header is compared with it beforehand.

safetensors itself takes the header's word for what it allocates, and tells what is wrong in its
own words. Nothing else in the library opens such a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from paramsym.formats.errors import CheckpointError, first_line, reading
from paramsym.formats.header import EXPECTED, read_header


def tensor_names(path: Path) -> list[str]:
    """The names of the tensors in a file, none of which is read.

    Raises `CheckpointError` as `read_header`.
    """
    return [name for name in read_header(path) if name != "__metadata__"]


def metadata_of(path: Path) -> dict[str, str]:
    """The texts that a file carries beside its tensors, none of which is read.

    Raises `CheckpointError` as `read_header`.
    """
    return dict(read_header(path).get("__metadata__", {}))


def read_safetensors(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and tensors of a file, one after the other.

    Raises `CheckpointError` as `read_header`, or if a tensor cannot be read.
    """
    read_header(path)
    with _opened(path) as file:
        for name in file.keys():  # noqa: SIM118 (a file is no mapping)
            yield name, _aligned(file.get_tensor(name))


def read_tensor(path: Path, name: str) -> torch.Tensor:
    """One tensor of a file, by a name that `tensor_names` gave, which has compared the header.

    Raises `CheckpointError` if it cannot be read.
    """
    with _opened(path) as file:
        return _aligned(file.get_tensor(name))


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that starts where its numbers may.

    Files are mapped into memory, where a tensor starts as its bytes lie in them: at a multiple of
    eight. PyTorch reads complex numbers of double precision as pairs of aligned doubles, and the
    process ends without a word where they are not.
    """
    size = tensor.element_size()
    return tensor if tensor.data_ptr() % size == 0 else tensor.clone()


def write_safetensors(
    tensors: Mapping[str, torch.Tensor], path: Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors, so that equal ones are equal files: safetensors writes metadata in any order.

    Raises what safetensors does: `OSError` and `SafetensorError` where it cannot be written.
    """
    save_file(dict(tensors), path, metadata=dict(metadata) if metadata else None)
    if not metadata or len(metadata) == 1:
        return
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        table = json.loads(file.read(length))
        table["__metadata__"] = dict(sorted(metadata.items()))
        first = {"__metadata__": table.pop("__metadata__"), **table}
        text = json.dumps(first, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= length:  # the same characters in another order
            file.seek(8)
            file.write(text.ljust(length))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with reading(path, EXPECTED), safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise CheckpointError(
            str(path), f"it cannot be read ({first_line(error)})", EXPECTED,
            "Copy or download the file again",
        ) from error  # fmt: skip

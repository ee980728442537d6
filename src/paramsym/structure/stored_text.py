"""Tensors as JSON that people read and write: dtype, shape, and every number in full.

A number is written by the shortest decimal that reads back to it (float64), or by its exact value
(narrower dtypes), so that nothing is rounded either way. NaN and infinities have no JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

LIMIT = 100_000  # numbers: what a person may still look through, and a few megabytes
Tensors = Mapping[str, torch.Tensor]
_DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64)
}


def is_text(path: Path) -> bool:
    """Whether a file is JSON: by how it begins and, where that says nothing, by its name.

    Safetensors begin with a length of eight bytes, far too small to have no zero among them.
    """
    with path.open("rb") as file:
        start = file.read(64)
    return b"\0" not in start[:8] and (start.lstrip()[:1] == b"{" or path.suffix == ".json")


def write_text(path: Path, where: str, header: Mapping[str, Any], tensors: Tensors) -> None:
    """Write a header and tensors, one line for each.

    Raises `ValueError`, for `where`, if there are more than `LIMIT` numbers, or of another dtype.
    """
    _require_small(where, tensors)
    lines = [f" {json.dumps(n)}: {_as_text(where, n, x)}" for n, x in tensors.items()]
    above = [f"{json.dumps(key)}: {_dumped(value)}" for key, value in header.items()]
    body = ",\n".join(lines)
    text = ",\n".join([*above, f'"tensors": {{\n{body}\n}}' if body else '"tensors": {}'])
    path.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


def read_text(path: Path) -> tuple[Mapping[str, Any], Callable[[], dict[str, torch.Tensor]]]:
    """The header that `write_text` wrote, and how to read the tensors.

    Malformed text raises whatever exception it meets; the caller tells it.
    """
    data = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    if not isinstance(data, dict):
        raise TypeError(f"a JSON object was expected, and not {type(data).__name__}")
    return data, lambda: {name: _as_tensor(**said) for name, said in data["tensors"].items()}


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _require_small(where: str, tensors: Tensors) -> None:
    total = sum(x.numel() for x in tensors.values())
    if total > LIMIT:
        largest = max(tensors, key=lambda name: tensors[name].numel())
        raise ValueError(
            f"{where}: {total:,} numbers came, most of them in {largest!r}, but at most {LIMIT:,} "
            "were expected in text. Give the file the suffix .safetensors, which has no limit."
        )


def _as_text(where: str, name: str, tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in _DTYPES:
        raise ValueError(
            f"{where}: {name!r} has dtype {dtype}, but one of {', '.join(_DTYPES)} was expected in "
            "text. Convert the element, or give the file the suffix .safetensors."
        )
    return _dumped({"dtype": dtype, "shape": [*tensor.shape], "values": tensor.tolist()})


def _as_tensor(dtype: str, shape: list[int], values: Any) -> torch.Tensor:
    """What `_as_text` wrote, checked entry by entry."""
    entries = _entries(values, shape)
    kinds = (int,) if dtype == "int64" else (int, float)
    if not all(type(x) in kinds and math.isfinite(x) for x in entries):
        raise ValueError(f"finite numbers of dtype {dtype} were expected")
    tensor = torch.tensor(entries, dtype=_DTYPES[dtype]).reshape(shape)
    if not tensor.isfinite().all():
        raise ValueError(f"numbers in the range of {dtype} were expected")
    return tensor


def _entries(values: Any, shape: list[int]) -> list[Any]:
    """The entries of nested lists, as deep as the shape is long and not deeper."""
    entries = [values]
    for n in shape:
        if not all(isinstance(x, list) and len(x) == n for x in entries):
            raise ValueError(f"values of the shape {shape} were expected")
        entries = [x for found in entries for x in found]
    return entries


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no number")

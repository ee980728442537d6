"""Elements and velocities as files: safetensors, with the fingerprint of their symmetry.

Nothing in such a file can run. Tensors are named `{part}.{field}.{name}`; the header lists the
parts in the order in which they act. Complex numbers are stored as pairs of real ones.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from paramsym.algebra import Element, Tangent
from paramsym.structure.checked import Checked
from paramsym.structure.data import SymmetryData
from paramsym.structure.files import to_json

FORMAT = "paramsym-element/1"
Fields = dict[str, dict[str, torch.Tensor]]  # field ("order", "diagonal", …) -> name -> tensor


def fingerprint(symmetry: SymmetryData) -> str:
    """A hash (SHA-256) of what acts and how: spaces, signature, shifts, ties, origins, buffers.

    Why something is held, and how the symmetry was checked, do not change its elements and do not
    enter.
    """
    acting = replace(
        symmetry, dead=(), reasons={}, unknown={}, unreached={}, random={}, checked=Checked()
    )
    data = json.loads(to_json(acting))
    spaces = [[s.name, str(s.group), list(s.over)] for s in symmetry.spaces.values()]
    text = json.dumps({**data, "spaces": spaces}, ensure_ascii=False)
    return sha256(text.encode()).hexdigest()


def write(
    path: str | Path, kind: str, symmetry: SymmetryData, parts: Sequence[tuple[Any, Fields]]
) -> None:
    """Write parts, each a header (any JSON value) and tensors, to a new file or over an old one."""
    tensors: dict[str, torch.Tensor] = {}
    for k, (_, fields) in enumerate(parts):
        for field, named in fields.items():
            for name, tensor in named.items():
                real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
                mark = "~" if tensor.is_complex() else ""
                tensors[f"{k}.{field}{mark}.{name}"] = real.detach().cpu().clone().contiguous()
    header = {
        "format": FORMAT, "kind": kind, "fingerprint": fingerprint(symmetry),
        "parts": json.dumps([header for header, _ in parts]),
    }  # fmt: skip
    target = Path(path)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(handle)
    try:
        save_file(tensors, temporary, header)
        os.replace(temporary, target)
    finally:
        Path(temporary).unlink(missing_ok=True)


def read(path: str | Path, kind: str, symmetry: SymmetryData) -> list[tuple[Any, Fields]]:
    """The parts that `write` wrote.

    Raises `ValueError` if the file is of another kind or belongs to another symmetry.
    """
    where = f"{kind}.load({str(path)!r})"
    try:
        with safe_open(path, framework="pt") as file:
            header: Mapping[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"{where}: the file cannot be read as safetensors ({error}). Expected what "
            f"{kind}.save wrote. Check the path, or save the element anew."
        ) from error
    if (header.get("format"), header.get("kind")) != (FORMAT, kind):
        raise ValueError(
            f"{where}: the file says format {header.get('format')!r} and kind "
            f"{header.get('kind')!r}, but {FORMAT!r} and {kind!r} were expected. Pass a file that "
            f"{kind}.save wrote."
        )
    if header.get("fingerprint") != fingerprint(symmetry):
        raise ValueError(
            f"{where}: the file belongs to the symmetry {header.get('fingerprint', '')[:12]}…, "
            f"but {fingerprint(symmetry)[:12]}… was given. An element acts with its own symmetry "
            "alone: load it with the one that it was saved with (to_json and from_json keep it)."
        )
    parts: list[tuple[Any, Fields]] = [(part, {}) for part in json.loads(header["parts"])]
    for key, tensor in tensors.items():
        k, field, name = key.split(".", 2)
        if field.endswith("~"):
            field, tensor = field[:-1], torch.view_as_complex(tensor)
        parts[int(k)][1].setdefault(field, {})[name] = tensor
    return parts


_FIELDS = ("order", "diagonal", "matrix")
_BASE = "base/"  # before the fields of the copies of a wreath product


def fields_of(values: Mapping[str, Element] | Mapping[str, Tangent]) -> Fields:
    """The tensors of values by field and space; those of all copies of a value have one name."""
    found: Fields = {}
    for name, value in values.items():
        inner, prefix = value, ""
        while inner is not None:
            for field in _FIELDS:
                if (tensor := getattr(inner, field, None)) is not None:
                    found.setdefault(prefix + field, {})[name] = tensor
            inner, prefix = inner.base, prefix + _BASE
    return found


def element_of(name: str, fields: Fields, prefix: str = "") -> Element:
    """The value of a space."""
    order, diagonal, matrix = (fields.get(prefix + field, {}).get(name) for field in _FIELDS)
    inner = prefix + _BASE
    deeper = any(name in named for field, named in fields.items() if field.startswith(inner))
    return Element(order, diagonal, matrix, element_of(name, fields, inner) if deeper else None)


def tangent_of(name: str, fields: Fields) -> Tangent:
    """The velocity of a space."""
    return _velocity(element_of(name, fields))


def _velocity(element: Element) -> Tangent:
    base = None if element.base is None else _velocity(element.base)
    return Tangent(element.diagonal, element.matrix, base)

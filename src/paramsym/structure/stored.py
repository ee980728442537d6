"""Elements and velocities as files: safetensors or JSON, with the fingerprint of their symmetry.

Nothing in such a file can run. Tensors are named `{part}.{field}.{name}`; the header lists the
parts in the order in which they act. Complex numbers are stored as pairs of real ones, marked by
`~` behind the field, and copies of a base group under `base/`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError

from paramsym.algebra import Element, Tangent
from paramsym.formats.drafts import replacing
from paramsym.formats.weights import metadata_of, read_safetensors, write_safetensors
from paramsym.structure.checked import Checked
from paramsym.structure.data import SymmetryData
from paramsym.structure.files import to_json
from paramsym.structure.membership import tensors_of
from paramsym.structure.stored_text import is_text, read_text, write_text

FORMAT = "paramsym-element/1"
Fields = dict[str, dict[str, torch.Tensor]]  # field ("order", "diagonal", …) -> name -> tensor
Parts = list[tuple[Any, Fields]]  # a header (any JSON value) and tensors, for each part
Header = Mapping[str, Any]
Made = TypeVar("Made")
Build = Callable[[SymmetryData, Parts], Made]

# An element may be the key to weights that are published in another basis: for its owner alone.
_PRIVATE = 0o600
# All that reading what somebody else wrote may raise; errors of the disk stay what they are.
_MALFORMED = (
    SafetensorError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip


def fingerprint(symmetry: SymmetryData) -> str:
    """A hash (SHA-256) of what acts and how: spaces, signature, shifts, ties, origins, buffers.

    Why something is held, and how the symmetry was checked, do not change its elements and do not
    enter.
    """
    acting = replace(
        symmetry,
        dead=(),
        reasons={},
        unknown={},
        unreached={},
        random={},
        probed={},
        checked=Checked(),
    )
    data = json.loads(to_json(acting))
    spaces = [[s.name, str(s.group), list(s.over)] for s in symmetry.spaces.values()]
    text = json.dumps({**data, "spaces": spaces}, ensure_ascii=False)
    return sha256(text.encode()).hexdigest()


# -- values ----------------------------------------------------------------------------------------


def fields_of(values: Mapping[str, Element] | Mapping[str, Tangent]) -> Fields:
    """The tensors of values by field and space; those of all copies of a value have one name."""
    fields: Fields = {}
    for name, value in values.items():
        for field, tensor in tensors_of(value):
            fields.setdefault(field, {})[name] = tensor
    return fields


def element_of(name: str, fields: Fields) -> Element:
    """The value of one space, as `fields_of` took it apart."""
    parts = {field: named[name] for field, named in fields.items() if name in named}
    inner = {field.removeprefix("base/"): {name: parts.pop(field)}
             for field in [*parts] if field.startswith("base/")}  # fmt: skip
    return Element(**parts, base=element_of(name, inner) if inner else None)


def tangent_of(name: str, fields: Fields) -> Tangent:
    """The velocity of one space, as `fields_of` took it apart."""
    return _without_order(element_of(name, fields))


def _without_order(value: Element) -> Tangent:
    if value.order is not None:
        raise ValueError("a velocity has no order")
    base = None if value.base is None else _without_order(value.base)
    return Tangent(value.diagonal, value.matrix, base)


# -- files -----------------------------------------------------------------------------------------


def write(
    path: str | Path, kind: str, symmetry: SymmetryData, parts: Parts, build: Build[Any]
) -> None:
    """Write parts to a new file or over an old one: JSON if it ends in `.json`, or safetensors.

    Raises `ValueError` if they are too large for text, or if `build` could not read them back.
    """
    where = f"{kind}.save({str(path)!r})"
    try:
        build(symmetry, parts)
    except _MALFORMED as error:
        raise ValueError(
            f"{where}: what came could not be read back ({type(error).__name__}: {error}). "
            "Expected values of the groups of its symmetry, one for each copy. Make them with "
            "symmetry.element, velocity or sample; of a batch, all values have the same leading "
            "dimensions."
        ) from error
    tensors: dict[str, torch.Tensor] = {}
    for k, (_, fields) in enumerate(parts):
        for field, named in fields.items():
            for name, tensor in named.items():
                real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
                mark = "~" if tensor.is_complex() else ""
                tensors[f"{k}.{field}{mark}.{name}"] = real.detach().cpu().clone().contiguous()
    header = {"format": FORMAT, "kind": kind, "fingerprint": fingerprint(symmetry)}
    headers = [header for header, _ in parts]
    target = Path(path)
    with replacing(target, _PRIVATE) as draft:
        if target.suffix == ".json":
            write_text(draft, where, {**header, "parts": headers}, tensors)
        else:
            write_safetensors(tensors, draft, {**header, "parts": json.dumps(headers)})


def read(path: str | Path, kind: str, symmetry: SymmetryData, build: Build[Made]) -> Made:
    """What `build` makes of the parts that `write` wrote.

    Raises `ValueError` if the file is of another kind, belongs to another symmetry, or holds
    anything that `build` or a reader stumbles over.
    """
    where = f"{kind}.load({str(path)!r})"
    with _told(where, kind):
        header, tensors = (read_text if is_text(Path(path)) else _read_tensors)(Path(path))
    _require_header(where, kind, header, symmetry)
    with _told(where, kind):
        return build(symmetry, _parts(header["parts"], tensors()))


def owner(path: str | Path, kind: str) -> str:
    """The fingerprint of the symmetry that a file says it belongs to; no tensor is read.

    Raises `ValueError` if the file is of another kind.
    """
    where = f"{kind}.load({str(path)!r})"
    with _told(where, kind):
        header, _ = (read_text if is_text(Path(path)) else _read_tensors)(Path(path))
    _require_kind(where, kind, header)
    return str(header.get("fingerprint"))


@contextmanager
def _told(where: str, kind: str) -> Iterator[None]:
    """What is malformed is told once, at the door."""
    try:
        yield
    except _MALFORMED as error:
        said = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{where}: the file cannot be read as safetensors or JSON of an element ({said[:300]})."
            f" Expected what {kind}.save wrote, for this symmetry. Check the path, or save the "
            "element anew."
        ) from error


def _read_tensors(path: Path) -> tuple[Header, Callable[[], dict[str, torch.Tensor]]]:
    header: dict[str, Any] = {**metadata_of(path)}
    if header.get("format") == FORMAT:
        header["parts"] = json.loads(header["parts"])
    return header, lambda: dict(read_safetensors(path))


def _require_kind(where: str, kind: str, header: Header) -> None:
    said = _said(header)
    if (said.get("format"), said.get("kind")) != (FORMAT, kind):
        raise ValueError(
            f"{where}: the file says format {said.get('format')!r:.40} and kind "
            f"{said.get('kind')!r:.40}, but {FORMAT!r} and {kind!r} were expected. Pass a file "
            f"that {kind}.save wrote."
        )


def _said(header: Header) -> dict[str, str]:
    return {key: x if isinstance(x, str) else type(x).__name__ for key, x in header.items()}


def _require_header(where: str, kind: str, header: Header, symmetry: SymmetryData) -> None:
    _require_kind(where, kind, header)
    said = _said(header)
    if said.get("fingerprint") != fingerprint(symmetry):
        raise ValueError(
            f"{where}: the file belongs to the symmetry {said.get('fingerprint', 'none')[:12]}…, "
            f"but {fingerprint(symmetry)[:12]}… was given. An element acts with its own symmetry "
            "alone: load it with the one that it was saved with (to_json and from_json keep it)."
        )


def _parts(headers: Sequence[Any], tensors: Mapping[str, torch.Tensor]) -> Parts:
    parts: Parts = [(part, {}) for part in headers]
    for key, tensor in tensors.items():
        k, field, name = key.split(".", 2)
        if field.endswith("~"):
            field, tensor = field[:-1], torch.view_as_complex(tensor)
        parts[int(k)][1].setdefault(field, {})[name] = tensor
    return parts

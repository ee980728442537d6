"""What has to hold of a `config.json` before a model is built from it.

A configuration is a list of sizes, and what they describe may not fit into any memory. Its numbers
are looked at before transformers sees them; then the model is built on the meta device, where
numbers take no room, and building stops at the first parameter that the files cannot fill.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from paramsym.checkpoints.errors import CheckpointError, first_line

# What is counted one by one when a configuration is read: by words in its key.
_COUNTS = {"layer": 20_000, "depth": 20_000, "block": 1 << 24, "label": 1 << 20}
_LARGEST = 1 << 48  # of any other whole number
_NAMES_OF_CODE = ("attn_implementation", "experts_implementation")
_TENSORS = 10_000  # of a model whose files are not read
_SPARE = 1 << 20  # parameters that a model may have beyond those in its files
_BUFFERS = 1 << 30  # bytes


def read_configuration(path: Path) -> dict[str, Any]:
    """The JSON of a configuration, once none of its values would take all memory or run code.

    Raises:
        CheckpointError: the file is no table in JSON, or a value is no size of a model.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError(f"it is a {type(found).__name__}, not a table")
        _check_values(path, found, "")
    except (ValueError, RecursionError, OSError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise _unusable(path, f"it cannot be used ({first_line(error)})") from error
    return found


def _unusable(path: Path, came: str) -> CheckpointError:
    return CheckpointError(
        str(path), came, "the configuration of a model in transformers",
        "Code that a folder brings along is never run here; where the model has its own, "
        "write a factory: package.module:factory --weights FILE",
    )  # fmt: skip


def _check_values(path: Path, value: Any, key: str) -> None:
    if isinstance(value, dict):
        for name, part in value.items():
            _check_values(path, part, name)
    elif isinstance(value, list):
        for part in value:
            _check_values(path, part, key)
    elif isinstance(value, str):
        if key.strip("_").removesuffix("_internal") in _NAMES_OF_CODE and not value.isidentifier():
            raise _unusable(path, f"{key!r} is {value[:60]!r}, code from another place")
    elif type(value) is float and value != value:
        raise _unusable(path, f"{key!r} is no number")
    elif type(value) is int:
        limit = min((n for word, n in _COUNTS.items() if word in key.lower()), default=_LARGEST)
        if abs(value) > limit:
            raise _unusable(path, f"{key!r} is {value:.3e}, and more than {limit}")


def model_class(path: Path, config: Any) -> Any:
    """The class of transformers that a configuration names; `AutoModel` if it names none."""
    import transformers

    names = getattr(config, "architectures", None) or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise CheckpointError(
            str(path), f"'architectures' is {str(names)[:60]}", "a list of names of classes",
            "Write the name of the class that the weights belong to",
        )  # fmt: skip
    for name in names:
        kind = getattr(transformers, name, None) if name.isidentifier() else None
        if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel):
            return kind
    if names:
        raise CheckpointError(
            str(path), f"the architecture {names[0][:60]!r}",
            f"one that transformers {transformers.__version__} has",
            "Install the version of transformers that the folder was written with",
        )  # fmt: skip
    return transformers.AutoModel


class _TooLarge(Exception):
    """Building stopped: it went beyond what the files can fill."""


@contextmanager
def bounded(path: Path, headers: Mapping[str, Mapping[str, Any]] | None) -> Iterator[None]:
    """Stop building a model whose parameters are more than those in its files.

    Args:
        path: of the configuration.
        headers: name → entry of every tensor in the files; None where no files are read, which
            bounds only how many tensors there are.
    """
    room = _TENSORS if headers is None else 4 * len(headers) + 1000
    held = None if headers is None else sum(_count(entry) for entry in headers.values())
    seen: dict[int, torch.Tensor] = {}  # tied ones count once
    total = 0

    def count(module: Any, name: str, parameter: torch.Tensor | None) -> None:
        nonlocal total
        if parameter is None or id(parameter) in seen:
            return
        seen[id(parameter)] = parameter
        total += parameter.numel()
        if len(seen) > room or (held is not None and total > 4 * held + _SPARE):
            raise _TooLarge

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    except _TooLarge:
        holds = "" if held is None else f", and its files hold {len(headers or ())} of {held}"
        raise CheckpointError(
            str(path), f"it asks for more than {len(seen)} tensors of {total} numbers{holds}",
            "the sizes of the model that the weights belong to" if held is not None
            else f"a model of at most {room} tensors",
            "Check the sizes in config.json, above all how many layers there are",
        ) from None  # fmt: skip
    finally:
        handle.remove()


def _count(entry: Mapping[str, Any]) -> int:
    total = 1
    for size in entry["shape"]:
        total *= size
    # Four-bit weights are packed, two to eight into one number.
    return total * (8 if entry["dtype"][0] in "IU" else 1)


def check_size(path: Path, model: torch.nn.Module, held: int) -> None:
    """Compare a model on the meta device with its files, before its tensors are allocated."""
    parameters = sum(p.numel() for p in model.parameters())
    buffers = sum(b.numel() * b.element_size() for b in model.buffers())
    if parameters > 2 * held + _SPARE or buffers > _BUFFERS:
        raise CheckpointError(
            str(path), f"it asks for {parameters} parameters and {buffers} bytes of buffers",
            f"the sizes of the weights beside it, which are {held} numbers",
            "Check that config.json belongs to the weights",
        )  # fmt: skip


def numbers_in(headers: Mapping[str, Mapping[str, Any]]) -> int:
    """How many numbers the files hold."""
    return sum(_count(entry) for entry in headers.values())

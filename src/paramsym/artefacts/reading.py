"""Artefacts as files: the folder of an adapter, or one safetensors file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from paramsym.formats.errors import CheckpointError, reading
from paramsym.formats.weights import read_safetensors, read_tensor, tensor_names

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_EXPECTED = f"a folder with {CONFIG} and {WEIGHTS}, or a safetensors file"


def files_of(path: Path) -> tuple[Path, Path | None]:
    """The file of the tensors of an artefact, and its configuration if it has one.

    Raises:
        CheckpointError: there is nothing, or no such file in the folder.
    """
    if path.is_dir():
        weights, config = path / WEIGHTS, path / CONFIG
        for file in (weights, config):
            if not file.is_file():
                raise CheckpointError(
                    str(path), f"the folder has no {file.name}", _EXPECTED,
                    "Give the folder that save_pretrained wrote",
                )  # fmt: skip
        return weights, config
    if not path.is_file():
        raise CheckpointError(
            str(path), "there is no such file or folder", _EXPECTED,
            "Check the spelling and the folder that the command runs in",
        )  # fmt: skip
    beside = path.with_name(CONFIG)
    return path, beside if path.name == WEIGHTS and beside.is_file() else None


def read_artefact(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors of an artefact, and its configuration, which is empty where there is none."""
    weights, config = files_of(path)
    return dict(read_safetensors(weights)), {} if config is None else read_config(config)


def read_config(path: Path) -> dict[str, Any]:
    """The configuration of an adapter.

    Raises:
        CheckpointError: it is no JSON object.
    """
    with reading(path, "a configuration"):
        text = path.read_text(encoding="utf-8", errors="replace")
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise CheckpointError(
            str(path), f"it is no JSON ({error.msg}, line {error.lineno})", "a JSON object",
            "Take the file that save_pretrained wrote",
        ) from error  # fmt: skip
    if not isinstance(found, dict):
        raise CheckpointError(
            str(path), f"a {type(found).__name__}", "a JSON object",
            "Take the file that save_pretrained wrote",
        )  # fmt: skip
    return found


class FileTensors(Mapping[str, torch.Tensor]):
    """The tensors of a safetensors file, or of those of a folder, each read when it is needed."""

    def __init__(self, path: Path):
        files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        if not files or not all(file.is_file() for file in files):
            raise CheckpointError(
                f"base={path}", "there are no safetensors", "the weights of the model before it "
                "was moved", "Check the path",
            )  # fmt: skip
        self._files = {name: file for file in files for name in tensor_names(file)}

    def __getitem__(self, name: str) -> torch.Tensor:
        return read_tensor(self._files[name], name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

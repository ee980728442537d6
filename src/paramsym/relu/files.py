"""ReLU networks from files: `.pt2`, `.onnx`, `.safetensors` with layers in order, or JSON.

JSON is a list of {"W": [[…]], "b": […]} (or {"layers": […]}), entries being numbers or rationals as
strings. Pickled checkpoints are not read: they run code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from paramsym.formats.errors import CheckpointError
from paramsym.relu.errors import ReLUError
from paramsym.relu.network import Network
from paramsym.relu.reading import as_network


def read_network(path: str | Path, input_shape: Sequence[int] | None = None) -> Network:
    """The ReLU network in a file.

    Args:
        input_shape: of one input, without the batch, where an ONNX file leaves it open.

    Raises `ReLUError` if the file is missing, of another kind, or holds no ReLU network.
    """
    file = Path(path)
    if not file.is_file():
        raise ReLUError(f"no file {str(file)!r}", "a file", "relu.read_network", "Check the path.")
    if file.suffix == ".json":
        return _from_json(file)
    if file.suffix == ".safetensors":
        return _from_safetensors(file)
    if file.suffix == ".pt2":
        from paramsym.formats.programs import load_program  # torch, only where there is a program

        try:
            program = load_program(file)
        except CheckpointError as error:
            raise ReLUError(error.came, error.expected, error.where, f"{error.instead}.") from error
        return as_network(program, file.name)
    if file.suffix == ".onnx":
        return _from_onnx(file, input_shape)
    raise ReLUError(
        f"the suffix {file.suffix!r}", ".json, .safetensors, .onnx or .pt2", str(file),
        "Save the weights as safetensors; pickled files run code and are not read.",
    )  # fmt: skip


def _from_onnx(file: Path, input_shape: Sequence[int] | None) -> Network:
    try:
        import_module("onnx")
    except ModuleNotFoundError as error:
        raise ReLUError(
            "an ONNX file, and no package onnx", "the extra [onnx] of paramsym, which brings it",
            str(file), "Install it: pip install 'paramsym[onnx]'.",
        ) from error  # fmt: skip
    from paramsym.relu.onnx_graph import network_of_file

    return network_of_file(file, input_shape)


def _from_json(file: Path) -> Network:
    def refuse(text: str) -> Any:
        raise ReLUError(
            f"the number {text}", "finite numbers", str(file),
            "NaN and infinities define no function.",
        )  # fmt: skip

    try:
        content = json.loads(file.read_text(encoding="utf-8"), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        if isinstance(error, ReLUError):
            raise
        raise ReLUError(
            f"text that is no JSON ({str(error)[:80]})", "a JSON list of layers", str(file),
            'Write [{"W": [[...]], "b": [...]}, ...].',
        ) from None  # fmt: skip
    return as_network(content, file.name)


def _natural(name: str) -> list[Any]:
    return [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", name)]


def _from_safetensors(file: Path) -> Network:
    from safetensors.torch import load_file

    from paramsym.formats.header import read_header

    try:
        read_header(file)
    except CheckpointError as error:
        raise ReLUError(error.came, error.expected, error.where, f"{error.instead}.") from None
    tensors = load_file(str(file))
    names = sorted(tensors, key=_natural)
    weights = [n for n in names if tensors[n].ndim == 2]
    biases = {n: tensors[n] for n in names if tensors[n].ndim == 1}
    other = [n for n in names if tensors[n].ndim not in (1, 2)]
    if other or not weights:
        raise ReLUError(
            f"the tensors {other or names}", "weight matrices and bias vectors only", str(file),
            "Convolutions, norms and embeddings are not part of a ReLU MLP.",
        )  # fmt: skip
    pairs = []
    for name in weights:
        twin = re.sub(r"weight(?!.*weight)", "bias", name)
        twin = twin if twin != name else re.sub(r"W(?!.*W)", "b", name)
        pairs.append((tensors[name], biases.pop(twin, None) if twin != name else None))
    if biases:
        raise ReLUError(
            f"the vectors {sorted(biases)}, which belong to no weight matrix",
            "names such as '0.weight' with '0.bias'", str(file),
            "Rename the tensors; a vector alone may be a norm, which is not supported.",
        )  # fmt: skip
    return as_network(pairs, file.name)

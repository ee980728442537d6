"""Inputs from a file, or noise in their place: batches as the model takes them.

    x.npz                     numpy.savez("x.npz", x=images): arrays named as `forward` does
    x.safetensors, x.pt       the same with tensors; of one input, any name will do

The first axis counts samples.
"""

from __future__ import annotations

import inspect
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paramsym.checkpoints.errors import CheckpointError, few, first_line
from paramsym.checkpoints.source import Inputs, Source
from paramsym.checkpoints.tensors import load_archive, read_tensors, require_file
from paramsym.recording.record import preserved, split_inputs

SAMPLES = 512  # that are used of a file; more change the measurements little
BATCH = 32
NOISE = 16  # batches of the size of the example inputs, where there is no file
_ROOM = 1 << 33  # bytes that an archive may unpack to
_FORMATS = ".npz, .safetensors or .pt"


@dataclass(frozen=True)
class Data:
    """Batches of inputs, and what a reader should know of where they come from."""

    batches: list[Inputs]
    notes: tuple[str, ...]

    def halves(self, where: str) -> tuple[list[Inputs], list[Inputs]]:
        """Every other batch: to calibrate on, and to measure on.

        Raises:
            CheckpointError: there is only one.
        """
        if len(self.batches) < 2:
            raise CheckpointError(
                where, "one batch of samples, which cannot be split",
                "two samples at least: one half calibrates, the other is held out and measured",
                "Give more samples; a program of a fixed batch size needs two batches",
            )  # fmt: skip
        return self.batches[::2], self.batches[1::2]


def open_data(checkpoint: Source, path: Path | None) -> Data:
    """Inputs for a checkpoint: those of a file, or noise.

    Args:
        checkpoint: whose example inputs say which tensors there are, and in which dtypes.
        path: `.npz`, `.safetensors` or `.pt`; None for noise of the shapes of the example inputs.

    Raises:
        CheckpointError: there is no such file; it is empty, of another kind or shape, not finite;
            or the model stops on it.
    """
    if path is None:
        return _noise(checkpoint)
    where = f"--data {path}"
    arrays = read_arrays(path, where)
    named = example_tensors(checkpoint)
    found = named_arrays(arrays, named, where)
    for name, tensor in found.items():
        check_input(name, tensor, named[name], where)
    count = count_of(found, where)
    batches = _batches(checkpoint, found, _evenly(count), where)
    _try(checkpoint, batches[0], where)
    notes = [f"{path.name}: {min(count, SAMPLES)} of {count} samples are used"]
    if unused := sorted(arrays.keys() - {array_name(arrays, named, name) for name in named}):
        notes.append(f"{path.name}: {few(unused)} not used: no input of that name")
    return Data(batches, tuple(notes))


# -- files -------------------------------------------------------------------------------------


def read_arrays(path: Path, where: str) -> dict[str, torch.Tensor]:
    """Names and tensors of a file; what stands in order gets numpy's names, arr_0, arr_1 …"""
    require_file(path, f"a file of inputs ({_FORMATS})")
    if path.suffix == ".npz":
        return _read_npz(path, where)
    if path.suffix == ".safetensors":
        return dict(read_tensors(path))
    if path.suffix not in (".pt", ".pth"):
        raise CheckpointError(
            where, f"the suffix is {path.suffix!r}", _FORMATS,
            "Save the inputs with numpy.savez(path, x=…), or with safetensors or torch.save",
        )  # fmt: skip
    loaded = load_archive(path)
    if isinstance(loaded, torch.Tensor):
        loaded = [loaded]
    if isinstance(loaded, (tuple, list)):
        loaded = {f"arr_{k}": item for k, item in enumerate(loaded)}
    if not isinstance(loaded, Mapping) or any(
        not isinstance(item, torch.Tensor) for item in loaded.values()
    ):
        raise CheckpointError(
            where, f"a {type(loaded).__name__} with other things in it than tensors",
            "a tensor, or a dict of the inputs by name", "Save {'x': inputs} with torch.save",
        )  # fmt: skip
    return {str(name): tensor.detach() for name, tensor in loaded.items()}


def _read_npz(path: Path, where: str) -> dict[str, torch.Tensor]:
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > _ROOM:
            raise ValueError(f"it unpacks to {size:,} bytes, more than {_ROOM:,}")
        with np.load(path, allow_pickle=False) as file:
            return {name: torch.from_numpy(np.asarray(file[name])) for name in file.files}
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise CheckpointError(
            where, f"it cannot be read ({first_line(error)})", "an .npz file of numbers",
            "Save the inputs with numpy.savez(path, x=…)",
        ) from error  # fmt: skip


# -- names -------------------------------------------------------------------------------------


def example_tensors(checkpoint: Source) -> dict[str, torch.Tensor]:
    """The tensors among the example inputs, by the names that `forward` gives them."""
    if isinstance(checkpoint.inputs, dict):
        named = checkpoint.inputs
    else:
        parameters = inspect.signature(checkpoint.model.forward).parameters.values()
        names = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        names += [f"arr_{k}" for k in range(len(names), len(checkpoint.inputs))]
        named = dict(zip(names, checkpoint.inputs, strict=False))
    found = {name: leaf for name, leaf in named.items() if isinstance(leaf, torch.Tensor)}
    if not found or any(not tensor.ndim for tensor in found.values()):
        raise CheckpointError(
            checkpoint.label, "example inputs without samples along a first axis",
            "tensors as inputs, one axis at least", "Write a factory whose model takes tensors",
        )  # fmt: skip
    return found


def array_name(arrays: Mapping[str, Any], named: Mapping[str, Any], name: str) -> str | None:
    """Under which name a file has an input: its own, its place in order, or the only one."""
    place = f"arr_{list(named).index(name)}"
    found = next((key for key in (name, place) if key in arrays), None)
    return found or (next(iter(arrays)) if len(arrays) == len(named) == 1 else None)


def named_arrays(
    arrays: Mapping[str, torch.Tensor], named: Mapping[str, torch.Tensor], where: str
) -> dict[str, torch.Tensor]:
    """The tensors of a file by the names of the inputs."""
    keys = {name: array_name(arrays, named, name) for name in named}
    if missing := [name for name, key in keys.items() if key is None]:
        came = few(sorted(arrays)) if arrays else "nothing"
        raise CheckpointError(
            where, f"the file holds {came}: no input {few(missing)}",
            f"the inputs of forward by name: {few(list(named))}",
            f"Save them by name: numpy.savez(path, {', '.join(f'{n}=…' for n in named)})",
        )  # fmt: skip
    return {name: arrays[key] for name, key in keys.items() if key is not None}


# -- checks ------------------------------------------------------------------------------------


def _kind(tensor: torch.Tensor) -> str:
    if tensor.is_complex():
        return "complex numbers"
    return "real numbers" if tensor.is_floating_point() else "whole numbers"


def check_input(name: str, tensor: torch.Tensor, example: torch.Tensor, where: str) -> None:
    """An input of a file is like the example input of that name, but for the number of samples."""
    came = f"{name!r} holds {_kind(tensor)} ({str(tensor.dtype).removeprefix('torch.')})"
    if _kind(tensor) != _kind(example):
        raise CheckpointError(
            where, came, f"{_kind(example)}, as the model takes",
            "Convert them as for training, scale included, before you save them",
        )  # fmt: skip
    shape, wanted = tuple(tensor.shape), tuple(example.shape)
    fixed = tensor.is_floating_point() or tensor.is_complex()  # of tokens, any number will do
    if len(shape) != len(wanted) or (fixed and shape[1:] != wanted[1:]):
        raise CheckpointError(
            where, f"{name!r} has shape {shape}",
            f"(samples, {', '.join(map(str, wanted[1:]))}), as the example inputs are",
            "Reshape the samples; or give --inputs, where the model takes other shapes, too",
        )  # fmt: skip
    if not shape[0] or not tensor.numel():
        raise CheckpointError(
            where, f"{name!r} has shape {shape}: it is empty", "samples along the first axis",
            "Save some inputs as the model will see them",
        )  # fmt: skip
    if fixed and not bool(tensor.isfinite().all()):
        raise CheckpointError(
            where, f"{name!r} holds numbers that are not finite", "finite inputs",
            "Leave out the samples that are broken",
        )  # fmt: skip


def count_of(found: Mapping[str, torch.Tensor], where: str) -> int:
    counts = {name: len(tensor) for name, tensor in found.items()}
    if len(set(counts.values())) > 1:
        raise CheckpointError(
            where, ", ".join(f"{n!r} has {count} samples" for n, count in counts.items()),
            "as many samples of every input", "Save them together, sample by sample",
        )  # fmt: skip
    return next(iter(counts.values()))


def _evenly(count: int) -> torch.Tensor:
    """Which samples are used: all, or SAMPLES of them at equal distances."""
    used = min(count, SAMPLES)
    return torch.arange(used) * count // used


def _try(checkpoint: Source, batch: Inputs, where: str) -> None:
    args, kwargs = split_inputs(batch)
    try:
        with preserved(checkpoint.model, training=False), torch.no_grad():
            checkpoint.model(*args, **kwargs)
    except (RuntimeError, TypeError, ValueError, IndexError, AssertionError) as error:
        raise CheckpointError(
            where, f"the model stopped on the first samples with {first_line(error)}",
            "inputs as forward takes them", "Compare them with what the model was trained on",
        ) from error  # fmt: skip


# -- batches -----------------------------------------------------------------------------------


def _batches(
    checkpoint: Source, found: Mapping[str, torch.Tensor], rows: torch.Tensor, where: str
) -> list[Inputs]:
    """Samples in batches; where the size of a batch is part of the program, in full ones."""
    examples = example_tensors(checkpoint)
    size = min(BATCH, max(1, len(rows) // 2))
    if checkpoint.fixed_mode:
        size = len(next(iter(examples.values())))
        rows = rows[: len(rows) // size * size]
        if not len(rows):
            raise CheckpointError(
                where, f"fewer samples than the {size} of one batch", "full batches: the size of "
                "a batch is part of an exported program", "Give more samples",
            )  # fmt: skip
    return [
        _with(checkpoint, {n: found[n][part].to(examples[n].dtype) for n in found})
        for part in rows.split(size)
    ]


def _with(checkpoint: Source, tensors: Mapping[str, torch.Tensor]) -> Inputs:
    """The example inputs with other tensors."""
    if isinstance(checkpoint.inputs, dict):
        return {**checkpoint.inputs, **tensors}
    left = iter(tensors.values())
    return tuple(next(left) if isinstance(x, torch.Tensor) else x for x in checkpoint.inputs)


def _noise(checkpoint: Source) -> Data:
    """Batches like the example inputs: normal numbers of their mean and spread, or their values
    in another order."""
    generator = torch.Generator().manual_seed(0)
    examples = example_tensors(checkpoint)

    def drawn(x: torch.Tensor) -> torch.Tensor:
        if not x.numel():
            return x
        if not x.is_floating_point():
            at = torch.randint(0, x.numel(), x.shape, generator=generator)
            return x.reshape(-1)[at]
        wide = x.double()
        spread = float(wide.std(correction=0)) or 1.0
        noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        return (float(wide.mean()) + spread * noise).to(x.dtype)

    batches = [_with(checkpoint, {n: drawn(x) for n, x in examples.items()}) for _ in range(NOISE)]
    return Data(batches, ("no --data: noise like the example inputs takes the place of inputs, "
                          "and what it says is weaker",))  # fmt: skip

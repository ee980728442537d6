"""All samples of a file with their targets, for a key to move; and the file that is sent away.

    numpy.savez("data.npz", x=images, targets=labels, class_weights=weights)

Inputs are named as `forward` names them, targets `targets`; `class_weights` are those of a loss of
classes, and go along with these. What else the file holds stays behind:
an encoded file has what the key has moved, and what the model takes beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from paramsym.checkpoints.data import (
    array_name,
    check_input,
    count_of,
    example_tensors,
    named_arrays,
    read_arrays,
)
from paramsym.checkpoints.errors import CheckpointError, few
from paramsym.checkpoints.source import Source
from paramsym.formats.weights import write_safetensors
from paramsym.recording.freed import named_arguments
from paramsym.recording.running import split_inputs

TARGETS, WEIGHTS = "targets", "class_weights"
IGNORED = -100  # the label that torch's losses leave out
SUFFIXES = (".npz", ".safetensors", ".pt", ".pth")


@dataclass(frozen=True)
class Samples:
    """Samples of a file.

    Attributes:
        inputs: by the names that a symmetry gives to inputs.
        names: the name in the file of each.
        targets: one row for each sample, or None.
        weights: one for each class, or None.
        notes: what a reader should know.
    """

    inputs: dict[str, torch.Tensor]
    names: dict[str, str]
    targets: torch.Tensor | None
    weights: torch.Tensor | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    def alone(self) -> Samples:
        """The samples without what belongs to their training."""
        kept = {TARGETS: self.targets, WEIGHTS: self.weights}
        left = [name for name, x in kept.items() if x is not None]
        notes = [f"{few(left)} stay behind: nobody trains"] if left else []
        return replace(self, targets=None, weights=None, notes=(*self.notes, *notes))


def open_samples(checkpoint: Source, path: Path) -> Samples:
    """All samples of a file, in the dtypes of the file.

    Args:
        checkpoint: whose example inputs say which tensors there are.
        path: `.npz`, `.safetensors` or `.pt`, with one array for each input, and `targets`.

    Raises:
        CheckpointError: as `open_data`; or there are more or fewer targets than samples.
    """
    where = f"--data {path}"
    examples, arrays = example_tensors(checkpoint), read_arrays(path, where)
    targets = None if TARGETS in examples else arrays.pop(TARGETS, None)
    weights = None if WEIGHTS in examples else arrays.pop(WEIGHTS, None)
    found = named_arrays(arrays, examples, where)
    for name, tensor in found.items():
        check_input(name, tensor, examples[name], where)
    count = count_of(found, where)
    if targets is not None and (not targets.ndim or len(targets) != count):
        raise CheckpointError(
            where, f"{TARGETS!r} has shape {tuple(targets.shape)} beside {count} samples",
            "one row of targets for each sample", "Save inputs and targets of the same samples",
        )  # fmt: skip
    files = {name: array_name(arrays, examples, name) or name for name in found}
    known = _symmetry_names(checkpoint, examples)
    unused = sorted(arrays.keys() - {*files.values()})
    notes = [f"{path.name}: {few(unused)} stay behind: no input of that name"] if unused else []
    return Samples(
        {known[n]: x for n, x in found.items()}, {known[n]: files[n] for n in found}, targets,
        weights, tuple(notes),
    )  # fmt: skip


def check_targets(
    samples: Samples, shape: tuple[int, ...], classes: int | None, where: str
) -> None:
    """Raise a `CheckpointError` unless targets are labels of classes, or like outputs.

    Args:
        samples: with or without targets.
        shape: of one output; the first axis counts samples.
        classes: how many there are; None where the loss compares numbers.
        where: what the file is called in an error.
    """
    targets, weights = samples.targets, samples.weights
    if weights is not None and (classes is None or tuple(weights.shape) != (classes,)):
        expected = "no weights of classes" if classes is None else f"{classes}, one for each class"
        raise CheckpointError(
            where, f"{WEIGHTS!r} has shape {tuple(weights.shape)}",
            f"{expected}, with this loss", "Save those of the loss that is trained",
        )  # fmt: skip
    if targets is None:
        raise CheckpointError(
            where, f"no {TARGETS!r} in the file", f"an array {TARGETS!r} beside the inputs, since "
            "outputs move and targets go along",
            f"Save them: numpy.savez(path, x=…, {TARGETS}=…); or leave --loss out",
        )  # fmt: skip
    came = f"{TARGETS!r} has shape {tuple(targets.shape)} and dtype {_dtype(targets)}"
    like = (len(samples), *shape[1:])
    if targets.is_floating_point():
        if tuple(targets.shape) != like:
            instead = "Reshape the targets" if classes is None else "Save labels as whole numbers"
            raise CheckpointError(where, came, f"{like}, the shape of the outputs", instead)
        if not bool(targets.isfinite().all()):
            raise CheckpointError(
                where, f"{TARGETS!r} holds numbers that are not finite", "finite targets",
                "Leave out the samples that are broken",
            )  # fmt: skip
    elif classes is None:
        raise CheckpointError(
            where, came, f"real numbers of the shape {like}, which this loss compares",
            "Save them as float32; or give --loss cross-entropy, if they are labels",
        )  # fmt: skip
    elif not targets.is_complex():
        _check_labels(targets, classes, where)


def _check_labels(targets: torch.Tensor, classes: int, where: str) -> None:
    labels = targets.to(torch.int64)
    wrong = ((labels < 0) & (labels != IGNORED)) | (labels >= classes)
    if bool(wrong.any()):
        raise CheckpointError(
            where, f"{TARGETS!r} holds the label {int(labels[wrong][0])}",
            f"labels from 0 to {classes - 1}, or {IGNORED} for what is left out",
            "Number the classes from 0",
        )  # fmt: skip


def write_samples(samples: Samples, path: Path) -> None:
    """Write samples under the names that their file had, in the format of the name of a path."""
    arrays = {samples.names[name]: x for name, x in samples.inputs.items()}
    beside = {TARGETS: samples.targets, WEIGHTS: samples.weights}
    write_arrays({**arrays, **{name: x for name, x in beside.items() if x is not None}}, path)


def write_arrays(arrays: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write tensors by name as `.npz`, `.safetensors` or with `torch.save`, as a path says."""
    whole = {name: x.detach().contiguous() for name, x in arrays.items()}
    if path.suffix == ".npz":
        np.savez(path, **{name: x.numpy() for name, x in whole.items()})  # type: ignore[arg-type]
    elif path.suffix == ".safetensors":
        write_safetensors(whole, path)
    else:
        torch.save(whole, path)


def _symmetry_names(checkpoint: Source, examples: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """The name that a symmetry gives to each of the example inputs."""
    named = named_arguments(checkpoint.model, *split_inputs(checkpoint.inputs))
    return {
        name: next(key for key, item in named.items() if item is tensor)
        for name, tensor in examples.items()
    }


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")

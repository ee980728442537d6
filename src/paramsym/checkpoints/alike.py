"""Checkpoints of one architecture: opened with one model, and held against each other."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from paramsym.checking.find import find_symmetry
from paramsym.checkpoints.errors import CheckpointError, few
from paramsym.checkpoints.factory import with_weights
from paramsym.checkpoints.fitting import fitting
from paramsym.checkpoints.program import Program
from paramsym.checkpoints.source import Source, Weights
from paramsym.checkpoints.sources import open_checkpoint, open_movable
from paramsym.checkpoints.streaming.recognising import beside_codes
from paramsym.checkpoints.tensors import INDEX
from paramsym.checkpoints.writing import ARCHIVES
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.terminal import silent

# What a folder's configuration says of files and of their use, and not of the function.
_ASIDE = {"_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache"}
_ONE = "two checkpoints of one architecture"


@dataclass
class Alike:
    """Checkpoints of one architecture, the first of which says what is computed.

    `names` are the sources as they were given, and `builds` what each model was made from: where
    two are equal, so are the functions of their weights.
    """

    checkpoints: list[Source]
    names: list[str]
    builds: list[Any] = field(default_factory=list)

    def files(self) -> list[Path]:
        """What must never be overwritten."""
        return [file for checkpoint in self.checkpoints for file in checkpoint.files]

    def notes(self) -> list[str]:
        """The notes of all, each once."""
        return list(dict.fromkeys(note for c in self.checkpoints for note in c.notes))

    def states(self) -> list[dict[str, torch.Tensor]]:
        """The state dicts of all; they share their numbers with the models."""
        return [checkpoint.state() for checkpoint in self.checkpoints]

    def numbers(self) -> list[dict[str, torch.Tensor]]:
        """The same, read from the files where they were opened without weights."""
        return [checkpoint.numbers() for checkpoint in self.checkpoints]

    def streamable(self) -> list[Weights] | None:
        """The files of all, where they can be compared without being loaded; else None."""
        found = [checkpoint.streamable() for checkpoint in self.checkpoints]
        several = [weights for weights in found if weights is not None]
        return several if len(several) == len(found) else None

    def spelled_alike(self) -> list[Weights] | None:
        """The files of all, where each has the tensors of the first, of its shapes and dtypes, and
        none of them codes; else None."""
        several = self.streamable()
        if several is None:
            return None
        first = several[0]
        if beside_codes(first.checkpoint, first.names):
            return None
        return several if all(_spelled_alike(first, other) for other in several[1:]) else None

    def load(self) -> None:
        """Read the weights of all that were opened without them."""
        self.checkpoints = [checkpoint.loaded() for checkpoint in self.checkpoints]

    def require_weights(self) -> None:
        """Raise where one of them is a structure alone."""
        for checkpoint, name in zip(self.checkpoints, self.names, strict=True):
            if not checkpoint.has_weights and checkpoint.streamable() is None:
                raise CheckpointError(
                    name, "a model on the meta device, without numbers", "weights to compare",
                    "Give a file of weights, and the model by --model",
                )  # fmt: skip

    def symmetry(self, progress: Callable[[str], None] = silent) -> ParameterSymmetry:
        """The symmetry of the first, after the others were held against it.

        Raises:
            CheckpointError: a checkpoint has no weights; or a tensor is missing, left over, or of
                another shape or dtype than in the first; or a model has another symmetry.
        """
        first, *others = self.checkpoints
        self.require_weights()
        progress("deriving the symmetry")
        symmetry = _derived(first)
        for other, name, build in zip(others, self.names[1:], self.builds[1:], strict=True):
            _check_tensors(symmetry, first, other, self.names[0], name)
            if build != self.builds[0]:
                progress(f"deriving the symmetry of {name}")
                if _derived(other).fingerprint != symmetry.fingerprint:
                    raise CheckpointError(
                        name, "its tensors are those of the first, but not its symmetry: the "
                        "models compute different functions of them", _ONE,
                        f"Compare it with its own kind, or give --model to read {name} and "
                        f"{self.names[0]} with one model",
                    )  # fmt: skip
                other.notes += _differences(self.builds[0], build, self.names[0], name)
        return symmetry


def open_alike(
    sources: Sequence[str], model: str | None = None, inputs: str | None = None,
    key: str | None = None, lazily: bool = False,
) -> Alike:  # fmt: skip
    """Open several checkpoints that should have one architecture.

    Args:
        sources: each what `open_checkpoint` takes, or a file of weights. Of the latter the model is
            `model`, or that of the first source.
        model: a source whose model has the weights of all sources, which are then files of
            weights, or folders with such.
        inputs: a description for `parse_inputs`; by default the source says what it takes.
        key: the path to the state dict in archives of nested dictionaries.
        lazily: read no weights of folders that are streamable; `Alike.load` does.

    Raises:
        CheckpointError: as `open_checkpoint`; there is no model for a file of weights; `key` is
            given, and none of the sources is an archive.
    """
    if key is not None and not any(source.endswith(ARCHIVES) for source in sources):
        raise CheckpointError(
            f"--key {key}", "none of the sources is an archive of torch.save",
            "a key into an archive with dictionaries in it", "Leave --key out",
        )  # fmt: skip
    shared = model
    if shared is None and not _is_weights(sources[0]):
        shared = sources[0]
    found = Alike([], list(sources))
    for source in sources:
        if model is None and not _is_weights(source):
            opening = open_movable if lazily else open_checkpoint
            checkpoint, build = opening(source, inputs=inputs), source
        elif shared is None:
            raise CheckpointError(
                source, "a file of weights alone, which do not say what is computed with them",
                "a model for them", "Name it: --model package.module:factory",
            )  # fmt: skip
        else:
            own = key if source.endswith(ARCHIVES) else None
            checkpoint, build = _filled(shared, source, inputs, own), shared
        found.checkpoints.append(checkpoint)
        found.builds.append(_build(checkpoint, build))
    return found


def _is_weights(source: str) -> bool:
    """A file that has weights and no model."""
    return source.endswith((".safetensors", INDEX, *ARCHIVES))


def _filled(model: str, source: str, inputs: str | None, key: str | None) -> Source:
    """The model of one source with the weights of a file."""
    path = Path(model).expanduser()
    if ":" in model and not path.exists():
        return open_checkpoint(model, source, inputs, key=key)
    return with_weights(open_checkpoint(model, inputs=inputs), Path(source).expanduser(), key)


def _build(checkpoint: Source, source: str) -> Any:
    """What a model is made from: a folder's configuration, a program's code, or the source."""
    if isinstance(checkpoint.model, Program):
        return checkpoint.model.code
    path = Path(source).expanduser() / "config.json"
    if not path.is_file():
        return source
    table = json.loads(path.read_text(encoding="utf-8"))
    return {key: value for key, value in table.items() if key not in _ASIDE}


def _derived(checkpoint: Source) -> ParameterSymmetry:
    with fitting(checkpoint):
        return find_symmetry(checkpoint.model, checkpoint.inputs)


def _spelled_alike(first: Weights, other: Weights) -> bool:
    """Whether tensors of the files that have one name are the same of the model."""
    one, two = first.checkpoint.entries, other.checkpoint.entries
    return (
        (first.names, first.windows) == (other.names, other.windows)
        and not beside_codes(other.checkpoint, other.names)
        and all((one[n].code, one[n].shape) == (two[n].code, two[n].shape) for n in first.names)
    )


# -- differences -------------------------------------------------------------------------------


def _check_tensors(
    symmetry: ParameterSymmetry, first: Source, other: Source, a: str, b: str
) -> None:
    """Name the first tensor in which two checkpoints are no two points of one space."""
    one, two = first.state(), other.state()
    for name, tensor in one.items():
        typed = _typed(symmetry, name)
        if name not in two:
            raise CheckpointError(
                b, f"{name!r} is missing", f"it, {typed}, as in {a}", f"Give {_ONE}"
            )
        came = two[name]
        if came.shape != tensor.shape:
            raise CheckpointError(
                b, f"{name!r} has shape {tuple(came.shape)}",
                f"{tuple(tensor.shape)} as in {a}, {typed}", f"Give {_ONE}",
            )  # fmt: skip
        if came.dtype != tensor.dtype:
            raise CheckpointError(
                b, f"{name!r} has the dtype {_dtype(came)}", f"{_dtype(tensor)}, as in {a}",
                "Save one of them in the dtype of the other, the narrower in the wider: rounding "
                "is a difference, too",
            )  # fmt: skip
    if extra := [name for name in two if name not in one]:
        raise CheckpointError(
            b, f"{few(extra)} not in {a}", f"exactly its {len(one)} tensors", f"Give {_ONE}"
        )


def _typed(symmetry: ParameterSymmetry, name: str) -> str:
    """What moves a tensor, axis by axis."""
    axes = symmetry.signature.get(symmetry.ties.get(name, name))
    return "which nothing moves" if axes is None else f"of type ({', '.join(map(str, axes))})"


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _differences(one: Any, two: Any, a: str, b: str) -> list[str]:
    """What two configurations of one symmetry say differently."""
    if not isinstance(one, dict) or not isinstance(two, dict):
        return [f"{a} and {b} are built by themselves: that their tensors and symmetries agree is "
                "checked, and not that they compute the same of equal weights"]  # fmt: skip
    keys = [key for key in {**one, **two} if one.get(key) != two.get(key)]
    return [f"config.json of {b} differs from that of {a} in {few(keys)}: of equal weights the two "
            "may compute different functions"]  # fmt: skip

"""Keys and checkpoints: which symmetry a key belongs to, and files of keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from paramsym.checking.find import find_symmetry
from paramsym.checkpoints.errors import CheckpointError, refused
from paramsym.checkpoints.fitting import fitting
from paramsym.checkpoints.moves import moves_of
from paramsym.checkpoints.source import Source
from paramsym.checkpoints.tensors import require_file
from paramsym.checkpoints.writing import check_name, refuse_source
from paramsym.formats.errors import reading
from paramsym.geometry.updates import updates_of
from paramsym.privacy import Key, secret_generator
from paramsym.structure.stored import owner
from paramsym.structure.symmetry import ParameterSymmetry

ALL, NONE = "all", "none"
Progress = Callable[[str], None]
_A_KEY = "a file that protect encode wrote with --key"


@dataclass(frozen=True)
class Freeing:
    """Which symmetry of a model a key is drawn from.

    Attributes:
        training: that of the training mode.
        inputs: which inputs it may move: `all` that float, `none`, or names, each with its feature
            axis behind a colon where that is not the last one: `x:1,y`.
        outputs: likewise.
    """

    training: bool
    inputs: str = ALL
    outputs: str = ALL

    def symmetry(self, checkpoint: Source) -> ParameterSymmetry:
        """The symmetry of a checkpoint with its inputs and outputs freed."""
        with fitting(checkpoint, self.training):
            return find_symmetry(
                checkpoint.model, checkpoint.inputs, training=self.training,
                free_inputs=freed("--free-inputs", self.inputs),
                free_outputs=freed("--free-outputs", self.outputs),
            )  # fmt: skip


@dataclass(frozen=True)
class Ask:
    """What a key is drawn for.

    Attributes:
        optimizers: the parts of a training step by name, `adamw`, `clip_grad_norm`; none where
            nobody trains.
        loss: what compares outputs and targets; None where outputs stay.
        inputs: which inputs are freed; see `Freeing`.
        outputs: likewise.
        seed: of the key; None for the randomness of the operating system.
        reuse: take the key that is there.
    """

    optimizers: tuple[str, ...] = ()
    loss: str | None = None
    inputs: str = ALL
    outputs: str = ALL
    seed: int | None = None
    reuse: bool = False

    def check(self) -> None:
        """Raise a `CheckpointError` for options that exclude each other."""
        if self.reuse and (self.seed is not None or self.optimizers or self.loss):
            raise CheckpointError(
                "--reuse-key", "--seed, --optimizer or --loss beside it",
                "the key as it is, for what it was made for", "Leave them out",
            )  # fmt: skip
        if self.loss and not self.optimizers:
            raise CheckpointError(
                f"--loss {self.loss}", "no --optimizer beside it",
                "an optimiser, since a loss is compared where somebody trains",
                "Give --optimizer, or leave --loss out for inference",
            )  # fmt: skip


def freed(option: str, text: str) -> Mapping[str, int] | bool | None:
    """What an option frees, as `find_symmetry` takes it.

    Raises:
        CheckpointError: an axis is no number.
    """
    if text in (ALL, NONE):
        return True if text == ALL else None
    axes: dict[str, int] = {}
    for item in text.split(","):
        name, _, axis = item.strip().partition(":")
        if not name or (axis and not axis.removeprefix("-").isdecimal()):
            raise CheckpointError(
                f"{option} {text}", f"{item.strip()!r} is no name, or has no number as its axis",
                f"{ALL}, {NONE}, or names with their feature axes: x:1,y",
                "Name them as forward does; without an axis it is the last one",
            )  # fmt: skip
        axes[name] = int(axis) if axis else -1
    return axes


def check_key(path: Path, out: Path, sources: list[Path], reuse: bool) -> None:
    """Raise where no key can be written, or where another one would be lost.

    A key is never replaced: what it has encoded could not be decoded any more.
    """
    check_name(path, (".safetensors", ".json"))
    refuse_source(path, sources)
    if path.absolute() == out.absolute():
        raise CheckpointError(
            f"--key {path}", "this is OUT, too", "another place", "Choose another name"
        )
    if path.absolute().parent == out.absolute():
        raise CheckpointError(
            f"--key {path}", "this is inside OUT, which is sent away", "another folder",
            "Keep the key where nobody else reads",
        )  # fmt: skip
    if path.exists() and not reuse:
        raise CheckpointError(
            f"--key {path}", "there is such a file already", "a new name: a key is never replaced, "
            "since what it has encoded could not be decoded any more",
            "Choose another name, or give --reuse-key to encode with the key that is there",
        )  # fmt: skip


def _drawn(symmetry: ParameterSymmetry, ask: Ask) -> Key:
    """A new key, from the randomness of the operating system unless there is a seed."""
    generator = secret_generator() if ask.seed is None else torch.Generator().manual_seed(ask.seed)
    given = [f"--optimizer {','.join(ask.optimizers)}"] if ask.optimizers else []
    given += [f"--loss {ask.loss}"] if ask.loss else []
    with refused(
        " ".join(given) or "the model", "a training that some key commutes with",
        "Change --optimizer or --loss, or the model, as the message says",
    ):  # fmt: skip
        # a name does not say whether the trainer lets weights decay: a key must stand both
        updates = [replace(each, decays=True) for each in updates_of(ask.optimizers)]
        return Key.generate(symmetry, generator, updates or None, ask.loss)


def key_for(checkpoint: Source, path: Path, ask: Ask, freeing: Freeing, progress: Progress) -> Key:
    """A new key for a checkpoint, or the one that is there.

    Raises:
        CheckpointError: as `load_key`; no key commutes with the training, or none moves anything.
    """
    if ask.reuse:
        both = [freeing, replace(freeing, training=True)]
        return load_key(path, checkpoint, both[: 1 if checkpoint.fixed_mode else 2], progress)
    progress("deriving the symmetry")
    key = _drawn(freeing.symmetry(checkpoint), ask)
    if not moves_of(key.element):
        raise CheckpointError(
            checkpoint.label, "no key moves anything: this model has no symmetry that commutes "
            "with the training", "a model with units that can change places",
            "See paramsym inspect for what it has, and choose another optimiser",
        )  # fmt: skip
    return key


def load_key(path: Path, checkpoint: Source, candidates: list[Freeing], progress: Progress) -> Key:
    """The key of a file, with the first of some symmetries of a checkpoint that it belongs to.

    Raises:
        CheckpointError: there is no such file, it is no key, it belongs to none of the symmetries
            (fingerprints are named), or it was altered.
    """
    where = f"--key {path}"
    require_file(path, _A_KEY)
    with refused(where, _A_KEY, "Check the path"), reading(path, _A_KEY):
        belongs = owner(path, "Key")
    found = []
    for freeing in candidates:
        progress("deriving the symmetry")
        symmetry = freeing.symmetry(checkpoint)
        if symmetry.fingerprint == belongs:
            with refused(where, "the key as it was saved", "Take a copy that was not altered"):
                return Key.load(path, symmetry)
        found.append(symmetry.fingerprint)
    several = " or ".join(f"{each[:12]}…" for each in dict.fromkeys(found))
    raise CheckpointError(
        where, f"the key belongs to the symmetry {belongs[:12]}…, that of another model",
        f"a key of {several}, the symmetry of {checkpoint.label}",
        "Give the key that was written beside these weights; where --free-inputs, --free-outputs "
        "or --inputs were given to protect encode, give the same",
    )  # fmt: skip

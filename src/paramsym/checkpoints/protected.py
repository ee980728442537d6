"""Encode a checkpoint and its data by a key, and decode what comes back.

    f(g·x; g·θ) = g·f(x; θ)

What is sent away are g·θ and g·x; the key g stays. Against whom that hides what, and until which
attack, is what `paramsym.privacy.audit` measures: nothing here is encryption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from paramsym.checkpoints.elements import place_beside
from paramsym.checkpoints.equivalent import (
    Transformed,
    difference_from,
    require_writable,
    tolerance_of,
)
from paramsym.checkpoints.errors import CheckpointError, refused
from paramsym.checkpoints.fitting import fitting
from paramsym.checkpoints.imprint import (
    Imprint,
    check_imprint,
    put,
    put_beside,
    read_imprints,
)
from paramsym.checkpoints.keys import ALL, NONE, Ask, Freeing, check_key, key_for, load_key
from paramsym.checkpoints.moved import write_moved
from paramsym.checkpoints.moves import moves_of
from paramsym.checkpoints.moving import Moving, Writing
from paramsym.checkpoints.samples import (
    SUFFIXES,
    Samples,
    check_targets,
    open_samples,
    write_samples,
)
from paramsym.checkpoints.source import Source
from paramsym.checkpoints.told import Told
from paramsym.checkpoints.writing import check_name, check_place, refuse_source, staged
from paramsym.privacy import Key, encode_inputs, encode_targets
from paramsym.privacy.checks import require_checkpoint
from paramsym.privacy.coding import labels_of
from paramsym.recording.freed import named_arguments, with_arguments
from paramsym.recording.outputs import named_outputs
from paramsym.recording.running import preserved, split_inputs
from paramsym.structure.element import GroupElement
from paramsym.structure.interfaces import act_inputs, act_outputs
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.terminal import silent

State = Mapping[str, torch.Tensor]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class WrittenEncoded(Told):
    """What was written, and the proof that it computes the same in other coordinates.

    `error` is the largest difference between g·f(x; θ) and f(g·x; g·θ) on the example inputs,
    measured after reading the written files back; `moved` says how each space is moved.
    """

    path: Path
    key: Path
    data: Path | None
    samples: int
    fingerprint: str
    optimizers: tuple[str, ...]
    loss: str | None
    moved: dict[str, str]
    error: float
    tolerance: float
    notes: tuple[str, ...] = ()

    def numbers(self) -> dict[str, Any]:
        """What was written, and the error."""
        return {
            "written": str(self.path), "key": str(self.key), "fingerprint": self.fingerprint,
            "data": None if self.data is None else str(self.data), "samples": self.samples,
            "optimizers": list(self.optimizers), "loss": self.loss, "moved": self.moved,
            "error": self.error, "tolerance": self.tolerance, "notes": list(self.notes),
        }  # fmt: skip


@dataclass(frozen=True)
class WrittenDecoded(Told):
    """What was written; `checked` says whether the checkpoint named the key that encoded it."""

    path: Path
    fingerprint: str
    checked: bool
    error: float
    tolerance: float
    notes: tuple[str, ...] = ()

    def numbers(self) -> dict[str, Any]:
        """What was written, and the error."""
        return {
            "written": str(self.path), "fingerprint": self.fingerprint, "checked": self.checked,
            "error": self.error, "tolerance": self.tolerance, "notes": list(self.notes),
        }  # fmt: skip


def write_encoded(
    checkpoint: Source,
    out: Path,
    key_file: Path,
    ask: Ask | None = None,
    data: Path | None = None,
    data_out: Path | None = None,
    force: bool = False,
    progress: Progress = silent,
) -> WrittenEncoded:
    """Write a checkpoint and its data as a key moves them, and the key.

    Args:
        checkpoint: from `open_checkpoint`; its model is used up.
        out: a file or folder of the same format as the source.
        key_file: where the key is written, for its owner alone to read; never replaced.
        ask: what the key is drawn for.
        data: a file of inputs, and `targets`; see `open_samples`.
        data_out: where the moved data are written; by default beside `out`.
        force: replace what stands at `out` and at `data_out`; see `staged`.
        progress: is told each step when it begins.

    Raises:
        CheckpointError: as `write_moved` and `open_samples`; no key commutes with the training; a
            key is there already, or the one that is to be used is another model's or was altered.
    """
    ask = ask or Ask()
    ask.check()
    require_writable(checkpoint, out, force)
    check_imprint(out, checkpoint, force)
    check_key(key_file, out, checkpoint.files, ask.reuse)
    parcel = None
    if data is not None:
        place = _data_place(data, data_out, out, key_file, checkpoint, force)
        parcel = _Parcel(f"--data {data}", open_samples(checkpoint, data), place)
    freeing = Freeing(bool(ask.optimizers) and not checkpoint.fixed_mode, ask.inputs, ask.outputs)
    key = key_for(checkpoint, key_file, ask, freeing, progress)
    freeing = replace(freeing, training=bool(key.updates) and not checkpoint.fixed_mode)
    said = (*read_imprints(checkpoint), _imprint(key, freeing))
    expected = _moved_run(checkpoint, key, key.element)
    parcel = parcel and _moved_parcel(parcel, key, checkpoint.state(), expected)
    with ExitStack() as files:
        if parcel is not None:
            progress(f"writing {parcel.place.name}")
            write_samples(parcel.samples, files.enter_context(staged(parcel.place, force)))
        if not ask.reuse:
            files.enter_context(_saved(key, key_file))
        made = _written(checkpoint, out, key.acting, key.element, expected, said, force, progress)
    notes = (*made.notes, *(parcel.samples.notes if parcel else ()), *_notes(key, ask))
    return WrittenEncoded(
        out, key_file, parcel and parcel.place, len(parcel.samples) if parcel else 0,
        key.fingerprint,
        tuple(each.name for each in key.updates), key.loss.name if key.loss else None,
        {name: str(move) for name, move in moves_of(key.element).items()},
        made.error or 0.0, made.tolerance, notes,
    )  # fmt: skip


def write_decoded(
    checkpoint: Source,
    out: Path,
    key_file: Path,
    inputs: str | None = None,
    outputs: str | None = None,
    force: bool = False,
    progress: Progress = silent,
) -> WrittenDecoded:
    """Undo a key on a checkpoint that comes back, and write the plain one in its layout.

    Args:
        checkpoint: the encoded one, trained or not; its model is used up.
        out: a file or folder of the same format as the source.
        key_file: what `write_encoded` wrote.
        inputs: which inputs were freed; by default what the checkpoint says, or all.
        outputs: likewise.
        force: replace what stands at `out`; see `staged`.
        progress: is told each step when it begins.

    Raises:
        CheckpointError: as `write_moved`; the key is that of another model or was altered, or the
            checkpoint says that another key encoded it (both fingerprints are named).
    """
    require_writable(checkpoint, out, force)
    check_imprint(out, checkpoint, force)
    said = read_imprints(checkpoint)
    key = load_key(key_file, checkpoint, _candidates(checkpoint, said, inputs, outputs), progress)
    fingerprint = said[-1].key if said else None
    if fingerprint is not None and fingerprint != key.fingerprint:
        raise CheckpointError(
            f"--key {key_file}", f"this is the key {key.fingerprint[:12]}…",
            f"the key {fingerprint[:12]}…, by which {checkpoint.label} says that it was encoded",
            "Give that key; with another one the weights become another network",
        )  # fmt: skip
    with refused(checkpoint.label, "the parameters of the encoded model", "See the message"):
        require_checkpoint(key, checkpoint.state(), fingerprint)
    expected = _moved_run(checkpoint, key, key.inverse)
    made = _written(checkpoint, out, key.acting, key.inverse, expected, said[:-1], force, progress)
    notes = list(made.notes)
    if fingerprint is None:
        notes.append(
            f"{checkpoint.label} does not say which key encoded it, so that this could not be "
            "checked: with the wrong key, what was written is another network"
        )
    return WrittenDecoded(
        out,
        key.fingerprint,
        fingerprint is not None,
        made.error or 0.0,
        made.tolerance,
        tuple(notes),
    )


# -- keys ----------------------------------------------------------------------------------------


def _imprint(key: Key, freeing: Freeing) -> Imprint:
    return Imprint(key.fingerprint, freeing.training, freeing.inputs, freeing.outputs)


def _candidates(
    checkpoint: Source, said: tuple[Imprint, ...], inputs: str | None, outputs: str | None
) -> list[Freeing]:
    """The symmetries that the key may belong to: as the checkpoint says, or in either mode."""
    own = said[-1] if said else None
    modes = [own.training] if own else [False] if checkpoint.fixed_mode else [True, False]
    first = inputs or (own.inputs if own else ALL)
    last = outputs or (own.outputs if own else ALL)
    return [Freeing(training, first, last) for training in modes]


@contextmanager
def _saved(key: Key, path: Path) -> Iterator[None]:
    """The file of a new key, which gets its name when the block ends without an error."""
    with staged(path) as draft:
        with refused(f"--key {path}", "a key that can be written", "Name it ….safetensors"):
            key.save(draft)
        yield


# -- data ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Parcel:
    """Samples to be sent along: what their file is called in an error, and where to."""

    where: str
    samples: Samples
    place: Path


def _data_place(
    data: Path, given: Path | None, out: Path, key_file: Path, checkpoint: Source, force: bool
) -> Path:
    """Where the moved data are written: out.safetensors → out.data.npz, unless it was said."""
    place = given or place_beside(out, f"data{data.suffix}")
    check_name(place, SUFFIXES)
    refuse_source(place, [*checkpoint.files, data])
    if place.absolute() in (out.absolute(), key_file.absolute()):
        raise CheckpointError(
            f"--data-out {place}", "this is OUT or the key, too", "another place",
            "Choose another name",
        )  # fmt: skip
    check_place(place, force)
    return place


def _moved_parcel(parcel: _Parcel, key: Key, before: State, expected: _Run) -> _Parcel:
    """Samples as the key moves them; where nobody trains, targets stay with their owner."""
    samples = parcel.samples if key.updates else parcel.samples.alone()
    if key.loss is not None and key.acting.outputs:
        name, feature = next(iter(key.acting.outputs.items()))
        shape = tuple(expected.outputs[name].shape)
        classes = shape[feature.axis] if _has_labels(key) else None
        check_targets(samples, shape, classes, parcel.where)
    targets, weights = samples.targets, samples.weights
    with refused(parcel.where, "inputs and targets that the key can move", "See the message"):
        inputs = encode_inputs(samples.inputs, key, before)
        if key.loss is not None:
            targets = None if targets is None else encode_targets(targets, key, before)
            weights = None if weights is None else weights[labels_of(key).argsort()]
    moved = replace(samples, inputs=dict(inputs), targets=targets, weights=weights)
    return replace(parcel, samples=moved)


def _has_labels(key: Key) -> bool:
    return key.loss is not None and key.loss.name in ("cross-entropy", "nll")


# -- files ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Run:
    """What moved inputs should give: inputs as the model takes them, and the moved outputs."""

    inputs: Any
    outputs: dict[str, torch.Tensor]


def _moved_run(checkpoint: Source, key: Key, element: GroupElement) -> _Run:
    """g·x and g·f(x; θ) for the example inputs x, in evaluation mode."""
    before = checkpoint.state()
    args, kwargs = split_inputs(checkpoint.inputs)
    with fitting(checkpoint), preserved(checkpoint.model, training=False), torch.no_grad():
        returned = checkpoint.model(*args, **kwargs)
        plain = {name: y.clone() for name, y in named_outputs(returned)}
    named = named_arguments(checkpoint.model, args, kwargs)
    with refused(checkpoint.label, "example inputs that the key can move", "Give --inputs"):
        if key.acting.inputs:
            named = act_inputs(key.acting, element, named, before)
        if key.acting.outputs:
            plain = act_outputs(key.acting, element, plain, before)
    args, kwargs = with_arguments(named, args, kwargs)
    return _Run(kwargs or args, plain)


def _written(
    checkpoint: Source, out: Path, acting: ParameterSymmetry, element: GroupElement,
    expected: _Run, said: tuple[Imprint, ...], force: bool, progress: Progress,
) -> Transformed:  # fmt: skip
    """Write moved weights, held against what they should compute of moved inputs.

    The model is run as a whole: of a key that frees inputs and outputs each layer would have to be
    told how its own are moved.
    """
    outputs, inputs = [*expected.outputs.values()], expected.inputs
    tolerance = tolerance_of(t.dtype for t in checkpoint.state().values())

    def check(model: torch.nn.Module) -> float:
        source = replace(checkpoint, inputs=inputs)
        error = difference_from(outputs, model, model.state_dict(), source, tolerance)
        if not error <= tolerance:
            raise CheckpointError(
                str(out),
                "what was written does not compute the moved function: the outputs differ by "
                f"{error:.1e} of their size, slice by slice", f"at most {tolerance:.0e}",
                "Nothing is kept. Free fewer inputs and outputs; where that does not help, please "
                "report the model",
            )  # fmt: skip
        return error

    def finish(draft: Path) -> None:
        if draft.is_dir():
            put(draft, said)

    moving = Moving(
        out, acting, lambda _: element, checkpoint, checkpoint.streamable(), checkpoint.files,
        secret=True, check=check, finish=finish, notes=tuple(checkpoint.notes),
    )  # fmt: skip
    with put_beside(out, checkpoint, said, force):
        return write_moved(moving, Writing(force=force, progress=progress))


def _notes(key: Key, ask: Ask) -> list[str]:
    """What an owner should know of the key before anything is sent."""
    notes = []
    if not key.updates:
        notes.append(
            "no --optimizer: this key is for inference alone; what is trained with it does not "
            "retrace the plain training"
        )
    if ask.seed is not None:
        notes.append(
            "--seed: the seed is the key, and 2³² of them are soon tried; leave it out for a key "
            "from the randomness of the operating system"
        )
    if key.updates and key.loss is None and ask.outputs != NONE:
        notes.append("no --loss: outputs and targets stay as they are")
    return notes

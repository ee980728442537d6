"""Maps of scales for other tools, from a source to a file that the tool loads; and the check of
maps that people have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from paramsym.checking.find import find_symmetry
from paramsym.checkpoints.checkpoint import Checkpoint, Inputs
from paramsym.checkpoints.errors import CheckpointError, first_line
from paramsym.checkpoints.fitting import fitting
from paramsym.checkpoints.sources import needs_weights, open_checkpoint
from paramsym.checkpoints.told import Told
from paramsym.checkpoints.twins import NoTwin, twin
from paramsym.checkpoints.writing import refuse_existing
from paramsym.formats.drafts import replacing
from paramsym.interop import Export, MappingCheck, check, export
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.terminal import silent

_REPLAYED = 20_000_000  # parameters up to which a model itself is replayed


@dataclass(frozen=True)
class Exported(Told):
    """Maps of one model; `output` is where they were written, None for nowhere."""

    export: Export
    output: Path | None

    def numbers(self) -> dict[str, Any]:
        """Maps, refusals, the error of the replay, and where they stand."""
        return {"output": self.output and str(self.output), **asdict(self.export)}


@dataclass(frozen=True)
class MappingChecked(Told):
    """The check of a mapping."""

    check: MappingCheck

    def numbers(self) -> dict[str, Any]:
        """Every map with its verdict."""
        return {"sound": self.check.sound, **asdict(self.check)}


def open_mapped(
    source: str, weights: str | None = None, inputs: str | None = None, key: str | None = None
) -> Checkpoint:
    """A source for its maps: without its weights where it has none, or is too large to be replayed.

    Arguments and errors are those of `open_checkpoint`.
    """
    wanted = needs_weights(source, False, True, _REPLAYED)
    return open_checkpoint(source, weights, inputs, not wanted, key)


def export_maps(
    checkpoint: Checkpoint,
    tool: str,
    output: Path | None = None,
    force: bool = False,
    progress: Callable[[str], None] = silent,
) -> Exported:
    """Derive the maps of a checkpoint for a tool, replay them, and write them.

    Where only the structure was opened, the maps of a small model of the same configuration are
    replayed in their place.

    Args:
        checkpoint: from `open_checkpoint`; with or without weights.
        tool: awq, smoothquant or quark.
        output: the file, completely written or not at all; nothing is written without it.
        force: replace what stands there.
        progress: receives what is being done.

    Raises:
        CheckpointError: the file is there already, or nothing can be written.
        NotProved: a replayed map changed the function.
    """
    if output is not None:
        refuse_existing(output, force, "--output")
    symmetry, inputs = _derived(checkpoint, progress)
    progress("replaying the maps")
    made = export(tool, symmetry, checkpoint.model, inputs)
    if not checkpoint.has_weights:
        made = _by_twin(made, checkpoint, tool)
    if output is not None:
        _write(made.text(), output)
    return Exported(made, output)


def _by_twin(made: Export, checkpoint: Checkpoint, tool: str) -> Export:
    """The error that the maps of a small model have, where the model has no weights."""
    config = getattr(checkpoint.model, "config", None)
    if config is None:
        return made
    try:
        small, inputs = twin(config, kind=type(checkpoint.model).__name__)
    except (NoTwin, TypeError) as error:
        return replace(made, note=f"not replayed: {first_line(error)}")
    found = export(tool, find_symmetry(small, inputs), small, inputs)
    note = f"replayed on a small model of the same configuration, {len(found.entries)} maps"
    return replace(made, error=found.error, note=found.note or note)


def _write(text: str, output: Path) -> None:
    try:
        with replacing(output, mode=0o644) as draft:
            draft.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CheckpointError(
            f"--output {output}", f"it cannot be written ({first_line(error)})",
            "a file in a folder that exists, on a disk with room",
            "Choose another place",
        ) from error  # fmt: skip


def check_mapping(
    checkpoint: Checkpoint,
    mapping: Path,
    tool: str = "awq",
    progress: Callable[[str], None] = silent,
) -> MappingChecked:
    """Judge a mapping that somebody has for a checkpoint.

    Args:
        checkpoint: from `open_checkpoint`; without weights verdicts are given, and nothing is
            measured.
        mapping: a recipe of llm-compressor, or a file of Quark.
        tool: whose it is, where it does not say.
        progress: receives what is being done.

    Raises `MappingError` for a mapping that cannot be read.
    """
    symmetry, inputs = _derived(checkpoint, progress)
    progress("judging the maps")
    return MappingChecked(check(symmetry, checkpoint.model, mapping, inputs, tool))


def _derived(
    checkpoint: Checkpoint, progress: Callable[[str], None]
) -> tuple[ParameterSymmetry, Inputs | None]:
    """The symmetry of a checkpoint, and the inputs on which it can be run, if it can."""
    progress("deriving the symmetry")
    with fitting(checkpoint):
        symmetry = find_symmetry(checkpoint.model, checkpoint.inputs)
    return symmetry, checkpoint.inputs if checkpoint.has_weights else None

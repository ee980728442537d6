"""Maps of scales for other tools, from a source to a file that the tool loads; and the check of
maps that people have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from paramsym.checking.find import find_symmetry
from paramsym.checkpoints.equivalent import Transformed, require_writable
from paramsym.checkpoints.errors import CheckpointError, first_line
from paramsym.checkpoints.fitting import fitting
from paramsym.checkpoints.folder import quantised_by
from paramsym.checkpoints.moved import moved_or_planned
from paramsym.checkpoints.moving import AS_USUAL, Moving, Writing
from paramsym.checkpoints.plan import Plan
from paramsym.checkpoints.scaled import read_scales, scaled
from paramsym.checkpoints.source import Inputs, Source
from paramsym.checkpoints.sources import needs_weights, open_checkpoint, path_of
from paramsym.checkpoints.told import Told
from paramsym.checkpoints.twins import NoTwin, twin
from paramsym.checkpoints.writing import refuse_existing, refuse_source, write_text
from paramsym.interop import (
    Export,
    Exports,
    MappingCheck,
    OptimizerGroups,
    RotationExport,
    check,
    export,
    read_mapping,
    untied,
)
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.terminal import silent

_REPLAYED = 20_000_000  # parameters up to which a model itself is replayed


@dataclass(frozen=True)
class Exported(Told):
    """What a tool is told of one model; `output` is where it was written, None for nowhere.

    `moved` is the equivalent checkpoint that was written for what the tool cannot be told.
    """

    export: Exports
    output: Path | None
    moved: Transformed | Plan | None = None

    def numbers(self) -> dict[str, Any]:
        """What is told, where it stands, and what was moved."""
        said = self.export
        told = said.document() if isinstance(said, OptimizerGroups) else asdict(said)
        moved = self.moved and self.moved.numbers()
        return {"output": self.output and str(self.output), **told, "moved": moved}


@dataclass(frozen=True)
class MappingChecked(Told):
    """The check of a mapping."""

    check: MappingCheck

    def numbers(self) -> dict[str, Any]:
        """Every map with its verdict."""
        return {"sound": self.check.sound, **asdict(self.check)}


def open_mapped(
    source: str,
    weights: str | None = None,
    inputs: str | None = None,
    key: str | None = None,
    moved: bool = False,
) -> Source:
    """A source for its maps: without its weights where it has none, or is too large to be replayed.

    Arguments and errors are those of `open_checkpoint`; `moved` asks for its weights anyhow. Of
    quantised weights the structure is enough.
    """
    method = quantised_by(path_of(source))
    if method and moved:
        raise CheckpointError(
            f"--apply for {source}", f"weights that are quantised by {method}",
            "weights in floating point", "Take the checkpoint that they were made from",
        )  # fmt: skip
    wanted = moved or (not method and needs_weights(source, False, True, _REPLAYED))
    found = open_checkpoint(source, weights, inputs, not wanted, key)
    if method:
        found.notes.append(
            f"the weights are quantised by {method}; the configuration is used alone"
        )
    return found


def export_maps(
    checkpoint: Source,
    tool: str,
    output: Path | None = None,
    apply: Path | None = None,
    scales: Path | None = None,
    how: Writing = AS_USUAL,
) -> Exported:
    """Derive what a tool wants to be told of a checkpoint, replay it, and write it.

    Where only the structure was opened, or where it is large, the maps of a small model of the same
    configuration are replayed in their place. For rotations a tied output head is untied.

    Args:
        checkpoint: from `open_mapped`; with or without weights.
        tool: awq, smoothquant, quark, spinquant or optimizer.
        output: the file, completely written or not at all; nothing is written without it.
        apply: where an equivalent checkpoint is written, in which the spaces that the format cannot
            say are moved already; the source stays as it is.
        scales: a safetensors file of the scales for that by the names of spaces, positive; by
            default those of the least squared norm, see `balance`.
        how: how what is written is written.

    Raises:
        CheckpointError: the file is there already, nothing can be written, the scales are none of
            the model's, or nothing was refused that could be moved.
        NotProved: a replayed map changed the function.
    """
    _require_places(checkpoint, output, apply, how)
    by = None if apply is None else read_scales(tool, scales)
    if tool == "spinquant":
        checkpoint.model = untied(checkpoint.model)
    symmetry, inputs = _derived(checkpoint, how.progress)
    how.progress("replaying the maps")
    made = export(tool, symmetry, checkpoint.model, inputs)
    if inputs is None and not isinstance(made, OptimizerGroups):
        made = _by_twin(made, checkpoint, tool)
    find = None  # what can be wrong is looked at before anything is written
    if isinstance(made, Export):
        if output is not None and not made.entries:
            raise _nothing_to_say(made, tool, checkpoint.label)
        find = by and scaled(made, by, symmetry, checkpoint.label)
    if output is not None and not how.dry:  # before what takes long: it may not stand there
        write_text(made.text(), output, "--output")
    moved = None
    if apply is not None and find is not None:
        said = {"tool": tool, "scales": scales and str(scales)}
        moved = moved_or_planned(Moving.of(checkpoint, apply, symmetry, find, "export", said), how)
    return Exported(made, output, moved)


def _require_places(
    checkpoint: Source, output: Path | None, apply: Path | None, how: Writing
) -> None:
    """Raise where a file or a checkpoint cannot stand where it is to."""
    if output is not None:
        refuse_existing(output, how.force, "--output")
        refuse_source(output, checkpoint.files)
    if apply is not None:
        if output is not None and output.absolute() == apply.absolute():
            raise CheckpointError(
                f"--output {output}", "this is --apply, too", "another place", "Choose another name"
            )
        require_writable(checkpoint, apply, how.again)


def _nothing_to_say(made: Export, tool: str, label: str) -> CheckpointError:
    """A recipe without maps would say that there is nothing to do, or nothing at all."""
    reasons = Counter(refusal.kind for refusal in made.refused)
    said = ", ".join(f"{count} {kind}" for kind, count in reasons.items()) or "no scale"
    return CheckpointError(
        f"--output for {label}", f"no map that {tool} can be told ({said})", "one map at least",
        "See what is left out, and why, without --output; --apply moves the checkpoint itself",
    )  # fmt: skip


def _by_twin(
    made: Export | RotationExport, checkpoint: Source, tool: str
) -> Export | RotationExport:
    """The error that the maps of a small model have, where the model itself is not run."""
    config = getattr(checkpoint.model, "config", None)
    if config is None:
        return made
    try:
        small, inputs = twin(config, kind=type(checkpoint.model).__name__)
    except (NoTwin, TypeError) as error:
        return replace(made, note=f"not replayed: {first_line(error)}")
    small = untied(small) if tool == "spinquant" else small
    found = export(tool, find_symmetry(small, inputs), small, inputs)
    assert not isinstance(found, OptimizerGroups)
    count = len(found.entries if isinstance(found, Export) else found.rotations)
    note = f"replayed on a small model of the same configuration, {count} maps"
    return replace(made, error=found.error, note=found.note or note)


def check_mapping(
    checkpoint: Source,
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

    Raises `MappingError` for a mapping that cannot be read, as `read_mapping`.
    """
    given = read_mapping(mapping, tool)  # before what takes long
    symmetry, inputs = _derived(checkpoint, progress)
    progress("judging the maps")
    return MappingChecked(check(symmetry, checkpoint.model, given, inputs))


def _derived(
    checkpoint: Source, progress: Callable[[str], None]
) -> tuple[ParameterSymmetry, Inputs | None]:
    """The symmetry of a checkpoint, and the inputs on which it can be run, if it can."""
    progress("deriving the symmetry")
    with fitting(checkpoint):
        symmetry = find_symmetry(checkpoint.model, checkpoint.inputs)
    runs = checkpoint.has_weights and checkpoint.parameters <= _REPLAYED
    return symmetry, checkpoint.inputs if runs else None

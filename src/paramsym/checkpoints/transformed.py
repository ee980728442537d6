"""Move the weights of a checkpoint by an element of a symmetry, from files to files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from paramsym.checkpoints.aside import aside_of, copy_aside
from paramsym.checkpoints.checkpoint import Checkpoint
from paramsym.checkpoints.elements import written_element
from paramsym.checkpoints.equivalent import Transformed, require_equal, tolerance_of, write_moved
from paramsym.checkpoints.errors import CheckpointError, refused
from paramsym.checkpoints.fitting import misfit
from paramsym.checkpoints.moving import Moving, Pass, moving
from paramsym.checkpoints.plan import Plan, plan_of_files, plan_of_source
from paramsym.checkpoints.source import Source
from paramsym.checkpoints.streaming.journal import journal_of, remove
from paramsym.checkpoints.streaming.stream import streamed
from paramsym.checkpoints.streaming.verifying import NotRun, verified
from paramsym.checkpoints.writing import write_text
from paramsym.engines import Engine, engine_of
from paramsym.structure.action import act
from paramsym.structure.element import GroupElement
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.terminal import silent

Progress = Callable[[str], None]
Given = str | Path | Checkpoint | Source
Moves = GroupElement | torch.Generator | str | Path


def transform(
    source: Given,
    target: str | Path,
    element: Moves,
    *,
    strength: float = 1.0,
    only: list[str] | None = None,
    engine: str | Engine | None = None,
    resume: bool = False,
    force: bool = False,
    shard_size: int | None = None,
    verify: bool = True,
    progress: Progress = silent,
) -> Transformed:
    """Write the weights of a checkpoint moved by an element of its symmetry.

    θ ↦ g·θ, tensor by tensor, each read and written in panels of rows where its type allows it, so
    that memory is bounded by the largest tensor that has to be there as a whole, and not by the
    files. Shards, dtypes, metadata and the other files of a folder are those of the source, which
    is only read. The element and a record of what was done are written beside the target.

    Args:
        source: a Hugging Face folder, an open `Source`, or weights alone: a safetensors file, a
            folder or an index of such, a URL, or an open `Checkpoint`. Weights alone are moved
            without being run, by an element of the model that they belong to.
        target: a file or folder of the same format as the source.
        element: what moves them; the file of an element; or a generator, for a random one.
        strength: how far a random one moves; 0 is nowhere, 1 mixes thoroughly.
        only: names of spaces and shifts that a random one moves, or patterns of them; default all.
        engine: where the pieces are moved, see `engine_of`.
        resume: go on with a run for this target that was interrupted: the files are the same to
            the last byte. One that had ended is left as it is, and one that never began begins.
        force: replace what stands at `target`; see `staged`.
        shard_size: the largest size of a shard in bytes; by default the shards of the source.
        verify: run the model of a folder on its example inputs with the weights before and after,
            read module by module; large ones on some of their layers. See `outputs_of_files`.
        progress: is told each step when it begins, with rate and remaining time.

    Returns:
        What was written, with the error that was measured.

    Raises:
        CheckpointError: whatever is wrong with the source, the target or the element; `resume` for
            another run than this one; the system does not let it be written; or what was written
            computes another function, or numbers that are not finite.
    """
    found = moving(
        source, Path(target), element, strength, only, resume, force, shard_size, progress
    )
    if found.finished is not None:
        with journal_of(found.target) as journal:  # that run may have been killed at its very end
            remove(journal.folder)
        return found.finished
    if found.through is None:
        return _whole(found, force, progress)
    with engine_of(engine) as chosen:
        return _by_pieces(found, found.through, chosen, resume, force, verify, progress)


def plan_transform(
    source: Given,
    target: str | Path,
    element: Moves,
    *,
    strength: float = 1.0,
    only: list[str] | None = None,
    engine: str | Engine | None = None,
    force: bool = False,
    shard_size: int | None = None,
    progress: Progress = silent,
) -> Plan:
    """What `transform` would do, with the checks that it makes before it writes; no file is made.

    Arguments and errors are those of `transform`. Weights that are moved from files to files are
    moved on the meta device, and some rows of each kind of tensor for a measurement of time.
    """
    out = Path(target)
    found = moving(source, out, element, strength, only, False, force, shard_size, progress)
    if found.through is None:
        assert found.source is not None
        return plan_of_source(found.source, found.symmetry, found.target, only)
    progress("measuring")
    job, layout = found.through.job, found.through.layout
    place = job.checkpoint.place
    names = aside_of(job.checkpoint) if layout.in_folder else []
    aside = {name: (place / name).stamp()[0] for name in names}
    return plan_of_files(job, layout, out, engine_of(engine), aside)


def _by_pieces(
    found: Moving,
    through: Pass,
    engine: Engine,
    resume: bool,
    force: bool,
    verify: bool,
    progress: Progress,
) -> Transformed:
    """From files to files."""
    job, target = through.job, found.target
    tolerance = tolerance_of(e.dtype for e in job.checkpoint.entries.values())
    with streamed(
        job, through.layout, target, through.request, engine, resume, force, progress
    ) as (
        draft,
        done,
    ):
        if through.layout.in_folder:
            copy_aside(job.checkpoint, draft, through.layout)
        notes, error, passed = list(found.notes), None, None
        written = Checkpoint.open(draft)
        source, weights = found.source, found.weights
        if verify and source is not None and weights is not None and weights.skeleton is not None:
            try:
                result = verified(
                    weights.skeleton, source.inputs, weights, written, tolerance, progress,
                    job.storage,
                )  # fmt: skip
            except NotRun as stopped:
                if stopped.small:  # then it can be loaded, and its inputs looked at
                    raise _unfit(source, stopped) from stopped
                notes.append(f"the model was not run: {stopped}")
            else:
                error, passed = result.error, result.passed
                require_equal(target, result.error, tolerance)
        if passed is not None:
            notes.append(f"verified on {passed}; the others were passed over")
        entries = sum(e.numel for e in job.checkpoint.entries.values())
        made = Transformed(
            target, found.symmetry, error, tolerance, done.moved, entries, found.element_file,
            found.record_file, tuple(notes),
        )  # fmt: skip
        with written_element(job.element, found.element_file, force or found.ours):
            write_text(
                found.record(done.hashes, done.written, made), found.record_file, "the record"
            )
    return made


def _unfit(source: Source, stopped: NotRun) -> CheckpointError:
    """What is wrong with the inputs on which a model stops."""
    found = misfit(source.loaded())
    return found or CheckpointError(
        f"the example inputs of {source.label}", f"the model stopped on them with {stopped}",
        "inputs on which it can be run", "Give other --inputs, or --no-verify",
    )  # fmt: skip


def _whole(found: Moving, force: bool, progress: Progress) -> Transformed:
    """A source whose weights have to be loaded: a program, an archive, a factory."""
    source = found.source
    assert source is not None

    def moved(symmetry: ParameterSymmetry, params: Mapping[str, torch.Tensor]):
        with refused(source.label, "weights that can be moved",
                     "Move some of the spaces only, with --only"):  # fmt: skip
            return act(symmetry, element, params)

    with refused(source.label, "weights that can be moved"):
        element = found.element_for(source.state())
    with written_element(element, found.element_file, force):
        made = write_moved(source, found.symmetry, found.target, moved, force, progress)
    return replace(made, element=found.element_file, notes=(*found.notes,))

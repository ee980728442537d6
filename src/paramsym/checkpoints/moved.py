"""Write an equivalent checkpoint by the element that leads to it, from files to files if it can be.

Every command that moves weights ends here, whatever found its element.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import xxhash

from paramsym.checkpoints.aside import aside_of, copy_aside
from paramsym.checkpoints.checkpoint import Checkpoint
from paramsym.checkpoints.equivalent import (
    Transformed,
    allowed,
    difference_from,
    outputs_of,
    require_equal,
    tolerance_of,
)
from paramsym.checkpoints.errors import CheckpointError, refused
from paramsym.checkpoints.fitting import fitting, misfit
from paramsym.checkpoints.moving import (
    Moving,
    Params,
    Ready,
    Writing,
    ready,
    request_of,
    require_room_beside,
)
from paramsym.checkpoints.plan import Plan, plan_of_files, plan_of_source
from paramsym.checkpoints.source import Source
from paramsym.checkpoints.stored import stored
from paramsym.checkpoints.streaming.job import Job
from paramsym.checkpoints.streaming.journal import journal_of, remove
from paramsym.checkpoints.streaming.stream import streamed
from paramsym.checkpoints.streaming.verifying import NotRun, verified
from paramsym.checkpoints.tensors import overflowed
from paramsym.engines import Engine, engine_of
from paramsym.structure.action import act
from paramsym.structure.element import GroupElement


def write_moved(found: Moving, how: Writing) -> Transformed:
    """Find the element of a move, and write the weights that it leads to.

    They are written under a temporary name, read back, and compared with the original on the
    example inputs; only then do they get their name. The element and a record of what was done are
    written beside them.

    Args:
        found: the move; its element is found here, and its source is used up.
        how: how it is written.

    Raises:
        CheckpointError: something stands where something is to be written; the weights do not fit
            the element; `resume` for another run than this one; the system does not let it be
            written; or what was written computes another function, or numbers not finite.
    """
    if found.weights is None:
        return _whole(found, how)
    begun = ready(found, how)
    if begun.finished is not None:
        with journal_of(found.target) as journal:  # that run may have been killed at its very end
            remove(journal.folder)
        return begun.finished
    with engine_of(how.engine) as engine:
        return _by_pieces(found, begun, engine, how)


def moved_or_planned(found: Moving, how: Writing) -> Transformed | Plan:
    """What was written; or, of a dry run, what would be."""
    return plan_moved(found, how) if how.dry else write_moved(found, how)


def plan_moved(found: Moving, how: Writing, only: list[str] | None = None) -> Plan:
    """What `write_moved` would write, with the checks that it makes before; no file is made.

    Of weights that are moved from files to files some rows of each kind of tensor are moved, for a
    measurement of time.
    """
    if found.weights is None:
        assert found.source is not None
        _require_loaded(found, how)
        found.find(found.source.state())
        plan = plan_of_source(found.source, found.symmetry, found.target, only)
        return replace(plan, notes=found.notes)
    begun = ready(found, how)
    through = begun.through
    how.progress("measuring")
    place = through.job.checkpoint.place
    names = aside_of(through.job.checkpoint) if through.layout.in_folder else []
    aside = {name: (place / name).stamp()[0] for name in names}
    plan = plan_of_files(through.job, through.layout, found.target, engine_of(how.engine), aside)
    return replace(plan, notes=begun.notes)


def _by_pieces(found: Moving, begun: Ready, engine: Engine, how: Writing) -> Transformed:
    """From files to files."""
    through, target = begun.through, found.target
    job, layout = through.job, through.layout
    tolerance = tolerance_of(e.dtype for e in job.checkpoint.entries.values())
    with streamed(
        job, layout, target, through.request, engine, how.resume, how.force, how.progress
    ) as (draft, done):
        if layout.in_folder:
            copy_aside(job.checkpoint, draft, layout)
        if found.finish is not None:
            found.finish(draft)
        error, tolerance, note = _error(found, job, draft, tolerance, how)
        entries = sum(e.numel for e in job.checkpoint.entries.values())
        made = _made(found, error, tolerance, done.moved, entries, (*begun.notes, *note))
        found.keep(
            made, job.element, through.request, done.hashes, done.written, how.force or begun.ours
        )
    return made


def _made(
    found: Moving, error: float | None, tolerance: float, moved: int, entries: int,
    notes: tuple[str, ...],
) -> Transformed:  # fmt: skip
    beside = (None, None) if found.secret else (found.element_file, found.record_file)
    return Transformed(
        found.target, found.symmetry, error, tolerance, moved, entries, *beside, notes
    )


def _error(
    found: Moving, job: Job, draft: Path, tolerance: float, how: Writing
) -> tuple[float | None, float, list[str]]:
    """How much the outputs before and after differ, how much they may, and what is to be said."""
    source, weights = found.source, found.weights
    if found.check is not None and source is not None:
        how.progress(f"reading {found.target.name} back, to compare")
        return found.check(source.reload(draft)), tolerance, []
    if not how.verify or source is None or weights is None or weights.skeleton is None:
        return None, tolerance, []
    try:
        result = verified(
            weights.skeleton, source.inputs, weights, Checkpoint.open(draft), tolerance,
            how.progress, job.storage,
        )  # fmt: skip
    except NotRun as stopped:
        if stopped.small:  # then it can be loaded, and its inputs looked at
            raise _unfit(source, stopped) from stopped
        return None, tolerance, [f"the model was not run: {stopped}"]
    require_equal(found.target, result.error, result.tolerance)
    passed = result.passed and f"verified on {result.passed}; the others were passed over"
    return result.error, result.tolerance, [passed] if passed else []


def _unfit(source: Source, stopped: NotRun) -> CheckpointError:
    """What is wrong with the inputs on which a model stops."""
    found = misfit(source.loaded())
    return found or CheckpointError(
        f"the example inputs of {source.label}", f"the model stopped on them with {stopped}",
        "inputs on which it can be run", "Give other --inputs, or --no-verify",
    )  # fmt: skip


def _require_loaded(found: Moving, how: Writing) -> None:
    """Options of moves from files to files, for a source whose weights have to be loaded."""
    given = [*["--resume"] * how.resume, *["--shard-size"] * (how.shard_size is not None)]
    if given:
        raise CheckpointError(
            f"{given[0]} for {found.label}", "a source whose weights have to be loaded",
            "a Hugging Face folder, or safetensors, whose tensors are those of the model or parts",
            f"Leave {given[0]} out",
        )  # fmt: skip
    require_room_beside(found, how.force)


def _whole(found: Moving, how: Writing) -> Transformed:
    """A source whose weights have to be loaded: a program, an archive, a factory."""
    source = found.source
    assert source is not None
    _require_loaded(found, how)
    before = {name: tensor.clone() for name, tensor in source.state().items()}
    with refused(found.label, "weights that can be moved"):
        element = found.find(before)
    how.progress("moving the weights")
    reference = []
    if found.check is None:
        with fitting(source):  # what can be traced may still stop: an index out of range
            reference = outputs_of(source.model, source)
    with refused(found.label, "weights that can be moved",
                 "Move some of the spaces only, with --only"):  # fmt: skip
        moved = _moved(found, element, before)
    tolerance = tolerance_of(t.dtype for t in before.values())
    request = {**request_of(found.symmetry, element), **found.besides}
    changed, entries = _changes(source, before, moved)
    with stored(source, found.target, moved, how.force, how.progress, found.finish) as model:
        if found.check is not None:
            error = found.check(model)
        else:
            error = difference_from(reference, model, before, source, tolerance)
            if error > tolerance:
                tolerance = allowed(tolerance, partial(outputs_of, model, source))
            require_equal(found.target, error, tolerance)
        made = _made(found, error, tolerance, changed, entries, found.notes)
        found.keep(made, element, request, _hashes(before), _hashes(moved), how.force)
    return made


def _moved(found: Moving, element: GroupElement, before: Params) -> Params:
    moved = (found.moved or partial(act, found.symmetry))(element, before)
    for name, tensor in moved.items():  # before, only buffers may be infinite
        if tensor is before[name] or tensor.element_size() == 1:
            continue
        if not tensor.isfinite().all() and before[name].isfinite().all():
            raise overflowed(found.label, name, tensor)
    return moved


def _hashes(state: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """The XXH3 of the bytes of each tensor."""
    flat = {name: t.contiguous().view(-1).view(torch.uint8) for name, t in state.items()}
    return {name: xxhash.xxh3_128(t.cpu().numpy().data).hexdigest() for name, t in flat.items()}


def _changes(
    source: Source, before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor]
) -> tuple[int, int]:
    """How many numbers are in parameters that changed, and how many there are."""
    sizes = {n: p.numel() for n, p in source.model.named_parameters() if n in before}
    changed = (n for n in sizes if not torch.equal(before[n], after[n]))
    return sum(sizes[n] for n in changed), sum(sizes.values())

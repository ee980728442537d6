"""Move the weights of a checkpoint by an element of a symmetry, from files to files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from paramsym.checkpoints.asked import Draw, Given, Moves, asked
from paramsym.checkpoints.equivalent import Transformed
from paramsym.checkpoints.moved import plan_moved, write_moved
from paramsym.checkpoints.moving import Writing
from paramsym.checkpoints.plan import Plan
from paramsym.engines import Engine
from paramsym.structure.element import Rotations
from paramsym.terminal import silent

Progress = Callable[[str], None]


def transform(
    source: Given,
    target: str | Path,
    element: Moves,
    *,
    strength: float = 1.0,
    only: list[str] | None = None,
    rotations: Rotations = "woven",
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
        rotations: how a random one turns wide streams: "woven" in two quick rounds of small
            rotations, or "haar" by any rotation; see `ParameterSymmetry.sample`.
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
    how = Writing(engine, resume, force, shard_size, verify, progress=progress)
    draw = Draw(strength, None if only is None else list(only), rotations)
    return write_moved(asked(source, Path(target), element, draw, how), how)


def plan_transform(
    source: Given,
    target: str | Path,
    element: Moves,
    *,
    strength: float = 1.0,
    only: list[str] | None = None,
    rotations: Rotations = "woven",
    engine: str | Engine | None = None,
    force: bool = False,
    shard_size: int | None = None,
    progress: Progress = silent,
) -> Plan:
    """What `transform` would do, with the checks that it makes before it writes; no file is made.

    Arguments and errors are those of `transform`. Of weights that are moved from files to files
    some rows of each kind of tensor are moved, for a measurement of time.
    """
    how = Writing(engine, False, force, shard_size, progress=progress)
    draw = Draw(strength, None if only is None else list(only), rotations)
    return plan_moved(asked(source, Path(target), element, draw, how), how, only)

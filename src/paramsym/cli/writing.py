"""The commands that write an equivalent checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from paramsym.cli.options import (
    AsJson,
    Asymmetric,
    Bits,
    DataFile,
    DryRun,
    Engine,
    Force,
    Groups,
    Hold,
    Inputs,
    Key,
    NoVerify,
    Out,
    Resume,
    ShardSize,
    Source,
    Weights,
    bytes_of,
    finite,
    grid_of,
    patterns,
    tell,
    tell_written,
    writing_of,
)
from paramsym.terminal import Progress


def transform(
    source: Source,
    out: Out,
    weights: Weights = None,
    inputs: Inputs = None,
    seed: Annotated[
        int, typer.Option(min=-(1 << 63), max=(1 << 63) - 1, help="Which random move.")
    ] = 0,
    key: Key = None,
    strength: Annotated[
        float,
        typer.Option(
            min=0.0, callback=finite, help="How far to move: 0 is nowhere, 1 mixes thoroughly."
        ),
    ] = 1.0,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES",
            help="Move only spaces and shifts of these names, as inspect prints them: "
            "'h.{0..11}.mlp', '*.attn.head'. May be repeated.",
        ),
    ] = None,
    rotations: Annotated[
        Literal["woven", "haar"],
        typer.Option(
            help="How wide streams turn: in two quick rounds of small rotations, which is as dense "
            "but no secret; or by any rotation.",
        ),
    ] = "woven",
    element: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Move by this element, as .safetensors or .json, and by no other."
        ),
    ] = None,
    engine: Engine = "local",
    resume: Resume = False,
    shard_size: ShardSize = None,
    no_verify: NoVerify = False,
    force: Force = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Write an equivalent checkpoint: other numbers, the same function. Safetensors are moved from
    files to files, whatever their size; the model is run with both before OUT gets its name. The
    element and a record of what was done are written beside OUT."""
    with Progress(not as_json) as progress:
        progress("starting")
        import torch

        from paramsym import checkpoints, report

        size = bytes_of(shard_size)
        progress(f"reading {source}")
        checkpoint = checkpoints.open_movable(source, weights, inputs, key)
        moves = torch.Generator().manual_seed(seed) if element is None else element
        how = {
            "strength": strength, "only": patterns(only), "rotations": rotations,
            "engine": engine, "force": force, "shard_size": size, "progress": progress,
        }  # fmt: skip
        if dry_run:
            plan = checkpoints.plan_transform(checkpoint, out, moves, **how)
            return tell(checkpoint.notes, plan, as_json, typer.echo)
        done = checkpoints.transform(
            checkpoint, out, moves, resume=resume, verify=not no_verify, **how
        )
    tell(done.notes, done, as_json, report.print_transformed)


def balance(
    source: Source,
    out: Out,
    weights: Weights = None,
    inputs: Inputs = None,
    key: Key = None,
    objective: Annotated[
        Literal["l2", "l1", "range", "error"],
        typer.Option(
            help="The sum of squares, or of absolute values; the range of the widest tensor; or "
            "the expected change of the outputs when weights are rounded.",
        ),
    ] = "l2",
    data: DataFile = None,
    bits: Bits = None,
    groups: Groups = None,
    asymmetric: Asymmetric = False,
    hold: Hold = None,
    engine: Engine = "local",
    resume: Resume = False,
    shard_size: ShardSize = None,
    no_verify: NoVerify = False,
    force: Force = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Write the best equivalent checkpoint for an objective, with a certificate. The model is run
    with both before OUT gets its name; the element and a record stand beside it. --data, --bits,
    --groups and --asymmetric belong to --objective error."""
    with Progress(not as_json) as progress:
        progress("starting")
        from paramsym import checkpoints, report

        if objective != "error" and (data or bits is not None or groups or asymmetric):
            raise checkpoints.CheckpointError(
                f"--objective {objective}", "--data, --bits, --groups or --asymmetric beside it",
                "these only beside --objective error, which rounds weights",
                "Leave them out, or give --objective error",
            )  # fmt: skip
        grid = grid_of(bits, groups, asymmetric)
        progress(f"reading {source}")
        how = writing_of(progress, engine, resume, force, shard_size, no_verify, dry_run)
        checkpoint = checkpoints.open_movable(source, weights, inputs, key)
        done = checkpoints.write_balanced(
            checkpoint, out, objective, patterns(hold), data, grid, how
        )
    tell_written(done, as_json, report.print_balanced)


def quantize_prep(
    source: Source,
    out: Out,
    weights: Weights = None,
    inputs: Inputs = None,
    key: Key = None,
    data: DataFile = None,
    bits: Bits = None,
    groups: Groups = None,
    asymmetric: Asymmetric = False,
    activations: Annotated[
        float,
        typer.Option(
            metavar="FACTOR",
            min=1.0,
            callback=finite,
            help="Reject what makes the largest activation of a layer grow by more than this.",
        ),
    ] = 10.0,
    hold: Hold = None,
    engine: Engine = "local",
    resume: Resume = False,
    shard_size: ShardSize = None,
    no_verify: NoVerify = False,
    force: Force = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Write the equivalent weights that lose least when a quantiser rounds them, as measured on one
    half of the inputs; or the weights as they are, if nothing is better. They are not rounded."""
    with Progress(not as_json) as progress:
        progress("starting")
        from paramsym import checkpoints, report

        grid = grid_of(bits, groups, asymmetric)
        progress(f"reading {source}")
        how = writing_of(progress, engine, resume, force, shard_size, no_verify, dry_run)
        checkpoint = checkpoints.open_checkpoint(source, weights, inputs, key=key)
        done = checkpoints.write_prepared(
            checkpoint, out, data, grid, patterns(hold), activations, how
        )
    tell_written(done, as_json, report.print_prepared)

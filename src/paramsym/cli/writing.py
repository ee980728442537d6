"""The commands that write an equivalent checkpoint."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from paramsym.cli.options import (
    AsJson,
    Asymmetric,
    Bits,
    DataFile,
    Force,
    Groups,
    Hold,
    Inputs,
    Key,
    Out,
    Source,
    Weights,
    finite,
    grid_of,
    patterns,
    tell,
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
    force: Force = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Say what would be written, and what it takes; no file."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write an equivalent checkpoint: other numbers, the same function. It is read back and
    compared before it gets its name."""
    with Progress(not as_json) as progress:
        progress("starting")
        import torch

        from paramsym import checkpoints, report

        progress(f"reading {source}")
        checkpoint = checkpoints.open_checkpoint(source, weights, inputs, key=key)
        names = patterns(only)
        generator = torch.Generator().manual_seed(seed)
        done = (
            checkpoints.plan_transform(checkpoint, out, names, force, progress)
            if dry_run
            else checkpoints.transform(checkpoint, out, generator, strength, names, force, progress)
        )
    tell(checkpoint.notes, done, as_json, typer.echo if dry_run else report.print_transformed)


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
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write the best equivalent checkpoint for an objective, with a certificate. It is read back
    and compared before it gets its name. --data, --bits, --groups and --asymmetric belong to
    --objective error."""
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
        checkpoint = checkpoints.open_checkpoint(source, weights, inputs, key=key)
        done = checkpoints.write_balanced(
            checkpoint, out, objective, patterns(hold), force, progress, data, grid
        )
    tell(checkpoint.notes, done, as_json, report.print_balanced)


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
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write the equivalent weights that lose least when a quantiser rounds them, as measured on one
    half of the inputs; or the weights as they are, if nothing is better. They are not rounded."""
    with Progress(not as_json) as progress:
        progress("starting")
        from paramsym import checkpoints, report

        grid = grid_of(bits, groups, asymmetric)
        progress(f"reading {source}")
        checkpoint = checkpoints.open_checkpoint(source, weights, inputs, key=key)
        done = checkpoints.write_prepared(
            checkpoint, out, data, grid, patterns(hold), activations, force, progress
        )
    tell(checkpoint.notes, done, as_json, report.print_prepared)

"""The commands that write an equivalent checkpoint."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from paramsym.cli.options import (
    AsJson,
    Force,
    Inputs,
    Key,
    Out,
    Source,
    Weights,
    finite,
    patterns,
    say_notes,
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
    say_notes(checkpoint.notes)
    if as_json:
        typer.echo(done.to_json())
    elif isinstance(done, checkpoints.Plan):
        typer.echo(str(done))
    else:
        report.print_transformed(done)


def balance(
    source: Source,
    out: Out,
    weights: Weights = None,
    inputs: Inputs = None,
    key: Key = None,
    objective: Annotated[
        Literal["l2", "l1"], typer.Option(help="The sum of squares, or of absolute values.")
    ] = "l2",
    hold: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES",
            help="Leave spaces and shifts of these names as they are, as inspect prints them. "
            "May be repeated.",
        ),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write the equivalent checkpoint of least norm, with a certificate. It is read back and
    compared before it gets its name."""
    with Progress(not as_json) as progress:
        progress("starting")
        from paramsym import checkpoints, report

        progress(f"reading {source}")
        checkpoint = checkpoints.open_checkpoint(source, weights, inputs, key=key)
        done = checkpoints.write_balanced(
            checkpoint, out, objective, patterns(hold), force, progress
        )
    say_notes(checkpoint.notes)
    if as_json:
        typer.echo(done.to_json())
    else:
        report.print_balanced(done)

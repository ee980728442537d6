"""`paramsym export` and `paramsym check-mapping`: maps and blocks as other tools take them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from paramsym.cli.options import (
    AsJson,
    DryRun,
    Engine,
    Force,
    Inputs,
    Key,
    NoVerify,
    Resume,
    ShardSize,
    Source,
    Weights,
    say_notes,
    writing_of,
)
from paramsym.terminal import ExitCode, Progress


def export(
    source: Source,
    tool: Annotated[
        Literal["awq", "smoothquant", "spinquant", "quark", "optimizer"],
        typer.Option(
            "--for",
            help="Whose form: llm-compressor's AWQ, SmoothQuant or SpinQuant, Quark's, or blocks "
            "for an optimiser such as Muon.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Where it is written, YAML or JSON. By default it is printed."
        ),
    ] = None,
    apply: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT",
            help="Write an equivalent checkpoint, too, in which the spaces that the format cannot "
            "say are moved: to the least norm, or by --scales.",
        ),
    ] = None,
    scales: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Scales for --apply: safetensors, by the names of spaces."
        ),
    ] = None,
    weights: Weights = None,
    inputs: Inputs = None,
    key: Key = None,
    engine: Engine = "local",
    resume: Resume = False,
    shard_size: ShardSize = None,
    no_verify: NoVerify = False,
    force: Force = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Write what another tool has to know of this model: the maps by which a quantiser moves
    scales or rotations through it, proved by replaying them, or the logical matrices of its
    parameters. No weights are needed: names and shapes suffice."""
    with Progress(not as_json) as progress:
        progress("starting")
        from paramsym import checkpoints, report

        if scales is not None and apply is None:
            raise checkpoints.CheckpointError(
                f"--scales {scales}", "no --apply OUT beside it", "both", "Give --apply OUT, too"
            )
        progress(f"reading {source}")
        how = writing_of(progress, engine, resume, force, shard_size, no_verify, dry_run)
        checkpoint = checkpoints.open_mapped(source, weights, inputs, key, apply is not None)
        done = checkpoints.export_maps(checkpoint, tool, output, apply, scales, how)
    say_notes(done.moved.notes if done.moved else checkpoint.notes)
    if as_json:
        typer.echo(done.to_json())
    else:
        report.print_exported(done)


def check_mapping(
    source: Source,
    mapping: Annotated[
        Path,
        typer.Argument(
            help="A recipe of llm-compressor (YAML) or a file of Quark (JSON).",
            show_default=False,
        ),
    ],
    tool: Annotated[
        Literal["awq", "smoothquant", "quark"],
        typer.Option("--for", help="Whose mapping it is, where the file does not say."),
    ] = "awq",
    weights: Weights = None,
    inputs: Inputs = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Is a mapping right? Every entry: sound, a missing reader, another space, a wrong layout or no
    symmetry, with the change of the function and the right entry. Exit code 0 sound, 1 not."""
    with Progress(not as_json) as progress:
        progress("starting")
        from paramsym import checkpoints, report

        progress(f"reading {source}")
        checkpoint = checkpoints.open_mapped(source, weights, inputs, key)
        done = checkpoints.check_mapping(checkpoint, mapping, tool, progress)
    say_notes(checkpoint.notes)
    if as_json:
        typer.echo(done.to_json())
    else:
        report.print_mapping(done)
    raise typer.Exit(ExitCode.YES if done.check.sound else ExitCode.NO)

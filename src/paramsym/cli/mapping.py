"""`paramsym export` and `paramsym check-mapping`: scales as other tools move them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from paramsym.cli.options import AsJson, Force, Inputs, Key, Source, Weights, say_notes
from paramsym.terminal import ExitCode, Progress


def export(
    source: Source,
    tool: Annotated[
        Literal["awq", "smoothquant", "quark"],
        typer.Option("--for", help="Whose form: llm-compressor's AWQ or SmoothQuant, or Quark's."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Where it is written, YAML or JSON. By default it is printed."
        ),
    ] = None,
    weights: Weights = None,
    inputs: Inputs = None,
    key: Key = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write the maps by which a quantiser moves scales through this model, proved by replaying
    them. No weights are needed: names and shapes suffice.

    Example: paramsym export Qwen/folder --for awq --output recipe.yaml"""
    with Progress(not as_json) as progress:
        progress("starting")
        from paramsym import checkpoints, report

        progress(f"reading {source}")
        checkpoint = checkpoints.open_mapped(source, weights, inputs, key)
        done = checkpoints.export_maps(checkpoint, tool, output, force, progress)
    say_notes(checkpoint.notes)
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

"""`paramsym discover`: linear symmetries that nobody derived, beside those that were."""

from __future__ import annotations

from typing import Annotated

import typer

from paramsym.cli.options import AsJson, Inputs, Key, Source, Weights, patterns, say_notes
from paramsym.terminal import Progress


def discover(
    source: Source,
    weights: Weights = None,
    inputs: Inputs = None,
    key: Key = None,
    level: Annotated[
        str,
        typer.Option(
            metavar="full|tensors|sides|auto",
            help="What to search: all P² unknowns; blocks of one tensor and of tensors that are "
            "alike; a matrix along each axis; or the first of these that is small enough.",
        ),
    ] = "auto",
    affine: Annotated[
        bool, typer.Option("--affine", help="Search fields with a constant for each entry, too.")
    ] = False,
    compare: Annotated[
        bool, typer.Option(help="Derive the symmetry as inspect does, and compare.")
    ] = True,
    limit: Annotated[
        int | None, typer.Option(min=1, help="The most unknowns of the search. Default: 6000.")
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES",
            help="The parameters that may move, all others being held: names or patterns. May be "
            "repeated.",
        ),
    ] = None,
    training: Annotated[
        bool, typer.Option("--training", help="The function of the training mode.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the random weights and inputs.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Find all linear vector fields on the parameters that leave the function unchanged."""
    with Progress(not as_json) as progress:
        progress("starting")
        import torch

        from paramsym.checkpoints import open_checkpoint
        from paramsym.report import discovered

        progress(f"reading {source}")
        checkpoint = open_checkpoint(source, weights, inputs, False, key)
        generator = torch.Generator().manual_seed(seed)
        found = discovered.discover(
            checkpoint, level, affine, training, compare, limit, patterns(names), generator,
            progress,
        )  # fmt: skip
    say_notes(checkpoint.notes)
    if as_json:
        typer.echo(discovered.discovered_json(found))
    else:
        discovered.print_discovered(found)

"""`paramsym inspect`: what a model's parameters can do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paramsym.cli.options import AsJson, Force, Inputs, Key, Source, Weights, say_notes
from paramsym.terminal import Progress


def inspect(
    source: Source,
    weights: Weights = None,
    inputs: Inputs = None,
    key: Key = None,
    audit: Annotated[
        bool,
        typer.Option(
            "--audit",
            help="Count the redundant directions numerically, too; of a "
            "folder whose model is too large or has no weights, on a small twin.",
        ),
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="The most parameters that --audit takes on. Default: 20000."),
    ] = None,
    verify: Annotated[
        bool, typer.Option(help="Measure the function error of random moves of every space.")
    ] = True,
    training: Annotated[
        bool, typer.Option("--training", help="The function of the training mode.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page that stands by itself.")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Find every way in which the parameters can change without changing the function."""
    with Progress(not as_json) as progress:
        progress("starting")
        from paramsym import report
        from paramsym.checking.audit import LIMIT
        from paramsym.checkpoints import (
            fitting,
            needs_weights,
            open_checkpoint,
            refuse_existing,
        )

        if html is not None:
            refuse_existing(html, force, "--html")
        progress(f"reading {source}")
        wanted = needs_weights(source, verify, audit, limit or LIMIT)
        checkpoint = open_checkpoint(source, weights, inputs, not wanted, key)
        progress(_steps(verify, audit))
        with fitting(checkpoint, training):
            findings = report.examine(checkpoint, verify, audit, training, limit=limit)
        if html is not None:
            report.write_page(findings, html)
    say_notes(checkpoint.notes)
    if as_json:
        typer.echo(report.to_json(findings))
    else:
        report.print_findings(findings)


def _steps(verify: bool, audit: bool) -> str:
    """What `inspect` does after the model is read."""
    steps = ["deriving the symmetry"]
    steps += ["measuring its moves"] if verify else []
    steps += ["auditing it"] if audit else []
    return ", ".join(steps)

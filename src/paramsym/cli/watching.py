"""`paramsym watch`: a training script with a ledger of its conserved quantities."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from paramsym.cli.options import AsJson, Force
from paramsym.terminal import ExitCode, Progress

Script = Annotated[Path, typer.Argument(help="A training script, as for [b]python[/b].")]


def watch(
    script: Script,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="What the script takes.")
    ] = None,
    decoupled: Annotated[
        str,
        typer.Option(
            metavar="DECAY",
            help="The decay of a loop that multiplies the parameters by 1 - rate x decay before "
            "each step: a number, or the key under which the groups of the optimiser hold it.",
        ),
    ] = "0",
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page that stands by itself.")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Run a training script with SGD, and compare what it conserves with what it should.

    Options stand before SCRIPT. Ends with 0 if all is conserved to rounding, and with 1 if not.
    """
    with Progress(not as_json) as progress:
        progress("starting")
        from paramsym import report
        from paramsym.checkpoints import refuse_existing
        from paramsym.dynamics.descent import LedgerError
        from paramsym.dynamics.watching import watched

        if html is not None:
            refuse_existing(html, force, "--html")
        if not script.is_file():
            raise LedgerError(
                f"paramsym watch {script}: there is no such file. A Python script that trains a "
                "model was expected. Check the path; options of paramsym stand before it."
            )
        with _stdout_left_alone() if as_json else nullcontext():
            found = watched(script, arguments or [], _decay(decoupled), progress)
        assert found.ledger is not None
        if found.stopped:  # what is measured after later steps says nothing of those entered
            raise LedgerError(
                f"after {found.ledger.steps:,} steps the ledger ended. {found.stopped}"
            )
        entered = found.ledger.report()
    if html is not None:
        report.write_ledger_page(str(script), found.model, entered, html)
    if as_json:
        told = {"script": str(script), "model": found.model}
        typer.echo(json.dumps({**told, **entered.as_dict()}, indent=2, ensure_ascii=False))
    else:
        report.print_ledger(str(script), found.model, entered)
    if entered.broken:
        raise typer.Exit(int(ExitCode.NO))


@contextmanager
def _stdout_left_alone() -> Iterator[None]:
    """What the script and its children print goes to stderr."""
    with redirect_stdout(sys.stderr):
        kept = os.dup(1)
        os.dup2(2, 1)
        try:
            yield
        finally:
            if sys.__stdout__ is not None:
                sys.__stdout__.flush()
            os.dup2(kept, 1)
            os.close(kept)


def _decay(text: str) -> float | str:
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text

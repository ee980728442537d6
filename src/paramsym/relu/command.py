"""The command `paramsym relu-equal`."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from paramsym.relu.errors import ReLUError
from paramsym.terminal import ExitCode, Progress

# The answer to "is it one function?" by the kind of the verdict.
EXIT = {
    "EQUAL": ExitCode.YES,
    "EQUAL_TO_PRECISION": ExitCode.YES,
    "DIFFERENT": ExitCode.NO,
    "UNDECIDED": ExitCode.UNDECIDED,
}


def relu_equal(
    a: Annotated[Path, typer.Argument(help="First network: .pt2, .safetensors or .json.")],
    b: Annotated[Path, typer.Argument(help="Second network.")],
    exact: Annotated[
        bool, typer.Option("--exact", help="Compare the exact real functions, not up to rounding.")
    ] = False,
    box: Annotated[
        tuple[str, str] | None,
        typer.Option("--box", metavar="LO HI", help="Inputs in [LO, HI] per coordinate only."),
    ] = None,
    budget: Annotated[
        float, typer.Option("--budget", metavar="SECONDS", help="Wall-clock limit.", min=0.0)
    ] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
) -> None:
    """Decide whether two ReLU networks are the same function.

    Equal comes with a certificate that an independent checker accepted, different with an input at
    which both were evaluated exactly. What a step will cost is printed to the error stream
    beforehand.
    """
    try:
        with Progress(not as_json) as progress:
            progress("starting")
            if exact:
                import_module("flint")  # where it is missing, the message says how to install it
            from paramsym.relu.deciding import decide
            from paramsym.relu.files import read_network

            progress(f"reading {a} and {b}")
            f, g = read_network(a), read_network(b)
            progress("deciding")
            verdict = decide(
                f,
                g,
                mode="exact" if exact else "float",
                domain=tuple(box) if box else None,
                budget=budget,
                progress=lambda line: typer.echo(line, err=True),
            )
    except ReLUError as error:
        if as_json:
            typer.echo(json.dumps({"kind": "ERROR", "reason": str(error)}))
        else:
            typer.echo(f"error: {error}", err=True)
        raise typer.Exit(ExitCode.BAD_INPUT) from None
    if as_json:
        typer.echo(json.dumps(verdict.to_json()))
    else:
        typer.echo(str(verdict))
        if verdict.witness is not None and verdict.values is not None:
            typer.echo("x    = " + ", ".join(str(v) for v in verdict.witness))
            typer.echo("f(x) = " + ", ".join(str(v) for v in verdict.values[0]))
            typer.echo("g(x) = " + ", ".join(str(v) for v in verdict.values[1]))
    raise typer.Exit(EXIT[verdict.kind.name])

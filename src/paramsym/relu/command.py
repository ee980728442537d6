"""The command `paramsym relu-equal`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from paramsym.relu.deciding import decide
from paramsym.relu.errors import ReLUError
from paramsym.relu.files import read_network
from paramsym.relu.verdict import Kind

EXIT = {Kind.EQUAL: 0, Kind.DIFFERENT: 1, Kind.UNDECIDED: 3}
ERROR = 2


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

    Exit code 0: equal (with a certificate that an independent checker accepted), 1: different (with
    an input at which both were evaluated exactly), 3: undecided, 2: error. What a step will cost is
    printed to the error stream beforehand.
    """
    try:
        verdict = decide(
            read_network(a),
            read_network(b),
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
        raise typer.Exit(ERROR) from None
    if as_json:
        typer.echo(json.dumps(verdict.to_json()))
    else:
        typer.echo(str(verdict))
        if verdict.witness is not None and verdict.values is not None:
            typer.echo("x    = " + ", ".join(str(v) for v in verdict.witness))
            typer.echo("f(x) = " + ", ".join(str(v) for v in verdict.values[0]))
            typer.echo("g(x) = " + ", ".join(str(v) for v in verdict.values[1]))
    raise typer.Exit(EXIT[verdict.kind])

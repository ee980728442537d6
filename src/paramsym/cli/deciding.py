"""The commands `paramsym relu-equal` and `paramsym relu-verify`."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from paramsym.terminal import ExitCode, Progress

if TYPE_CHECKING:
    from paramsym.relu.errors import ReLUError
    from paramsym.relu.verdict import Verdict

# The answer to "is it one function?" by the kind of the verdict.
EXIT = {
    "EQUAL": ExitCode.YES,
    "EQUAL_TO_PRECISION": ExitCode.YES,
    "DIFFERENT": ExitCode.NO,
    "UNDECIDED": ExitCode.UNDECIDED,
}

First = Annotated[Path, typer.Argument(help="First network: .pt2, .onnx, .safetensors or .json.")]
Second = Annotated[Path, typer.Argument(help="Second network.")]
InputShape = Annotated[
    str | None,
    typer.Option(
        "--input-shape",
        metavar="SIZES",
        help="Sizes of one input, without the batch, where an ONNX file leaves them open: 1x28x28.",
    ),
]


def relu_equal(
    a: First,
    b: Second,
    exact: Annotated[
        bool, typer.Option("--exact", help="Compare the exact real functions, not up to rounding.")
    ] = False,
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance",
            metavar="T",
            help="Equal if |f - g| <= T is proved, instead of what rounding the weights can do.",
        ),
    ] = None,
    box: Annotated[
        tuple[str, str] | None,
        typer.Option("--box", metavar="LO HI", help="Inputs in [LO, HI] per coordinate only."),
    ] = None,
    budget: Annotated[
        float, typer.Option("--budget", metavar="SECONDS", help="Wall-clock limit.", min=0.0)
    ] = 30.0,
    certificate: Annotated[
        Path | None,
        typer.Option(
            "--certificate", metavar="FILE", help="Write the verdict, for relu-verify to check."
        ),
    ] = None,
    input_shape: InputShape = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
) -> None:
    """Decide whether two ReLU networks are the same function.

    Equal, exactly or up to the storage of the weights, comes with a certificate that an independent
    checker accepted, different with an input at which both were evaluated exactly. What a step will
    cost is printed to the error stream beforehand.
    """
    from paramsym.relu.errors import ReLUError

    try:
        _refuse_to_overwrite(certificate)
        with Progress(not as_json) as progress:
            progress("starting")
            if exact:
                import_module("flint")  # where it is missing, the message says how to install it
            from paramsym.relu.deciding import decide
            from paramsym.relu.documents import write_verdict
            from paramsym.relu.files import read_network

            progress(f"reading {a} and {b}")
            shape = _sizes(input_shape)
            f, g = read_network(a, shape), read_network(b, shape)
            progress("deciding")
            verdict = decide(
                f,
                g,
                mode="exact" if exact else "float",
                domain=tuple(box) if box else None,
                budget=budget,
                tolerance=tolerance,
                progress=lambda line: typer.echo(line, err=True),
            )
        if certificate is not None:
            write_verdict(verdict, certificate)
    except ReLUError as error:
        _fail(error, as_json)
    if as_json:
        typer.echo(json.dumps(verdict.to_json()))
    else:
        _show(verdict)
    raise typer.Exit(EXIT[verdict.kind.name])


def relu_verify(
    file: Annotated[Path, typer.Argument(help="A verdict that relu-equal --certificate wrote.")],
    a: First,
    b: Second,
    input_shape: InputShape = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Check a written verdict against the two networks, without deciding anything anew.

    Yes: everything that the file claims is proved. No: it is not, or the file is malformed.
    """
    from paramsym.relu.documents import read_verdict
    from paramsym.relu.errors import ReLUError
    from paramsym.relu.files import read_network
    from paramsym.relu.verification import verify

    try:
        shape = _sizes(input_shape)
        first, second = read_network(a, shape), read_network(b, shape)
        if not file.is_file():
            raise ReLUError(f"no file {str(file)!r}", "a file", "relu-verify", "Check the path.")
    except ReLUError as error:
        _fail(error, as_json)
    try:
        verdict, why = read_verdict(file), "its claims do not follow from what it carries"
    except ReLUError as error:
        verdict, why = None, str(error)
    proved = verdict is not None and verify(verdict, first, second)
    claim = verdict.claim if verdict is not None and proved else None  # no reason: anybody's text
    if as_json:
        reason = None if proved else why
        typer.echo(json.dumps({"proved": proved, "claim": claim, "reason": reason}))
    else:
        typer.echo(f"PROVED: {claim}" if proved else f"NOT PROVED: {why}")
    raise typer.Exit(ExitCode.YES if proved else ExitCode.NO)


def _sizes(text: str | None) -> tuple[int, ...] | None:
    """Sizes as they are written on the command line: 1x28x28."""
    if text is None:
        return None
    if not re.fullmatch(r"[1-9]\d{0,8}(x[1-9]\d{0,8})*", text, re.ASCII):
        from paramsym.relu.errors import ReLUError

        raise ReLUError(
            f"--input-shape {text[:40]}", "sizes of one input, without the batch", "relu-equal",
            "Write them as 1x28x28.",
        )  # fmt: skip
    return tuple(int(n) for n in text.split("x"))


def _refuse_to_overwrite(file: Path | None) -> None:
    if file is not None and (file.exists() or not file.parent.is_dir()):
        from paramsym.relu.errors import ReLUError

        raise ReLUError(
            f"the file {str(file)!r}, which {'exists' if file.exists() else 'has no folder'}",
            "a new file in a folder that exists",
            "relu-equal --certificate",
            "Choose another name, or remove the file.",
        )


def _fail(error: ReLUError, as_json: bool) -> NoReturn:
    """Let the handler of all commands tell the error; a reader of JSON is told there, too."""
    if as_json:
        typer.echo(json.dumps({"kind": "ERROR", "reason": str(error)}))
    raise error from None


def _show(verdict: Verdict) -> None:
    typer.echo(str(verdict))
    if verdict.witness is not None and verdict.values is not None:
        typer.echo("x    = " + ", ".join(str(v) for v in verdict.witness))
        typer.echo("f(x) = " + ", ".join(str(v) for v in verdict.values[0]))
        typer.echo("g(x) = " + ", ".join(str(v) for v in verdict.values[1]))

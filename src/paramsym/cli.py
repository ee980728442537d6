"""The command `paramsym`: parse, call the library, print. One command per public verb."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from paramsym.terminal import EPILOG, Progress, guarded, unbroken_pipes

# What the parser of the command line raises on purpose: an end, or an error of usage (code 2).
_PARSER: tuple[type[BaseException], ...] = (
    typer.Exit,
    next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"),
)


class _Later(TyperCommand):
    """A command of an application, imported when it is called, so that help stays fast."""

    def __init__(self, name: str, module: str, function: str, text: str):
        super().__init__(name=name, callback=None, help=text)
        self.module, self.function = module, function

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        own = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        function = getattr(import_module(self.module), self.function)
        own.command(self.name, epilog=EPILOG)(function)
        return typer.main.get_command(own).make_context(info_name, args, parent=parent, **extra)


_LATER = {
    later.name: later
    for later in (
        _Later(
            "equivariant",
            "paramsym.equivariant.command",
            "equivariant",
            "Linear autoencoders that commute with image shifts: count them, find the best.",
        ),
        _Later(
            "relu-equal",
            "paramsym.relu.command",
            "relu_equal",
            "Are two ReLU networks the same function?",
        ),
        _Later(
            "relu-verify",
            "paramsym.relu.command",
            "relu_verify",
            "Check a verdict that relu-equal wrote. Exit code 0 proved, 1 not proved.",
        ),
    )
}


class _Commands(TyperGroup):
    """Every command: the table of exit codes in its help, and one handler around it."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *(name for name in _LATER if name)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = _LATER.get(cmd_name) or super().get_command(ctx, cmd_name)
        if command is not None:
            command.epilog = EPILOG
        return command

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with unbroken_pipes(), guarded(message_of, (*_PARSER, SystemExit)):
            return super().main(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with guarded(message_of, _PARSER, ctx.params.get("traceback", False)):
            return super().invoke(ctx)


app = typer.Typer(
    name="paramsym",
    cls=_Commands,
    help="In how many ways can a network's parameters change while its function stays the same?",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

_SOURCE = typer.Argument(
    help="A [b].pt2[/b] file, a folder with config.json and safetensors, or "
    "[b]package.module:factory[/b].",
    show_default=False,
)
Source = Annotated[str, _SOURCE]
Weights = Annotated[
    str | None, typer.Option(metavar="FILE", help="Weights for a factory: safetensors or .pt.")
]
Inputs = Annotated[
    str | None,
    typer.Option(
        metavar="SHAPES",
        help="Example inputs: 2x3x32x32, 2x7:int64<50257, or x=2x5,y=2x5. By default the source "
        "says what it takes.",
    ),
]
Key = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="Where in --weights the state dict is, if that is an archive of nested dictionaries: "
        "model, or ema.shadow.",
    ),
]
Out = Annotated[Path, typer.Argument(help="A file or folder in the format of the source.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(f"paramsym {version('paramsym')}")
        except PackageNotFoundError:
            typer.echo("paramsym (not installed)")
        raise typer.Exit


def _finite(value: float) -> float:
    """NaN passes every comparison with a bound, and infinity is below none."""
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no finite number.")
    return value


@app.callback()
def _root(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
    traceback: Annotated[
        bool,
        typer.Option(
            "--traceback", help="Show the traceback of a defect (also PARAMSYM_TRACEBACK=1)."
        ),
    ] = False,
) -> None:
    pass


@app.command()
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
    _say_notes(checkpoint.notes)
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


def _say_notes(notes: Iterable[str]) -> None:
    for note in notes:
        typer.echo(f"Note: {note}", err=True)


def _patterns(given: list[str] | None) -> list[str] | None:
    """The patterns of an option that may be repeated and that takes several at once."""
    from paramsym.structure.patterns import split_patterns

    return [name for item in given or [] for name in split_patterns(item)] or None


@app.command()
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
            min=0.0, callback=_finite, help="How far to move: 0 is nowhere, 1 mixes thoroughly."
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
        names = _patterns(only)
        generator = torch.Generator().manual_seed(seed)
        done = (
            checkpoints.plan_transform(checkpoint, out, names, force, progress)
            if dry_run
            else checkpoints.transform(checkpoint, out, generator, strength, names, force, progress)
        )
    _say_notes(checkpoint.notes)
    if as_json:
        typer.echo(done.to_json())
    elif isinstance(done, checkpoints.Plan):
        typer.echo(str(done))
    else:
        report.print_transformed(done)


@app.command()
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
            checkpoint, out, objective, _patterns(hold), force, progress
        )
    _say_notes(checkpoint.notes)
    if as_json:
        typer.echo(done.to_json())
    else:
        report.print_balanced(done)


# Errors that a room words itself; one that can be raised is in a module that has been imported.
_WORDED = {
    "paramsym.checkpoints.errors": "CheckpointError",
    "paramsym.equivariant.errors": "EquivariantError",
    "paramsym.recording.refusals": "TraceError",
    "paramsym.relu.errors": "ReLUError",
}


def message_of(error: Exception) -> str | None:
    """The text of an error that is about the input; None for a fault of this program."""
    for module, name in _WORDED.items():
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and isinstance(error, kind):
            lines = getattr(error, "lines", None)
            return f"Error: {error}" if lines is None else lines()
    return None


def main() -> None:
    """The entry point of the installed command."""
    app()

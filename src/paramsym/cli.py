"""The command `paramsym`: parse, call the library, print. One command per public verb."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup


class _Later(TyperCommand):
    """A command of an application, imported when it is called, so that help stays fast."""

    def __init__(self, name: str, module: str, function: str, text: str):
        super().__init__(name=name, callback=None, help=text)
        self.module, self.function = module, function

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        own = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        own.command(self.name)(getattr(import_module(self.module), self.function))
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
            "Are two ReLU networks the same function? Exit code 0 equal, 1 different, 3 undecided.",
        ),
    )
}


class _Commands(TyperGroup):
    """What is wrong with the input of a command becomes a message and exit code 2."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *(name for name in _LATER if name)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _LATER.get(cmd_name) or super().get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (ValueError, RuntimeError) as error:
            message = message_of(error)
            if message is None:
                raise
            typer.echo(message, err=True)
            raise typer.Exit(2) from error


app = typer.Typer(
    name="paramsym",
    cls=_Commands,
    help="In how many ways can a network's parameters change while its function stays the same?",
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
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(f"paramsym {version('paramsym')}")
        except PackageNotFoundError:
            typer.echo("paramsym (not installed)")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


@app.command()
def inspect(
    source: Source,
    weights: Weights = None,
    inputs: Inputs = None,
    audit: Annotated[
        bool, typer.Option("--audit", help="Count the redundant directions numerically, too.")
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
    as_json: AsJson = False,
) -> None:
    """Find every way in which the parameters can change without changing the function."""
    from paramsym import report
    from paramsym.checkpoints import open_checkpoint

    checkpoint = open_checkpoint(source, weights, inputs, not (verify or audit))
    findings = report.examine(checkpoint, verify, audit, training, limit=limit)
    if html is not None:
        report.write_page(findings, html)
    if as_json:
        typer.echo(report.to_json(findings))
    else:
        report.print_findings(findings)


@app.command()
def transform(
    source: Source,
    out: Annotated[Path, typer.Argument(help="A file or folder in the format of the source.")],
    weights: Weights = None,
    inputs: Inputs = None,
    seed: Annotated[int, typer.Option(help="Which random move.")] = 0,
    strength: Annotated[
        float, typer.Option(min=0.0, help="How far to move: 0 is nowhere, 1 mixes thoroughly.")
    ] = 1.0,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES",
            help="Move only spaces and shifts of these names, as inspect prints them: "
            "'h.{0..11}.mlp', '*.attn.head'. May be repeated.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write an equivalent checkpoint: other numbers, the same function. It is read back and
    compared before it gets its name."""
    import torch

    from paramsym import checkpoints, report
    from paramsym.structure.patterns import split_patterns

    checkpoint = checkpoints.open_checkpoint(source, weights, inputs)
    generator = torch.Generator().manual_seed(seed)
    names = [name for item in only or [] for name in split_patterns(item)] or None
    result = checkpoints.transform(checkpoint, out, generator, strength, names)
    if as_json:
        typer.echo(result.to_json())
    else:
        report.print_transformed(result)


def message_of(error: Exception) -> str | None:
    """The text of an error that is about the input; None for a fault of this program."""
    from paramsym.checkpoints import CheckpointError
    from paramsym.recording.refusals import TraceError

    if isinstance(error, CheckpointError):
        return error.lines()
    return f"Error: {error}" if isinstance(error, TraceError) else None


def main() -> None:
    """The entry point of the installed command."""
    app()

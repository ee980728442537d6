"""The command `paramsym`: parse, call the library, print. One command per public verb."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from paramsym.cli.discovering import discover
from paramsym.cli.group import Commands
from paramsym.cli.mapping import check_mapping, export
from paramsym.cli.pairs import align, compare, merge
from paramsym.cli.protecting import protect
from paramsym.cli.reading import inspect
from paramsym.cli.transporting import transport
from paramsym.cli.watching import watch
from paramsym.cli.writing import balance, quantize_prep, transform
from paramsym.terminal import EPILOG

app = typer.Typer(
    name="paramsym",
    cls=Commands,
    help="In how many ways can a network's parameters change while its function stays the same?",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


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
    traceback: Annotated[
        bool,
        typer.Option(
            "--traceback", help="Show the traceback of a defect (also PARAMSYM_TRACEBACK=1)."
        ),
    ] = False,
) -> None:
    pass


for _command in (
    inspect, discover, transform, balance, quantize_prep, compare, align, merge, export,
    check_mapping, transport,
):  # fmt: skip
    app.command()(_command)
app.add_typer(protect)
# what follows the script is the script's
app.command(context_settings={"allow_interspersed_args": False})(watch)


def main() -> None:
    """The entry point of the installed command."""
    app()

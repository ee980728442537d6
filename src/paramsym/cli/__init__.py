"""The command `paramsym`: parse, call the library, print. One command per public verb.

`contents` lists the commands by question; the functions of each stand in the modules that it names,
which are imported when a command is called.
"""

from __future__ import annotations

import gc
from typing import Annotated

import typer

from paramsym.cli.group import Commands
from paramsym.terminal import EPILOG

app = typer.Typer(
    name="paramsym",
    cls=Commands,
    help="In how many ways can a network's parameters change while its function stays the same?",
    epilog=f"paramsym COMMAND --help shows examples.\n\n{EPILOG}",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

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


def main() -> None:
    """The entry point of the installed command."""
    # a full collection walks all that torch and transformers have loaded, for a quarter of a second
    gc.set_threshold(10_000, 10, 10)
    app(prog_name="paramsym")

"""Arguments that several commands take, and what is said around their results."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

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


def finite(value: float) -> float:
    """NaN passes every comparison with a bound, and infinity is below none."""
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no finite number.")
    return value


def say_notes(notes: Iterable[str]) -> None:
    for note in notes:
        typer.echo(f"Note: {note}", err=True)


def patterns(given: list[str] | None) -> list[str] | None:
    """The patterns of an option that may be repeated and that takes several at once."""
    from paramsym.structure.patterns import split_patterns

    return [name for item in given or [] for name in split_patterns(item)] or None

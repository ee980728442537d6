"""Arguments that several commands take, and what is said around their results."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from paramsym.checkpoints import Writing
    from paramsym.checkpoints.told import Told
    from paramsym.quantize.grids import Grid

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
Engine = Annotated[
    str,
    typer.Option(
        metavar="ENGINE",
        help="Where the pieces are moved: local, local:4, local:4:processes, ray, or "
        "ray://host:port.",
    ),
]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Go on with a run for this OUT that was interrupted."),
]
ShardSize = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE", help="The largest shard: 5GB, 500MB. By default as in the source."
    ),
]
NoVerify = Annotated[
    bool, typer.Option("--no-verify", help="Do not run the model with the weights after.")
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Say what would move and be written, and what it takes in memory and time; no file.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

Hold = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMES",
        help="Leave spaces and shifts of these names as they are, as inspect prints them. "
        "May be repeated.",
    ),
]
DataFile = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="FILE",
        help="Inputs to calibrate on, samples along the first axis: .npz, .safetensors or .pt with "
        "one array for each input, named as forward does. By default noise.",
    ),
]
Bits = Annotated[
    int | None, typer.Option(min=2, max=16, help="Bits of a weight.", show_default="4")
]
Groups = Annotated[
    str | None,
    typer.Option(
        metavar="tensor|channel|N",
        help="Which weights share a step: all of a tensor, those of an output channel, or N in "
        "a row.",
        show_default="tensor",
    ),
]
Asymmetric = Annotated[
    bool, typer.Option("--asymmetric", help="A grid with a zero point, from least to largest.")
]


def grid_of(bits: int | None, groups: str | None, asymmetric: bool) -> Grid:
    """The grid of --bits, --groups and --asymmetric."""
    from paramsym.quantize.grids import PER_CHANNEL, PER_TENSOR, Grid

    each = groups or PER_TENSOR
    if each not in (PER_TENSOR, PER_CHANNEL) and not (each.isdecimal() and 0 < int(each) < 1 << 31):
        raise typer.BadParameter(
            f"{groups!r} is neither tensor, nor channel, nor a number of weights.",
            param_hint="--groups",
        )
    shared = int(each) if each.isdecimal() else each
    return Grid(4 if bits is None else bits, shared, not asymmetric)  # type: ignore[arg-type]


def writing_of(
    progress: Callable[[str], None], engine: str, resume: bool, force: bool,
    shard_size: str | None, no_verify: bool, dry_run: bool,
) -> Writing:  # fmt: skip
    """How weights are written, of the options that say so."""
    from paramsym.checkpoints import Writing

    return Writing(engine, resume, force, bytes_of(shard_size), not no_verify, dry_run, progress)


def finite(value: float) -> float:
    """NaN passes every comparison with a bound, and infinity is below none."""
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no finite number.")
    return value


_UNITS = {"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
          "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}  # fmt: skip


def bytes_of(size: str | None) -> int | None:
    """The bytes of --shard-size: 5GB, 500MB, 1073741824."""
    if size is None:
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size)
    unit = None if found is None else _UNITS.get(found[2].upper())
    if found is None or unit is None or not float(found[1]) * unit >= 1:
        raise typer.BadParameter(
            f"{size!r} is no size: a number with B, KB, MB, GB or TB was expected, as in 5GB.",
            param_hint="--shard-size",
        )
    return int(float(found[1]) * unit)


def say_notes(notes: Iterable[str]) -> None:
    for note in notes:
        typer.echo(f"Note: {note}", err=True)


def tell(notes: Iterable[str], done: Told, as_json: bool, show: Callable[[Any], None]) -> None:
    """What a command that writes says in the end: notes, and the result as JSON or as text."""
    say_notes(notes)
    if as_json:
        typer.echo(done.to_json())
    else:
        show(done)


def tell_written(done: Any, as_json: bool, show: Callable[[Any], None]) -> None:
    """The same of a command that wrote equivalent weights; of a dry run, what it would write."""
    from paramsym.checkpoints import Plan

    notes = dict.fromkeys((*getattr(done, "notes", ()), *done.written.notes))
    if isinstance(done.written, Plan) and not as_json:
        tell(notes, done.written, False, typer.echo)
    else:
        tell(notes, done, as_json, show)


def patterns(given: list[str] | None) -> list[str] | None:
    """The patterns of an option that may be repeated and that takes several at once."""
    from paramsym.structure.patterns import split_patterns

    return [name for item in given or [] for name in split_patterns(item)] or None

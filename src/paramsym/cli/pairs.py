"""The commands that hold checkpoints of one architecture against each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paramsym.cli.options import (
    AsJson,
    DryRun,
    Engine,
    Force,
    Inputs,
    NoVerify,
    Resume,
    ShardSize,
    finite,
    patterns,
    tell,
    tell_written,
    writing_of,
)
from paramsym.terminal import ExitCode, Progress

_EACH = "as other commands take, or a file of weights."
First = Annotated[str, typer.Argument(help=f"What stays: a source {_EACH}", show_default=False)]
Second = Annotated[str, typer.Argument(help=f"What moves: a source {_EACH}", show_default=False)]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="SOURCE",
        help="The model of all of them, which are then weights for it: "
        "[b]package.module:factory[/b]. By default that of A.",
    ),
]
Key = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="Where the state dict is in archives of nested dictionaries: model, or ema.shadow.",
    ),
]
Spaces = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMES",
        help="Move spaces and shifts of these names alone, as inspect prints them. "
        "May be repeated.",
    ),
]
Permutations = Annotated[
    bool, typer.Option("--permutations", help="Reorder units alone; scales and bases stay.")
]
DataFile = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="FILE",
        help="Align spaces by their activations on these inputs: .npz, .safetensors or .pt with "
        "one array for each input, samples along the first axis. By default by weights.",
    ),
]
Seed = Annotated[
    int, typer.Option(min=-(1 << 63), max=(1 << 63) - 1, help="Of everything that is drawn.")
]


def compare(
    a: First,
    b: Second,
    model: Model = None,
    inputs: Inputs = None,
    key: Key = None,
    independent: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="A checkpoint that is known to be related to neither. May be repeated.",
        ),
    ] = None,
    null: Annotated[
        int, typer.Option(min=0, help="How many unrelated pairs to draw with the same spectra.")
    ] = 4,
    tol: Annotated[
        float | None,
        typer.Option(
            metavar="T",
            callback=lambda value: value if value is None else finite(value),
            help="They are the same up to symmetry if no number differs by more than this, "
            "relative to the root mean square of its tensor. By default by dtype: 1e-7 in float64, "
            "1e-3 in float32, 0.05 below.",
            show_default=False,
        ),
    ] = None,
    element: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT",
            help="Where they are the same up to symmetry: write the element that carries B to A, "
            "as .safetensors or .json.",
        ),
    ] = None,
    seed: Seed = 0,
    engine: Engine = "local",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Are two checkpoints one network up to symmetry? If not: is there a common origin, and which
    tensors were taken over? Exit code 0 for identical and for the same up to symmetry, 1 for
    derived and for unrelated, 3 for undecided."""
    with Progress(not as_json) as progress:
        progress("starting")
        import torch

        from paramsym import checkpoints, report

        if tol is not None and tol <= 0:
            raise typer.BadParameter(f"{tol} is not positive.", param_hint="--tol")
        progress(f"reading {a} and {b}")
        sources = [a, b, *(independent or [])]
        several = checkpoints.open_alike(sources, model, inputs, key, lazily=True)
        generator = torch.Generator().manual_seed(seed)
        done = checkpoints.compare_checkpoints(
            several, null, tol, element, generator, force, progress, engine
        )
    tell(done.notes, done, as_json, report.print_compared)
    kind = done.comparison.kind.name
    undecided = ExitCode.UNDECIDED if kind == "UNDECIDED" else ExitCode.NO
    raise typer.Exit(ExitCode.YES if done.same else undecided)


def align(
    a: First,
    b: Second,
    out: Annotated[Path, typer.Argument(help="A file or folder in the format of B.")],
    model: Model = None,
    inputs: Inputs = None,
    key: Key = None,
    spaces: Spaces = None,
    permutations: Permutations = False,
    data: DataFile = None,
    sweeps: Annotated[
        int, typer.Option(min=0, help="Sweeps over all spaces, at most, after the first pass.")
    ] = 100,
    restarts: Annotated[
        int, typer.Option(min=0, help="Random starts besides; the best one counts.")
    ] = 0,
    seed: Seed = 0,
    element: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where the element that moves B is written, as .safetensors or .json. By default "
            "beside OUT.",
            show_default=False,
        ),
    ] = None,
    engine: Engine = "local",
    resume: Resume = False,
    shard_size: ShardSize = None,
    no_verify: NoVerify = False,
    force: Force = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Write B moved next to A: the nearest weights that compute the function of B, and the element
    that leads there. The model is run with both before OUT gets its name."""
    with Progress(not as_json) as progress:
        progress("starting")
        import torch

        from paramsym import checkpoints, report

        moving = _spaces(spaces, permutations)
        progress(f"reading {a} and {b}")
        how = writing_of(progress, engine, resume, force, shard_size, no_verify, dry_run)
        pair = checkpoints.open_alike([a, b], model, inputs, key, lazily=True)
        generator = torch.Generator().manual_seed(seed)
        done = checkpoints.write_aligned(
            pair, out, element, moving, data, sweeps, restarts, generator, how
        )
    tell_written(done, as_json, report.print_aligned)


def merge(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="A B [MORE]... OUT",
            help=f"Checkpoints, each a source {_EACH} Then a file or folder in the format of A.",
            show_default=False,
        ),
    ],
    model: Model = None,
    inputs: Inputs = None,
    key: Key = None,
    weight: Annotated[
        list[float] | None,
        typer.Option(
            metavar="W", help="Share of a checkpoint; once for each, in order. By default equal."
        ),
    ] = None,
    spherical: Annotated[
        bool, typer.Option("--spherical", help="Along great circles, tensor by tensor; of two.")
    ] = False,
    spaces: Spaces = None,
    permutations: Permutations = False,
    data: DataFile = None,
    threshold: Annotated[
        float,
        typer.Option(
            min=0.0,
            callback=finite,
            help="Refuse where the aligned distance from A is larger; 1 is that of orthogonal "
            "weights.",
        ),
    ] = 0.9,
    engine: Engine = "local",
    resume: Resume = False,
    shard_size: ShardSize = None,
    no_verify: NoVerify = False,
    force: Annotated[
        bool, typer.Option("--force", help="Merge beyond the threshold; replace what is there.")
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Write one network from several of one architecture: each is moved along its orbit next to
    the others, then they are averaged. Refused where they stay too far apart."""
    with Progress(not as_json) as progress:
        progress("starting")
        from paramsym import checkpoints, report

        *given, last = sources
        if len(given) < 2:
            raise typer.BadParameter(
                f"{len(sources)} given; two checkpoints at least, and OUT, are needed.",
                param_hint="A B [MORE]... OUT",
            )
        moving = _spaces(spaces, permutations)
        kind = "spherical" if spherical else "linear"
        if spherical and len(given) > 2:
            raise typer.BadParameter(
                f"{len(given)} checkpoints, and a great circle goes through two.",
                param_hint="--spherical",
            )
        progress(f"reading {', '.join(given)}")
        how = writing_of(progress, engine, resume, force, shard_size, no_verify, dry_run)
        several = checkpoints.open_alike(given, model, inputs, key, lazily=True)
        done = checkpoints.write_merged(
            several, Path(last), weight or None, kind, moving, data, threshold, how
        )
    tell_written(done, as_json, report.print_merged)


def _spaces(spaces: list[str] | None, permutations: bool) -> list[str] | str | None:
    """What `align` may move."""
    if not permutations:
        return patterns(spaces)
    if spaces:
        raise typer.BadParameter("give one of --spaces and --permutations.", param_hint="--spaces")
    return "permutations"

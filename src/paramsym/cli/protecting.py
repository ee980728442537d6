"""`paramsym protect`: weights and data for somebody else to compute with, moved by a key."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from paramsym.cli.options import AsJson, Force, Inputs, Out, Source, Weights, say_notes, tell
from paramsym.terminal import EPILOG, Progress

protect = typer.Typer(
    name="protect",
    help="Have somebody else train or evaluate a network in coordinates that they do not know. "
    "That obfuscates; it is no encryption.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)

KeyFile = Annotated[
    Path,
    typer.Option(
        "--key", metavar="FILE", help="The key: for its owner alone, and never to be sent.",
        show_default=False,
    ),
]  # fmt: skip
Nested = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="Where in --weights the state dict is, if that is an archive of nested dictionaries: "
        "model, or ema.shadow.",
    ),
]
_FREE = "all that float, none, or names with their feature axes: x:1,y."


@protect.command(epilog=EPILOG)
def encode(
    source: Source,
    out: Out,
    key: KeyFile,
    optimizer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES",
            help="What will train it: sgd, adamw, clip_grad_norm, … Several for the parts of one "
            "step. The key is drawn from what commutes with them. By default nobody trains.",
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What compares outputs and targets: cross-entropy, mse, … By default outputs and "
            "targets stay.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Samples to send along: .npz, .safetensors or .pt, with one array for each input, "
            "named as forward does, and targets.",
        ),
    ] = None,
    data_out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where the moved samples are written. By default beside "
                     "OUT.", show_default=False),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=(1 << 63) - 1, help="Of the key, for experiments: who knows the "
                     "seed knows the key.", show_default=False),
    ] = None,
    reuse_key: Annotated[
        bool, typer.Option("--reuse-key", help="Encode with the key that is there.")
    ] = False,
    weights: Weights = None,
    nested: Nested = None,
    inputs: Inputs = None,
    free_inputs: Annotated[
        str, typer.Option(metavar="NAMES", help=f"Inputs that the key moves: {_FREE}")
    ] = "all",
    free_outputs: Annotated[
        str, typer.Option(metavar="NAMES", help=f"Outputs that the key moves: {_FREE}")
    ] = "all",
    force: Force = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Write weights, and samples, as a new key moves them: f(g·x; g·θ) = g·f(x; θ). They are read
    back and compared before they get their names."""
    with Progress(not as_json) as progress:
        progress("starting")
        from paramsym import checkpoints, report

        names = [name.strip() for item in optimizer or [] for name in item.split(",")]
        ask = checkpoints.Ask(tuple(names), loss, free_inputs, free_outputs, seed, reuse_key)
        if data_out is not None and data is None:
            raise typer.BadParameter("there is no --data FILE.", param_hint="--data-out")
        progress(f"reading {source}")
        checkpoint = checkpoints.open_checkpoint(source, weights, inputs, key=nested)
        done = checkpoints.write_encoded(checkpoint, out, key, ask, data, data_out, force, progress)
    tell(done.notes, done, as_json, report.print_encoded)


@protect.command(epilog=EPILOG)
def decode(
    source: Source,
    out: Out,
    key: KeyFile,
    weights: Weights = None,
    nested: Nested = None,
    inputs: Inputs = None,
    free_inputs: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="As for encode, where the weights have lost it.",
                     show_default=False),
    ] = None,
    free_outputs: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Likewise.", show_default=False)
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Undo a key on weights that come back, trained or not, and write the plain ones."""
    with Progress(not as_json) as progress:
        progress("starting")
        from paramsym import checkpoints, report

        progress(f"reading {source}")
        checkpoint = checkpoints.open_checkpoint(source, weights, inputs, key=nested)
        done = checkpoints.write_decoded(
            checkpoint, out, key, free_inputs, free_outputs, force, progress
        )
    tell(done.notes, done, as_json, report.print_decoded)


@protect.command(epilog=EPILOG)
def serve(
    source: Source,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")] = 8765,
    beyond_loopback: Annotated[
        bool,
        typer.Option("--beyond-loopback", help="Listen where other machines reach it: plain HTTP, "
                     "and nobody is asked who they are."),
    ] = False,
    masks: Annotated[bool, typer.Option(help="Send polarity masks with the parameters.")] = True,
    symmetry: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the symmetry as JSON, for who asks and does not "
                     "have the model class.", show_default=False),
    ] = None,
    weights: Weights = None,
    nested: Nested = None,
    inputs: Inputs = None,
    free_inputs: Annotated[
        str, typer.Option(metavar="NAMES", help=f"Inputs that who asks may move: {_FREE}")
    ] = "all",
    free_outputs: Annotated[
        str, typer.Option(metavar="NAMES", help=f"Outputs that who asks may move: {_FREE}")
    ] = "none",
    force: Force = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Evaluate a network over HTTP on inputs in the basis of who asks, until interrupted. Who knows
    the weights can undo that basis; who asks is sent the network in other coordinates."""
    with Progress(not as_json) as progress:
        progress("starting")
        import json

        from paramsym import checkpoints
        from paramsym.checkpoints import served

        def ready(url: str, fingerprint: str) -> None:
            progress.end()
            said = json.dumps({"address": url, "fingerprint": fingerprint})
            typer.echo(said if as_json else f"serving {source} ({fingerprint[:12]}…) at {url}")

        progress(f"reading {source}")
        checkpoint = checkpoints.open_checkpoint(source, weights, inputs, key=nested)
        say_notes(checkpoint.notes)
        freeing = checkpoints.Freeing(False, free_inputs, free_outputs)
        served.serve_checkpoint(
            checkpoint,
            host,
            port,
            freeing,
            masks,
            beyond_loopback,
            symmetry,
            force,
            progress,
            ready,
        )


@protect.command(epilog=EPILOG)
def query(
    url: Annotated[str, typer.Argument(help="The address that serve prints.", show_default=False)],
    source: Annotated[
        str,
        typer.Argument(help="The network that is served: a source, of which no weights are read, "
                       "or the file that serve --symmetry wrote.", show_default=False),
    ],
    data: Annotated[
        Path,
        typer.Option(metavar="FILE", help="Samples: .npz, .safetensors or .pt, with one array for "
                     "each input.", show_default=False),
    ],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Where the outputs are written.",
                           show_default=False)
    ],
    orthogonal: Annotated[
        bool,
        typer.Option("--orthogonal", help="Draw rotations alone: they lose no digits, and show "
                     "lengths and angles to everybody."),
    ] = False,
    dtype: Annotated[
        Literal["float16", "bfloat16", "float32", "float64"],
        typer.Option(help="Of real inputs, as the network takes them."),
    ] = "float32",
    inputs: Inputs = None,
    free_inputs: Annotated[str, typer.Option(metavar="NAMES", help="As for serve.")] = "all",
    free_outputs: Annotated[str, typer.Option(metavar="NAMES", help="As for serve.")] = "none",
    force: Force = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Ask a service for outputs on samples that are sent in a basis of one's own, another one each
    time."""
    with Progress(not as_json) as progress:
        progress("starting")
        import torch

        from paramsym import checkpoints, report
        from paramsym.checkpoints import served

        freeing = checkpoints.Freeing(False, free_inputs, free_outputs)
        network = served.published(source, inputs, freeing, progress)
        done = served.query_service(
            url, network, data, out, orthogonal, getattr(torch, dtype), force, progress
        )
    tell(done.notes, done, as_json, report.print_queried)

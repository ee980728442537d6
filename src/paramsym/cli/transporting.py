"""The command that moves what is attached to a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paramsym.cli.options import AsJson, Force, Inputs, Key, Weights, tell
from paramsym.terminal import Progress


def transport(
    artefact: Annotated[
        Path,
        typer.Argument(
            help="The folder of an adapter (adapter_config.json, adapter_model.safetensors), or "
            "safetensors of a sparse autoencoder, a draft head, control vectors, probes.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Argument(help="A folder or file, as ARTEFACT is.")],
    along: Annotated[
        Path, typer.Option(metavar="FILE", help="The element by which the model was moved.")
    ],
    of: Annotated[
        str,
        typer.Option(
            metavar="SOURCE",
            help="The model before it was moved: a [b].pt2[/b] file, a folder with config.json and "
            "safetensors, or [b]package.module:factory[/b].",
        ),
    ],
    weights: Weights = None,
    inputs: Inputs = None,
    key: Key = None,
    types: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON with the types of tensors, one for each axis, where names and shapes do not "
            "say them: {'fc.weight': 'residual, (residual + residual)*'}.",
        ),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Move what is attached to a model along with it: adapters, draft heads, sparse autoencoders,
    control vectors, probes. Model and artefact are compared before and after, beside the artefact
    left as it is; it is written only if the comparison holds."""
    with Progress(not as_json) as progress:
        progress("starting")
        from paramsym import checkpoints, report

        progress(f"reading {of}")
        checkpoint = checkpoints.open_checkpoint(of, weights, inputs, key=key)
        done = checkpoints.write_transported(
            checkpoint, artefact, out, along, types, force, progress
        )
    tell(done.notes, done, as_json, report.print_transported)

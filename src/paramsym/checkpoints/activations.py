"""What the spaces of a checkpoint hold on inputs from a file, to align networks by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from paramsym.checkpoints.balanced import calibration
from paramsym.checkpoints.errors import CheckpointError
from paramsym.checkpoints.source import Inputs, Source
from paramsym.geometry.reading import Reading
from paramsym.merging.readings import readings
from paramsym.structure.symmetry import ParameterSymmetry

MOST = 4096  # samples of each space: more change an order of units little
Params = Mapping[str, torch.Tensor]
Readings = dict[str, Reading]


def reader(
    checkpoint: Source,
    symmetry: ParameterSymmetry,
    data: Path,
    progress: Callable[[str], None],
) -> Callable[[Params], Readings]:
    """From weights to the readings of the checkpoint's model on the inputs of a file.

    Args:
        checkpoint: whose model runs; with other weights it stays what it is.
        symmetry: of the model.
        data: as for `open_data`.
        progress: is told each step when it begins.

    Raises:
        CheckpointError: as `open_data`; or no layer of the model can be read.
    """
    batches = calibration(checkpoint, data, progress).batches

    def read(params: Params) -> Readings:
        progress("reading activations")
        found = _joined(checkpoint.model, symmetry, params, batches)
        if not found:
            raise CheckpointError(
                f"--data {data}", "no layer of the model returns what a space can be read from",
                "linear layers, convolutions, embeddings or norms as modules",
                "Leave --data out, to align by weights",
            )  # fmt: skip
        return found

    return read


def shared(one: Readings, other: Readings) -> tuple[Readings, Readings]:
    """The readings that two networks have in common."""
    names = [name for name, each in one.items() if name in other and other[name].type == each.type]
    return {name: one[name] for name in names}, {name: other[name] for name in names}


def _joined(
    model: torch.nn.Module, symmetry: ParameterSymmetry, params: Params, batches: list[Inputs]
) -> Readings:
    """The readings of all batches, one below the other."""
    most = -(-MOST // len(batches))
    parts = [readings(model, symmetry, params, inputs, most) for inputs in batches]
    return {
        name: Reading(one.type, torch.cat([part[name].values for part in parts]))
        for name, one in parts[0].items()
        if all(name in part and part[name].type == one.type for part in parts)
    }

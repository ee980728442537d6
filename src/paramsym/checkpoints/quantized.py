"""Write the equivalent checkpoint that loses least when a quantiser rounds it, as measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from paramsym.checkpoints.balanced import calibration
from paramsym.checkpoints.equivalent import Transformed, movable, require_writable
from paramsym.checkpoints.errors import refused
from paramsym.checkpoints.moved import moved_or_planned
from paramsym.checkpoints.moving import AS_USUAL, Moving, Writing
from paramsym.checkpoints.plan import Plan
from paramsym.checkpoints.source import Source
from paramsym.checkpoints.told import Told
from paramsym.quantize.grids import Grid
from paramsym.quantize.preparing import ACTIVATIONS, Prepared, prepare_for_quantization
from paramsym.structure.element import GroupElement


@dataclass(frozen=True)
class WrittenPrepared(Told):
    """What was written, and the table by which it was chosen."""

    written: Transformed | Plan
    prepared: Prepared
    grid: Grid
    activations: float

    def numbers(self) -> dict[str, Any]:
        """What was written, and the rows of the table."""
        return {
            **self.written.numbers(), "grid": asdict(self.grid), "activations": self.activations,
            "chosen": self.prepared.chosen,
            "candidates": {row.name: asdict(row) for row in self.prepared.candidates},
        }  # fmt: skip


def write_prepared(
    checkpoint: Source,
    out: Path,
    data: Path | None = None,
    grid: Grid | None = None,
    hold: list[str] | None = None,
    activations: float = ACTIVATIONS,
    how: Writing = AS_USUAL,
) -> WrittenPrepared:
    """Write the equivalent weights that round best on held-out inputs, or the untouched ones.

    What is written is not rounded: that is left to the quantiser.

    Args:
        checkpoint: from `open_checkpoint`; its model is used up.
        out: a file or folder of the same format as the source.
        data: a file of inputs, of which one half calibrates and the other is held out; by default
            noise, see `open_data`.
        grid: what the weights will be rounded to; by default `Grid(4)`.
        hold: names of spaces and shifts to leave as they are, or patterns of them.
        activations: factor by which the largest number that meets a rounded tensor may grow.
        how: how it is written.

    Raises:
        CheckpointError: as `write_moved` and `open_data`; the inputs cannot be split; a pattern in
            `hold` matches nothing; there is nothing to round.
    """
    grid = grid or Grid(4)
    require_writable(checkpoint, out, how.again)
    checkpoint = checkpoint.loaded()
    where = "the inputs" if data is None else f"--data {data}"
    halves = calibration(checkpoint, data, how.progress).halves(where)
    symmetry = movable(checkpoint, out, "--hold", hold, how.again, how.progress)
    found: list[Prepared] = []

    def best(_: Mapping[str, torch.Tensor]) -> GroupElement:
        with refused(checkpoint.label, "weights that can be balanced"):
            found.append(prepare_for_quantization(
                checkpoint.model, symmetry, *halves, grid, None, hold or (), activations,
                how.progress,
            ))  # fmt: skip
        return found[0].element

    said = {
        "data": data and str(data), "grid": asdict(grid), "hold": hold or [],
        "activations": activations,
    }  # fmt: skip
    moving = Moving.of(checkpoint, out, symmetry, best, "quantize-prep", said)
    written = moved_or_planned(moving, how)
    return WrittenPrepared(written, found[0], grid, activations)

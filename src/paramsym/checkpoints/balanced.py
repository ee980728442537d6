"""Write the best equivalent checkpoint for an objective: a norm, the ranges, or an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paramsym.checkpoints.data import Data, open_data
from paramsym.checkpoints.equivalent import (
    Transformed,
    movable,
    require_writable,
    write_moved,
)
from paramsym.checkpoints.errors import refused
from paramsym.checkpoints.source import Inputs, Source
from paramsym.checkpoints.told import Told
from paramsym.geometry.balance import OBJECTIVES, balance
from paramsym.geometry.result import Balanced
from paramsym.quantize.errors import minimize_quantization_error
from paramsym.quantize.grids import Grid
from paramsym.quantize.ranges import minimize_range
from paramsym.quantize.sensitivities import sensitivities
from paramsym.quantize.shares import errors_of_tensors, ranges_of_tensors, tensors_to_round
from paramsym.structure.origin import added
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.terminal import silent

State = Mapping[str, torch.Tensor]
Shares = dict[str, tuple[float, float]]

# The error is certified up to this share of it: differences of interest are larger.
TOLERANCE = 1e-2


@dataclass(frozen=True)
class WrittenBalanced(Told):
    """What was written, the certificate, and how the cost was and is spread over the parameters.

    `shares` holds, for each parameter that counts, its part of the cost before and after: of a
    range its own, of which the largest is the cost.
    """

    written: Transformed
    balanced: Balanced
    objective: str
    shares: Shares

    def numbers(self) -> dict[str, Any]:
        """What was written, and the numbers of the certificate."""
        found = self.balanced
        return {
            **self.written.numbers(), "objective": self.objective,
            "before": found.before, "after": found.value, "status": str(found.status),
            "gap": found.gap, "moment": found.moment, "held": found.held,
            "tensors": {n: {"before": b, "after": a} for n, (b, a) in self.shares.items()},
        }  # fmt: skip


def write_balanced(
    checkpoint: Source,
    out: Path,
    objective: str = "l2",
    hold: list[str] | None = None,
    force: bool = False,
    progress: Callable[[str], None] = silent,
    data: Path | None = None,
    grid: Grid | None = None,
) -> WrittenBalanced:
    """Move the weights of a checkpoint to the best point of their orbit and write them.

    Args:
        checkpoint: from `open_checkpoint`; its model is used up.
        out: a file or folder of the same format as the source.
        objective: "l2" or "l1", see `balance`; "range", see `minimize_range`; or "error", see
            `minimize_quantization_error`.
        hold: names of spaces and shifts to leave as they are, or patterns of them.
        force: replace what stands at `out`; see `staged`.
        progress: is told each step when it begins.
        data: a file of inputs, for "error"; by default noise, see `open_data`.
        grid: what the weights will be rounded to, for "error"; by default `Grid(4)`.

    Raises:
        CheckpointError: as `write_moved` and `open_data`; a pattern in `hold` matches nothing; the
            weights cannot be balanced because they are not finite, or there are none to round.
    """
    require_writable(checkpoint, out, force)
    inputs: list[Inputs] = []
    if objective == "error":
        inputs = calibration(checkpoint, data, progress).batches
    symmetry = movable(checkpoint, out, "--hold", hold, force, progress)
    held, found = hold or (), None

    def least(symmetry: ParameterSymmetry, params: State) -> State:
        nonlocal found
        with refused(checkpoint.label, "weights that can be balanced"):
            if objective == "error":
                found = _least_error(
                    checkpoint.model, symmetry, params, inputs, grid or Grid(4), held, progress
                )
            elif objective == "range":
                found = _least_range(symmetry, params, held, progress)
            else:
                found = _least_norm(symmetry, params, objective, held, progress)
        return found[0].params

    written = write_moved(checkpoint, symmetry, out, least, force, progress)
    assert found is not None  # `write_moved` has called `least`
    return WrittenBalanced(written, found[0], objective, found[1])


def calibration(checkpoint: Source, data: Path | None, progress: Callable[[str], None]) -> Data:
    """The inputs of `open_data`, with its notes told."""
    progress("reading the inputs")
    found = open_data(checkpoint, data)
    checkpoint.notes += found.notes
    return found


def _least_norm(
    symmetry: ParameterSymmetry, params: State, objective: str, hold: Any, progress: Any
) -> tuple[Balanced, Shares]:
    """The least norm; a gain that is stored as γ − 1 counts as γ, in its share, too."""
    result = balance(symmetry, params, objective, hold, progress=progress)
    counted = [n for n in symmetry.blocks if _counts(symmetry, params, n)]

    def cost(state: State, name: str) -> float:
        effective = added(state[name], symmetry.offsets.get(name, 0.0))
        return float((effective.abs().double() ** OBJECTIVES[objective]).sum())

    return result, {n: (cost(params, n), cost(result.params, n)) for n in counted}


def _counts(symmetry: ParameterSymmetry, params: State, name: str) -> bool:
    tensor = params[name]
    free = name not in symmetry.buffers and name not in symmetry.ties
    return free and (tensor.is_floating_point() or tensor.is_complex())


def _least_range(
    symmetry: ParameterSymmetry, params: State, hold: Any, progress: Any
) -> tuple[Balanced, Shares]:
    result = minimize_range(symmetry, params, hold=hold, progress=progress)
    before, after = (ranges_of_tensors(symmetry, p) for p in (params, result.params))
    return result, {n: (before[n], after[n]) for n in before}


def _least_error(
    model: torch.nn.Module,
    symmetry: ParameterSymmetry,
    params: State,
    inputs: list[Inputs],
    grid: Grid,
    hold: Any,
    progress: Any,
) -> tuple[Balanced, Shares]:
    names = tensors_to_round(symmetry, params, None, "minimize_quantization_error")
    progress("measuring the sensitivities")
    slopes = sensitivities(model, inputs)
    result = minimize_quantization_error(
        symmetry, params, slopes, grid, hold=hold, tolerance=TOLERANCE, progress=progress
    )
    before = errors_of_tensors(symmetry, params, slopes, names, grid)
    after = errors_of_tensors(symmetry, result.params, slopes, names, grid, result.element)
    return result, {n: (before[n], after[n]) for n in names}

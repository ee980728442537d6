"""Write the best equivalent checkpoint for an objective: a norm, the ranges, or an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from paramsym.checkpoints.data import Data, open_data
from paramsym.checkpoints.equivalent import Transformed, movable, require_writable
from paramsym.checkpoints.errors import refused
from paramsym.checkpoints.moved import moved_or_planned
from paramsym.checkpoints.moving import AS_USUAL, Moving, Writing
from paramsym.checkpoints.plan import Plan
from paramsym.checkpoints.source import Inputs, Source
from paramsym.checkpoints.told import Told
from paramsym.geometry.balance import OBJECTIVES, balance
from paramsym.geometry.costs import counts
from paramsym.geometry.masses import power_sum
from paramsym.geometry.result import Balanced
from paramsym.quantize.errors import minimize_quantization_error
from paramsym.quantize.grids import Grid
from paramsym.quantize.ranges import minimize_range
from paramsym.quantize.sensitivities import sensitivities
from paramsym.quantize.shares import errors_of_tensors, ranges_of_tensors, tensors_to_round
from paramsym.structure.action import act_tensor
from paramsym.structure.element import GroupElement
from paramsym.structure.origin import added
from paramsym.structure.symmetry import ParameterSymmetry

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

    written: Transformed | Plan
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
    data: Path | None = None,
    grid: Grid | None = None,
    how: Writing = AS_USUAL,
) -> WrittenBalanced:
    """Move the weights of a checkpoint to the best point of their orbit and write them.

    Args:
        checkpoint: from `open_movable`, or from `open_checkpoint`; its model is used up.
        out: a file or folder of the same format as the source.
        objective: "l2" or "l1", see `balance`; "range", see `minimize_range`; or "error", see
            `minimize_quantization_error`.
        hold: names of spaces and shifts to leave as they are, or patterns of them.
        data: a file of inputs, for "error"; by default noise, see `open_data`.
        grid: what the weights will be rounded to, for "error"; by default `Grid(4)`.
        how: how it is written. For "l2" and "l1" no more weights are in memory at a time than
            what is balanced together; for "range" all are, and for "error" the model is run.

    Raises:
        CheckpointError: as `write_moved` and `open_data`; a pattern in `hold` matches nothing; the
            weights cannot be balanced because they are not finite, or there are none to round.
    """
    require_writable(checkpoint, out, how.again)
    inputs: list[Inputs] = []
    if objective == "error":
        checkpoint = checkpoint.loaded()
        inputs = calibration(checkpoint, data, how.progress).batches
    symmetry = movable(checkpoint, out, "--hold", hold, how.again, how.progress)
    held, progress, grid = hold or (), how.progress, grid or Grid(4)
    found: list[tuple[Balanced, Shares]] = []

    def least(params: State) -> GroupElement:
        with refused(checkpoint.label, "weights that can be balanced"):
            if objective == "error":
                found.append(_least_error(
                    checkpoint.model, symmetry, dict(params), inputs, grid, held, progress
                ))  # fmt: skip
            elif objective == "range":
                found.append(_least_range(symmetry, dict(params), held, progress))
            else:
                found.append(_least_norm(symmetry, params, objective, held, progress))
        return found[0][0].element

    said = {"objective": objective, "hold": [*held]}
    if objective == "error":
        said |= {"data": data and str(data), "grid": asdict(grid)}
    moving = Moving.of(checkpoint, out, symmetry, least, "balance", said)
    written = moved_or_planned(moving, how)
    return WrittenBalanced(written, found[0][0], objective, found[0][1])


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
    progress("measuring what each tensor costs")
    power = OBJECTIVES[objective]
    names = [n for n in symmetry.blocks if n not in symmetry.buffers and n not in symmetry.ties]
    costs = {name: _cost(symmetry, params, result.element, name, power) for name in names}
    return result, {name: cost for name, cost in costs.items() if cost is not None}


def _cost(
    symmetry: ParameterSymmetry, params: State, element: GroupElement, name: str, power: float
) -> tuple[float, float] | None:
    """What a tensor costs before and after a move; nothing where it counts for nothing."""
    given = {n: params[n] for n in symmetry.needs(name, element)}
    if not counts(given[name]):
        return None
    moved, origin = act_tensor(symmetry, element, name, given), symmetry.offsets.get(name, 0.0)
    before, after = (
        float(power_sum(added(t, origin), power, range(t.ndim))) for t in (given[name], moved)
    )
    return before, after


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

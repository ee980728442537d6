"""Write the equivalent checkpoint of least norm."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paramsym.checkpoints.checkpoint import Checkpoint
from paramsym.checkpoints.equivalent import Transformed, movable, write_moved
from paramsym.checkpoints.errors import CheckpointError
from paramsym.geometry.balance import OBJECTIVES, balance
from paramsym.geometry.result import Balanced
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.terminal import silent


@dataclass(frozen=True)
class WrittenBalanced:
    """What was written, the certificate, and how the cost was and is spread over the parameters.

    `shares` holds, for each parameter that counts, its part of the cost before and after.
    """

    written: Transformed
    balanced: Balanced
    objective: str
    shares: dict[str, tuple[float, float]]

    def to_json(self) -> str:
        """The numbers as JSON text."""
        found = self.balanced
        numbers = {
            "written": str(self.written.path), "error": self.written.error,
            "tolerance": self.written.tolerance, "objective": self.objective,
            "before": found.before, "after": found.value, "status": str(found.status),
            "gap": found.gap, "moment": found.moment, "held": found.held,
            "parameters": {n: {"before": b, "after": a} for n, (b, a) in self.shares.items()},
            "notes": list(self.written.notes),
        }  # fmt: skip
        return json.dumps(numbers, indent=1)


def write_balanced(
    checkpoint: Checkpoint,
    out: Path,
    objective: str = "l2",
    hold: list[str] | None = None,
    force: bool = False,
    progress: Callable[[str], None] = silent,
) -> WrittenBalanced:
    """Move the weights of a checkpoint to the least norm of their orbit and write them.

    Args:
        checkpoint: from `open_checkpoint`; its model is used up.
        out: a file or folder of the same format as the source.
        objective: "l2" or "l1"; see `balance`.
        hold: names of spaces and shifts to leave as they are, or patterns of them.
        force: replace what stands at `out`; see `staged`.
        progress: is told each step when it begins.

    Raises:
        CheckpointError: as `write_moved`; a pattern in `hold` matches nothing; the weights cannot
            be balanced because they are not finite.
    """
    found: list[tuple[Balanced, dict[str, tuple[float, float]]]] = []

    def least(symmetry: ParameterSymmetry, params: Mapping[str, torch.Tensor]) -> Any:
        try:
            result = balance(symmetry, params, objective, hold or (), progress=progress)
        except ValueError as error:
            raise CheckpointError(
                checkpoint.label, str(error).rstrip("."), "weights that can be balanced",
                "See the end of the message",
            ) from error  # fmt: skip
        power = OBJECTIVES[objective]
        counted = [n for n in symmetry.signature if n not in symmetry.buffers]
        shares = {n: (_cost(params[n], power), _cost(result.params[n], power)) for n in counted}
        found.append((result, shares))
        return result.params

    symmetry = movable(checkpoint, out, "--hold", hold, force, progress)
    written = write_moved(checkpoint, symmetry, out, least, force, progress)
    ((result, shares),) = found
    return WrittenBalanced(written, result, objective, shares)


def _cost(tensor: torch.Tensor, power: float) -> float:
    return float((tensor.abs().double() ** power).sum())

"""What `transform` would write, and what it needs, before it does so."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paramsym.algebra.monomial import Trivial
from paramsym.checking.refute import LARGEST
from paramsym.checkpoints.source import Source
from paramsym.checkpoints.told import Told
from paramsym.structure.patterns import matching
from paramsym.structure.symmetry import ParameterSymmetry

# Copies of the weights at the peak: the model, its state before and after the move, what a writer
# holds or a reader fills, and one tensor on its way. Measured at 400 MB: 4.1 to 4.4. Halves count
# as float32 where the symmetry is tried in it: 151 MB of bfloat16 took 1.35 GB.
COPIES = 5


@dataclass(frozen=True)
class Plan(Told):
    """The files that `transform` would write, and what that needs.

    `files` are names and bytes, without the few of a header; `memory` is the peak in bytes, beside
    what Python and torch themselves take; `moves` are the spaces and shifts that would move.
    """

    path: Path
    files: dict[str, int]
    memory: int
    free: int
    moves: list[str]

    @property
    def bytes(self) -> int:
        """What will be written, in sum."""
        return sum(self.files.values())

    def numbers(self) -> dict[str, Any]:
        """The plan, with the bytes in sum."""
        return {**asdict(self), "path": str(self.path), "bytes": self.bytes}

    def __str__(self) -> str:
        rows = [
            ("would write", str(self.path)),
            *((f"{size:,}", f"bytes  {name}") for name, size in self.files.items()),
            (f"{self.bytes:,}", f"bytes in sum, of {self.free:,} that are free"),
            (f"{self.memory:,}", f"bytes of memory at most: {COPIES} copies of the weights"),
            (f"{len(self.moves):,}", "spaces and shifts would move"),
        ]
        width = max(len(left) for left, _ in rows)
        return "\n".join(f"{left:>{width}}  {right}" for left, right in rows)


def plan(
    checkpoint: Source, symmetry: ParameterSymmetry, out: Path, only: list[str] | None = None
) -> Plan:
    """What moving a checkpoint along its symmetry and writing it to `out` would take."""
    names = [*symmetry.spaces, *(shift.name for shift in symmetry.shifts)]
    moving = [name for name in names if _moves(symmetry, name)]
    if only:
        chosen = set(matching(only, names, "--only"))
        moving = [name for name in moving if name in chosen]
    state = {id(t): t for t in checkpoint.model.state_dict(keep_vars=True).values()}.values()
    tried = 4 * checkpoint.parameters <= LARGEST
    weights = sum(t.numel() * max(t.element_size(), 4 if tried else 1) for t in state)
    free = shutil.disk_usage(out.absolute().parent).free
    return Plan(out, checkpoint.planned(out), COPIES * weights, free, moving)


def _moves(symmetry: ParameterSymmetry, name: str) -> bool:
    """Everything but a space whose group is trivial."""
    return name not in symmetry.spaces or not isinstance(symmetry.spaces[name].group, Trivial)

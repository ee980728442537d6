"""Write the nearest equivalent of one checkpoint to another, and the element that leads there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from paramsym.checkpoints.activations import reader, shared
from paramsym.checkpoints.alike import Alike
from paramsym.checkpoints.elements import check_element, place_beside, written_element
from paramsym.checkpoints.equivalent import (
    Transformed,
    check_names,
    require_writable,
    write_moved,
)
from paramsym.checkpoints.errors import refused
from paramsym.checkpoints.moves import Move, moves_of
from paramsym.checkpoints.told import Told
from paramsym.checkpoints.writing import refuse_source
from paramsym.geometry.alignment import Aligned, align
from paramsym.merging.differences import relative_distances
from paramsym.structure.patterns import Patterns
from paramsym.terminal import silent

ALIGNABLE = "two checkpoints that can be aligned"


@dataclass(frozen=True)
class WrittenAligned(Told):
    """What was written, how far it is from where it should lead, and what was moved.

    `before` and `after` are relative distances of the weights as they are stored, by tensor and
    under the empty name in sum: ‖a − b‖ / √(‖a‖² + ‖b‖²), which is 0 for equal ones and 1 for
    orthogonal ones.
    """

    written: Transformed
    element: Path
    aligned: Aligned
    moves: dict[str, Move]
    before: dict[str, float]
    after: dict[str, float]
    notes: tuple[str, ...] = ()

    def numbers(self) -> dict[str, Any]:
        """What was written, and all distances."""
        found = self.aligned
        tensors = {n: {"before": self.before[n], "after": d} for n, d in self.after.items() if n}
        return {
            **self.written.numbers(), "element": str(self.element),
            "before": self.before[""], "after": self.after[""], "distance": found.distance,
            "objective": found.objective, "held": found.held,
            "moved": {name: asdict(move) for name, move in self.moves.items()}, "tensors": tensors,
            "notes": list(self.notes),
        }  # fmt: skip


def write_aligned(
    pair: Alike,
    out: Path,
    element: Path | None = None,
    spaces: Patterns | None = None,
    data: Path | None = None,
    sweeps: int = 100,
    restarts: int = 0,
    generator: torch.Generator | None = None,
    force: bool = False,
    progress: Callable[[str], None] = silent,
) -> WrittenAligned:
    """Move the second of two checkpoints along its orbit next to the first, and write it.

    It is written in its own layout, read back and compared, as `write_moved` does; the first is
    only read.

    Args:
        pair: two checkpoints from `open_alike`; their models are used up.
        out: a file or folder of the format of the second.
        element: where the element is written, `.safetensors` or `.json`; by default beside `out`.
        spaces: as for `align`.
        data: a file of inputs, as for `open_data`: spaces are then aligned by their activations.
        sweeps: as for `align`.
        restarts: as for `align`.
        generator: as for `align`.
        force: replace what stands at `out` and at `element`; see `staged`.
        progress: is told each step when it begins.

    Raises:
        CheckpointError: as `write_moved` and `Alike.symmetry`; a pattern of `spaces` matches
            nothing; the weights cannot be aligned because they are not finite.
    """
    second = pair.checkpoints[1]
    place = place_beside(out) if element is None else element
    pair.require_weights()
    refuse_source(out, pair.files())
    require_writable(second, out, force)
    check_element(place, out, pair.files(), force)
    symmetry = pair.symmetry(progress)
    if spaces is not None and not isinstance(spaces, str):
        check_names(symmetry, "--spaces", [*spaces])
    a, b = pair.states()
    with refused(pair.names[1], ALIGNABLE):
        read = None if data is None else reader(pair.checkpoints[0], symmetry, data, progress)
        beside = None if read is None else shared(read(a), read(b))
        progress("aligning")
        found = align(
            symmetry, a, b, beside, spaces=spaces, sweeps=sweeps, restarts=restarts,
            generator=generator, progress=progress,
        )  # fmt: skip
    before = relative_distances(symmetry, a, b)
    after = relative_distances(symmetry, a, found.params)
    del a, b  # writing needs room for the second alone
    pair.checkpoints[0].model = torch.nn.Module()
    with written_element(found.element, place, force):
        written = write_moved(second, symmetry, out, lambda *_: found.params, force, progress)
    moves = moves_of(found.element)
    return WrittenAligned(written, place, found, moves, before, after, tuple(pair.notes()))

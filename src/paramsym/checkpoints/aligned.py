"""Write the nearest equivalent of one checkpoint to another, and the element that leads there."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from paramsym.checkpoints.activations import reader, shared
from paramsym.checkpoints.alike import Alike
from paramsym.checkpoints.elements import check_element, place_beside
from paramsym.checkpoints.equivalent import Transformed, check_names, require_writable
from paramsym.checkpoints.errors import refused
from paramsym.checkpoints.moved import moved_or_planned
from paramsym.checkpoints.moves import Move, moves_of
from paramsym.checkpoints.moving import AS_USUAL, Moving, Writing
from paramsym.checkpoints.plan import Plan
from paramsym.checkpoints.told import Told
from paramsym.checkpoints.writing import refuse_source
from paramsym.geometry.alignment import Aligned, align
from paramsym.merging.differences import relative_distances
from paramsym.structure.patterns import Patterns

ALIGNABLE = "two checkpoints that can be aligned"


@dataclass(frozen=True)
class WrittenAligned(Told):
    """What was written, how far it is from where it should lead, and what was moved.

    `before` and `after` are relative distances of the weights as they are stored, by tensor and
    under the empty name in sum: ‖a − b‖ / √(‖a‖² + ‖b‖²), which is 0 for equal ones and 1 for
    orthogonal ones.
    """

    written: Transformed | Plan
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
    how: Writing = AS_USUAL,
) -> WrittenAligned:
    """Move the second of two checkpoints along its orbit next to the first, and write it.

    It is written in its own layout, as `write_moved` does; the first is only read. Both are in
    memory while they are aligned.

    Args:
        pair: two checkpoints from `open_alike`; their models are used up.
        out: a file or folder of the format of the second.
        element: where the element is written, `.safetensors` or `.json`; by default beside `out`.
        spaces: as for `align`.
        data: a file of inputs, as for `open_data`: spaces are then aligned by their activations.
        sweeps: as for `align`.
        restarts: as for `align`.
        generator: as for `align`.
        how: how it is written; what stands at `element` is replaced alike.

    Raises:
        CheckpointError: as `write_moved` and `Alike.symmetry`; a pattern of `spaces` matches
            nothing; the weights cannot be aligned because they are not finite.
    """
    second = pair.checkpoints[1]
    place = place_beside(out) if element is None else element
    pair.require_weights()
    refuse_source(out, pair.files())
    require_writable(second, out, how.again)
    check_element(place, out, pair.files(), how.again)
    progress = how.progress
    symmetry = pair.symmetry(progress)
    if spaces is not None and not isinstance(spaces, str):
        check_names(symmetry, "--spaces", [*spaces])
    if data is not None:
        pair.load()
    a, b = pair.numbers()
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
    found = replace(found, params={})
    said = {
        "to": pair.names[0], "spaces": spaces, "data": data and str(data), "sweeps": sweeps,
        "restarts": restarts, "seed": generator and generator.initial_seed(),
    }  # fmt: skip
    moving = Moving(
        out, symmetry, lambda _: found.element, second, second.streamable(), pair.files(),
        "align", said, place, notes=tuple(second.notes),
    )  # fmt: skip
    written = moved_or_planned(moving, how)
    moves = moves_of(found.element)
    return WrittenAligned(written, place, found, moves, before, after, tuple(pair.notes()))

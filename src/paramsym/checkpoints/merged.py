"""Write one checkpoint from several of one architecture, aligned first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from paramsym.checkpoints.activations import reader
from paramsym.checkpoints.aligned import ALIGNABLE
from paramsym.checkpoints.alike import Alike
from paramsym.checkpoints.equivalent import check_names, outputs_of, require_writable
from paramsym.checkpoints.errors import CheckpointError, refused
from paramsym.checkpoints.moves import Move, moves_of
from paramsym.checkpoints.stored import stored
from paramsym.checkpoints.told import Told
from paramsym.checkpoints.writing import refuse_source
from paramsym.geometry.alignment import align
from paramsym.merging.differences import relative_distances
from paramsym.merging.merge import Merged, merge
from paramsym.structure.patterns import Patterns
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.terminal import silent

THRESHOLD = 0.9  # aligned distance beyond which merging is hopeless
_STATISTICS = ("running_mean", "running_var")


@dataclass(frozen=True)
class WrittenMerged(Told):
    """What was written, and how far from the first checkpoint the others were before and after.

    Each of `names` has a relative distance of its weights from those of the first one, as they are
    stored, and what was moved.
    """

    path: Path
    names: tuple[str, ...]
    shares: tuple[float, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    moves: tuple[dict[str, Move], ...]
    objective: tuple[float, ...]
    notes: tuple[str, ...] = ()

    def numbers(self) -> dict[str, Any]:
        """What was written, and one row for each checkpoint."""
        rows = zip(self.names, self.shares, self.before, self.after, self.moves, strict=True)
        return {
            "written": str(self.path), "objective": list(self.objective),
            "checkpoints": [
                {"source": name, "share": share, "before": before, "after": after,
                 "moved": {n: str(move) for n, move in moves.items()}}
                for name, share, before, after, moves in rows
            ],
            "notes": list(self.notes),
        }  # fmt: skip


def write_merged(
    several: Alike,
    out: Path,
    weights: Sequence[float] | None = None,
    kind: str = "linear",
    spaces: Patterns | None = None,
    data: Path | None = None,
    threshold: float = THRESHOLD,
    force: bool = False,
    progress: Callable[[str], None] = silent,
) -> WrittenMerged:
    """Align checkpoints with each other, average them, and write the mean.

    It is written in the layout of the first, read back and run once on the example inputs. It is
    another network than any of them: only its loss says whether it is a good one.

    Args:
        several: from `open_alike`; their models are used up.
        out: a file or folder of the format of the first.
        weights: as for `merge`.
        kind: as for `merge`.
        spaces: what may move, as for `align`.
        data: a file of inputs, as for `write_aligned`.
        threshold: the largest aligned distance from the first that is merged without `force`.
        force: merge beyond the threshold as well, and replace what stands at `out`.
        progress: is told each step when it begins.

    Raises:
        CheckpointError: as `Alike.symmetry`; an aligned checkpoint is farther than the threshold;
            weights that are none; the system does not let the mean be written, or it computes
            numbers that are not finite.
    """
    first = several.checkpoints[0]
    several.require_weights()
    refuse_source(out, several.files())
    require_writable(first, out, force)
    _check_weights(weights, several.names)
    symmetry = several.symmetry(progress)
    if spaces is not None and not isinstance(spaces, str):
        check_names(symmetry, "--spaces", [*spaces])
    states = several.states()
    aligner = partial(align, spaces=spaces, progress=progress)
    with refused(several.names[1], ALIGNABLE):
        read = None if data is None else reader(first, symmetry, data, progress)
        progress("aligning")
        found = merge(  # refused below, in the words of the command
            symmetry, states, aligner, weights, kind, read=read, threshold=threshold, force=True
        )
    if not force:
        _require_near(symmetry, several.names, found, threshold)
    before = [relative_distances(symmetry, states[0], state)[""] for state in states]
    with stored(first, out, found.params, force, progress) as model:
        if not all(bool(y.isfinite().all()) for y in outputs_of(model, first)):
            raise CheckpointError(
                str(out), "the mean computes numbers that are not finite on the example inputs",
                "finite outputs", "Nothing is kept. Look at the distances with paramsym compare",
            )  # fmt: skip
    shares = [1.0] * len(states) if weights is None else [*weights]
    return WrittenMerged(
        out, tuple(several.names), tuple(share / sum(shares) for share in shares), tuple(before),
        found.distances, tuple(moves_of(element) for element in found.elements), found.objective,
        (*several.notes(), *_statistics(found.params)),
    )  # fmt: skip


def _check_weights(weights: Sequence[float] | None, names: Sequence[str]) -> None:
    if weights is None:
        return
    said = " ".join(f"--weight {weight:g}" for weight in weights)
    if len(weights) != len(names):
        raise CheckpointError(
            said, f"{len(weights)} weights for {len(names)} checkpoints", "one for each, in order",
            "Give --weight as often as there are checkpoints, or leave it out",
        )  # fmt: skip
    if not all(0 < weight < float("inf") for weight in weights):
        raise CheckpointError(
            said, "a weight that is not positive", "positive numbers",
            "Leave out the checkpoint that should not count",
        )  # fmt: skip


def _require_near(
    symmetry: ParameterSymmetry, names: Sequence[str], found: Merged, threshold: float
) -> None:
    """Refuse where the mean is likely to be no network at all."""
    worst = max(range(len(names)), key=lambda i: found.distances[i])
    if found.distances[worst] <= threshold:
        return
    apart = relative_distances(symmetry, found.aligned[0], found.aligned[worst])
    tensors = sorted((n for n in apart if n), key=lambda n: -apart[n])[:3]
    raise CheckpointError(
        names[worst],
        f"after alignment it is at a distance of {found.distances[worst]:.3f} from {names[0]}, "
        f"farthest in {', '.join(f'{n!r} ({apart[n]:.2f})' for n in tensors)}",
        f"at most {threshold:g}, where 1 is that of orthogonal weights: beyond it the mean is "
        "hardly a network",
        "Check that the two are trained on one task; --force merges all the same",
    )


def _statistics(params: Mapping[str, torch.Tensor]) -> list[str]:
    """What has to be said of running statistics, which averaging does not make right."""
    names = [name for name in params if name.endswith(_STATISTICS)]
    if not names:
        return []
    return [f"{len(names)} running statistics of batch norms were averaged like weights, and are "
            "not those of the merged network: take them anew from data"]  # fmt: skip

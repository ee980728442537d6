"""Write one checkpoint from several of one architecture, aligned first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from paramsym.checkpoints.activations import reader
from paramsym.checkpoints.aligned import ALIGNABLE
from paramsym.checkpoints.alike import Alike
from paramsym.checkpoints.equivalent import (
    Transformed,
    check_names,
    outputs_of,
    require_writable,
)
from paramsym.checkpoints.errors import CheckpointError, refused
from paramsym.checkpoints.moved import moved_or_planned
from paramsym.checkpoints.moves import Move, moves_of
from paramsym.checkpoints.moving import AS_USUAL, Moving, Writing
from paramsym.checkpoints.plan import Plan
from paramsym.checkpoints.source import Source, Weights
from paramsym.checkpoints.streaming.job import Job
from paramsym.checkpoints.streaming.mean import mean_of
from paramsym.checkpoints.told import Told
from paramsym.checkpoints.writing import refuse_source
from paramsym.geometry.alignment import align
from paramsym.merging.differences import relative_distances
from paramsym.merging.merge import Merged, merge
from paramsym.merging.shares import normalised
from paramsym.structure.agreed import digest
from paramsym.structure.element import GroupElement
from paramsym.structure.patterns import Patterns
from paramsym.structure.symmetry import ParameterSymmetry

THRESHOLD = 0.9  # aligned distance beyond which merging is hopeless
_STATISTICS = ("running_mean", "running_var")
# What is said of an equivalent, which a mean is not.
_OF_EQUALS = ("error", "tolerance", "changed", "parameters", "element")
_LOADED = (
    "the files do not spell one model alike, or not as a great circle needs it: all weights are "
    "loaded, and the mean is written as a whole"
)


@dataclass(frozen=True)
class WrittenMerged(Told):
    """What was written, and how far from the first checkpoint the others were before and after.

    Each of `names` has a relative distance of its weights from those of the first one, as they are
    stored, and what was moved.
    """

    written: Transformed | Plan
    names: tuple[str, ...]
    shares: tuple[float, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    moves: tuple[dict[str, Move], ...]
    objective: tuple[float, ...]
    notes: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """Where the mean is."""
        return self.written.path

    def numbers(self) -> dict[str, Any]:
        """What was written, and one row for each checkpoint."""
        rows = zip(self.names, self.shares, self.before, self.after, self.moves, strict=True)
        written = {n: x for n, x in self.written.numbers().items() if n not in _OF_EQUALS}
        return {
            **written, "objective": list(self.objective),
            "checkpoints": [
                {"source": name, "share": share, "before": before, "after": after,
                 "moved": {n: str(move) for n, move in moves.items()}}
                for name, share, before, after, moves in rows
            ],
            "notes": list(dict.fromkeys((*self.notes, *self.written.notes))),
        }  # fmt: skip


def write_merged(
    several: Alike,
    out: Path,
    weights: Sequence[float] | None = None,
    kind: str = "linear",
    spaces: Patterns | None = None,
    data: Path | None = None,
    threshold: float = THRESHOLD,
    how: Writing = AS_USUAL,
) -> WrittenMerged:
    """Align checkpoints with each other, average them, and write the mean.

    It is written in the layout of the first, as `write_moved` does: tensor by tensor, where the
    files of all spell the model alike. It is another network than any of them, of which only its
    loss says whether it is a good one: what was written is read back and run once on the example
    inputs. All are in memory while they are aligned.

    Args:
        several: from `open_alike`; their models are used up.
        out: a file or folder of the format of the first.
        weights: as for `merge`.
        kind: as for `merge`.
        spaces: what may move, as for `align`.
        data: a file of inputs, as for `write_aligned`.
        threshold: the largest aligned distance from the first that is merged without `how.force`.
        how: how it is written.

    Raises:
        CheckpointError: as `write_moved` and `Alike.symmetry`; an aligned checkpoint is farther
            than the threshold; weights that are none; or the mean computes numbers that are not
            finite.
    """
    several.require_weights()
    refuse_source(out, several.files())
    require_writable(several.checkpoints[0], out, how.again)
    _check_weights(weights, several.names)
    streams, parts = several.streamable() is not None, _parts(several, kind)
    if parts is None:
        several.load()
    symmetry = several.symmetry(how.progress)
    if spaces is not None and not isinstance(spaces, str):
        check_names(symmetry, "--spaces", [*spaces])
    found, before = _found(several, symmetry, weights, kind, spaces, data, how)
    if not how.force:
        _require_near(symmetry, several.names, found, threshold)
    notes = (*several.notes(), *_statistics(found.params))
    if streams and parts is None:
        notes += (_LOADED,)
    shares = normalised("merge", weights, len(before))
    mean = None if parts is not None else found.params
    found = replace(found, params={}, aligned=())  # writing by pieces needs none of them
    said = {"checkpoints": several.names, "spaces": spaces, "data": data and str(data)}
    moving = _moving(several, out, symmetry, found.elements, shares, kind, said, parts, mean, how)
    return WrittenMerged(
        moved_or_planned(moving, how), tuple(several.names), shares, before, found.distances,
        tuple(moves_of(element) for element in found.elements), found.objective, notes,
    )  # fmt: skip


def _parts(several: Alike, kind: str) -> list[Weights] | None:
    """The files of all, where their mean can be taken tensor by tensor of them.

    A great circle is one of a tensor of the model, whose angle its parts alone do not know.
    """
    found = several.spelled_alike()
    if found is None or kind == "linear":
        return found
    divided = any(len(parts) > 1 for parts in found[0].joins.parts.values())
    return None if divided else found


def _found(
    several: Alike, symmetry: ParameterSymmetry, weights: Sequence[float] | None, kind: str,
    spaces: Patterns | None, data: Path | None, how: Writing,
) -> tuple[Merged, tuple[float, ...]]:  # fmt: skip
    """The aligned checkpoints, and how far from the first one each is before."""
    states, progress = several.numbers(), how.progress
    aligner = partial(align, spaces=spaces, progress=progress)
    with refused(several.names[1], ALIGNABLE):
        read = None
        if data is not None:
            read = reader(several.checkpoints[0].loaded(), symmetry, data, progress)
        progress("aligning")
        found = merge(symmetry, states, aligner, weights, kind, read=read, force=True)
    before = tuple(relative_distances(symmetry, states[0], state)[""] for state in states)
    return found, before


def _moving(
    several: Alike, out: Path, symmetry: ParameterSymmetry, elements: Sequence[GroupElement],
    shares: Sequence[float], kind: str, said: Mapping[str, Any], parts: list[Weights] | None,
    mean: Mapping[str, torch.Tensor] | None, how: Writing,
) -> Moving:  # fmt: skip
    """The move of the first to the mean of all: by pieces, of `parts`, or of `mean` as a whole."""
    first = several.checkpoints[0]
    stamps = [_stamps(source) for source in several.checkpoints]
    each = zip(stamps, elements, shares, strict=True)
    besides = {
        "kind": kind,
        "checkpoints": [
            {"files": files, "element": digest(element).hex(), "share": share}
            for files, element, share in each
        ],
    }
    for other in several.checkpoints[1:]:
        other.model = torch.nn.Module()
    whole = Moving(
        out, symmetry, lambda _: elements[0], first, None, several.files(), "merge", said, None,
        check=partial(_require_finite, out, first), notes=tuple(first.notes), besides=besides,
        moved=lambda _, before: before if mean is None else mean,
    )  # fmt: skip
    if parts is None:
        return whole
    own, *rest = parts
    others = [
        Job(each.checkpoint, symmetry, element, each.names, each.windows)
        for each, element in zip(rest, elements[1:], strict=True)
    ]
    job = partial(mean_of, others=others, shares=shares, path=kind)
    return replace(whole, weights=own, job=job, check=whole.check if how.verify else None)


def _stamps(source: Source) -> list[list[Any]]:
    """The files of a source as they are now: name, size and time."""
    weights = source.streamable()
    if weights is not None:
        return [[file.name, *file.stamp] for file in weights.checkpoint.files]
    found = [(path.name, path.stat()) for path in source.files if path.is_file()]
    return [[name, stat.st_size, str(stat.st_mtime_ns)] for name, stat in found]


def _require_finite(out: Path, first: Source, model: torch.nn.Module) -> None:
    """Refuse a mean that computes no numbers."""
    if not all(bool(y.isfinite().all()) for y in outputs_of(model, first)):
        raise CheckpointError(
            str(out), "the mean computes numbers that are not finite on the example inputs",
            "finite outputs", "Nothing is kept. Look at the distances with paramsym compare",
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

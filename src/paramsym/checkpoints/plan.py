"""What `transform` would write, and what it needs, before it does so."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from paramsym.algebra.monomial import Trivial
from paramsym.checking.refute import LARGEST
from paramsym.checkpoints.checkpoint import Entry, Opened
from paramsym.checkpoints.source import Source
from paramsym.checkpoints.streaming.job import Job, one_thread
from paramsym.checkpoints.streaming.layout import Layout
from paramsym.checkpoints.told import Told
from paramsym.engines import Engine
from paramsym.structure.patterns import matching
from paramsym.structure.symmetry import ParameterSymmetry

# Copies of the weights at the peak where they are loaded: the model, its state before and after the
# move, what a writer holds or a reader fills, and one tensor on its way. Measured at 400 MB: 4.1 to
# 4.4. Halves count as float32 where the symmetry is tried in it: 151 MB of bfloat16 took 1.35 GB.
COPIES = 5
_SAMPLE = 1 << 25  # bytes of a tensor by which the speed of its kind is measured


@dataclass(frozen=True)
class Plan(Told):
    """The files that `transform` would write, and what that needs.

    `files` are names and bytes; `memory` is the peak in bytes, beside what Python and torch
    themselves take; `moves` are the spaces and shifts that would move, `tensors` the tensors of the
    files; `seconds` is an estimate from a measurement, None where weights have to be loaded;
    `notes` are what should be known of how the files were read.
    """

    path: Path
    files: dict[str, int]
    read: int
    memory: int
    free: int
    moves: list[str]
    tensors: list[str]
    seconds: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """What will be written, in sum."""
        return sum(self.files.values())

    def numbers(self) -> dict[str, Any]:
        """The plan, with the bytes in sum."""
        return {**asdict(self), "path": str(self.path), "bytes": self.bytes,
                "notes": list(self.notes)}  # fmt: skip

    def __str__(self) -> str:
        rows = [
            ("would write", str(self.path)),
            *((f"{size:,}", f"bytes  {name}") for name, size in self.files.items()),
            (f"{self.bytes:,}", f"bytes in sum, of {self.free:,} that are free"),
            (f"{self.read:,}", "bytes are read"),
            (f"{self.memory:,}", "bytes of memory at most"),
            (f"{len(self.moves):,}", "spaces and shifts would move"),
            (f"{len(self.tensors):,}", f"tensors would move: {_shown(self.tensors)}"),
        ]
        if self.seconds is not None:
            rows.append((f"{self.seconds:.0f}", "seconds, from a measurement of some rows"))
        width = max(len(left) for left, _ in rows)
        return "\n".join(f"{left:>{width}}  {right}" for left, right in rows)


def _shown(names: list[str], limit: int = 6) -> str:
    """Names of which the numbers of layers are left out."""
    kinds: dict[str, int] = {}
    for name in names:
        kind = ".".join("*" if part.isdecimal() else part for part in name.split("."))
        kinds[kind] = kinds.get(kind, 0) + 1
    said = [f"{count} × {kind}" if count > 1 else kind for kind, count in kinds.items()]
    return ", ".join(said[:limit]) + (" …" if len(said) > limit else "") or "none"


def plan_of_source(
    source: Source, symmetry: ParameterSymmetry, out: Path, only: list[str] | None = None
) -> Plan:
    """What moving a source takes whose weights have to be loaded."""
    names = [*symmetry.spaces, *(shift.name for shift in symmetry.shifts)]
    moving = [name for name in names if _moves(symmetry, name)]
    if only:
        chosen = set(matching(only, names, "--only"))
        moving = [name for name in moving if name in chosen]
    state = {id(t): t for t in source.model.state_dict(keep_vars=True).values()}.values()
    tried = 4 * source.parameters <= LARGEST
    weights = sum(t.numel() * max(t.element_size(), 4 if tried else 1) for t in state)
    read = sum(path.stat().st_size for path in source.files if path.is_file())
    movers = {n: set(symmetry.movers.get(n, ())) for n in symmetry.signature}
    return Plan(
        out, source.planned(out), read, COPIES * weights, _free(out), moving,
        [name for name, own in movers.items() if own & set(moving)],
    )  # fmt: skip


def plan_of_files(
    job: Job, layout: Layout, out: Path, engine: Engine, aside: Mapping[str, int]
) -> Plan:
    """What a move from files to files takes; some rows of each kind of tensor are moved for it.

    `aside` are other files that are copied, and their sizes.
    """
    files = {file.name: file.bytes for file in layout.files}
    if layout.index is not None:
        files[layout.index[0]] = len(layout.index[1].encode())
    files |= aside
    largest = sorted((job.memory(name) for name in job.checkpoint), reverse=True)
    places = [name for name in job.places if _moves(job.symmetry, name)]
    return Plan(
        out, files, job.bytes, sum(largest[: engine.workers]), _free(out), places,
        job.moving, _seconds(job, out) / engine.workers,
    )  # fmt: skip


def _seconds(job: Job, out: Path) -> float:
    """How long one worker takes: rows of one tensor of each kind are moved, and written nowhere."""
    kinds: dict[tuple[Any, ...], list[Entry]] = {}
    for name, entry in job.checkpoint.entries.items():
        kinds.setdefault((entry.code, entry.shape, job.kind(name)), []).append(entry)
    total = 0.0
    with (
        one_thread(),
        Opened(job.checkpoint) as opened,
        tempfile.TemporaryFile(dir=out.absolute().parent) as file,
    ):
        for entries in kinds.values():
            size = sum(entry.bytes for entry in entries)
            started, seen = time.perf_counter(), 0
            for panel in _some(job, opened, entries[0]):
                seen += file.write(panel.contiguous().view(-1).view(torch.uint8).numpy().data)
            total += (time.perf_counter() - started) * size / max(1, seen)
            file.seek(0)
    return total


def _some(job: Job, opened: Opened, entry: Entry) -> Iterator[torch.Tensor]:
    """The first panels of a tensor, one at least."""
    count = 0
    for panel in job.panels(opened, entry.name, opened[job.source(entry.name)]):
        yield panel
        count += panel.numel() * panel.element_size()
        if count >= _SAMPLE:
            return


def _free(out: Path) -> int:
    return shutil.disk_usage(out.absolute().parent).free


def _moves(symmetry: ParameterSymmetry, name: str) -> bool:
    """Everything but a space whose group is trivial."""
    return name not in symmetry.spaces or not isinstance(symmetry.spaces[name].group, Trivial)

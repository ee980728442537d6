"""What is done to each tensor of a checkpoint: some rows are read, moved, and written."""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import xxhash

from paramsym.checkpoints.checkpoint import Checkpoint, Hash, Opened, Room
from paramsym.checkpoints.errors import CheckpointError, few, refused
from paramsym.checkpoints.streaming.layout import Piece
from paramsym.checkpoints.streaming.parts import bytes_needed, moved_rows
from paramsym.checkpoints.streaming.quantised import StoredMove
from paramsym.checkpoints.streaming.recognising import Storage
from paramsym.checkpoints.streaming.sayable import stored_moves
from paramsym.checkpoints.streaming.spelling import Tensors
from paramsym.checkpoints.streaming.windows import Joins
from paramsym.checkpoints.tensors import check_finite, overflowed
from paramsym.formats.drafts import forget
from paramsym.structure.action import act_tensor, check_tensor
from paramsym.structure.element import GroupElement, Slide
from paramsym.structure.fast import Rows
from paramsym.structure.layout import working_dtype_of
from paramsym.structure.needs import steps
from paramsym.structure.panels import PANEL, Needed, Way, act_panels, as_they_are, way_of
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.windowed import Window, windowed

_MOVABLE = "weights that can be moved"
_LEFT_OUT = "Leave what cannot be moved out of the element, with --only"


@dataclass(frozen=True)
class Moves:
    """How a tensor of the files moves: as the tensor `own` of a symmetry, by an element of it.

    `source` is the tensor of the files that is moved so; None where it is a window on a tensor that
    has to be put together and moved as a whole.
    """

    own: str
    symmetry: ParameterSymmetry
    element: GroupElement
    way: Way
    source: str | None = None


@dataclass(frozen=True)
class Job:
    """Weights, the element that moves them, and how the files spell the names of the model.

    `names` maps a name of the files to that of the model; what it leaves out is copied. `windows`
    are those of the names that are not the whole of that tensor.
    """

    checkpoint: Checkpoint
    symmetry: ParameterSymmetry
    element: GroupElement
    names: Mapping[str, str]
    windows: Mapping[str, Window] = field(default_factory=dict)

    @cached_property
    def acting(self) -> GroupElement:
        """The element with its matrices in the dtype in which all weights are moved, if there is
        one: cast here, and not for every tensor."""
        entries = self.checkpoint.entries.values()
        dtypes = {working_dtype_of(e.dtype) for e in entries if e.dtype.is_floating_point}
        if len(dtypes) != 1:
            return self.element
        (dtype,) = dtypes
        parts = tuple(
            part
            if isinstance(part, Slide)
            else {n: v if v.matrix is None else v.to(dtype) for n, v in part.items()}
            for part in self.element.parts
        )
        return GroupElement(self.element.symmetry, parts)

    @cached_property
    def joins(self) -> Joins:
        """The tensors of the model that are put together from several of the files."""
        return Joins(self.names, self.windows)

    @cached_property
    def spelled(self) -> dict[str, str]:
        """Each name of the signature, and each tied one, as the files spell it."""
        return self.joins.spelled(self.symmetry.ties)

    @cached_property
    def storage(self) -> Storage:
        """How the weights are stored that are quantised."""
        return Storage(self.checkpoint, self.symmetry, self.names)

    @cached_property
    def stored(self) -> dict[str, StoredMove]:
        """Each tensor of the files by which a quantised weight is stored that moves, and how."""
        return stored_moves(self.storage, self.element)

    @property
    def moving(self) -> list[str]:
        """The tensors of the files that move."""
        return [*self.ways, *self.stored]

    def moves(self, name: str) -> bool:
        """Whether a tensor of the files moves."""
        return name in self.ways or name in self.stored

    @cached_property
    def ways(self) -> dict[str, Moves]:
        """Each tensor of the files that moves, and how. Without quantised weights, see `stored`."""
        found = {}
        for name, model in self.names.items():
            if name in self.storage.beside:
                continue
            own = self.symmetry.ties.get(model, model)
            if own in self.symmetry.movers:
                with one_thread():  # others would wait for each other longer than they work
                    moves = self._moves(name, own)
                if moves.way.moves or moves.source not in (None, name):
                    found[name] = moves
        return found

    def _moves(self, name: str, own: str) -> Moves:
        symmetry, element, meta = self.symmetry, self.acting, self.checkpoint.entries[name].meta
        if name not in self.windows:
            return Moves(own, symmetry, element, way_of(symmetry, element, own, meta), name)
        window, found = self.windows[name], steps(symmetry, element, own)
        small = windowed(symmetry, element, own, window, found) if found.moved else None
        source = small and self.joins.files.get((self.names[name], small.source))
        if small is None or source is None:  # or nothing moves it
            return Moves(own, symmetry, element, Way(found, Needed.ALL))
        way = way_of(small.symmetry, small.element, own, meta)
        return Moves(own, small.symmetry, small.element, way, source)

    def source(self, name: str) -> str:
        """The tensor of the files that one is read from: of experts in another order, another."""
        return (self.ways[name].source or name) if name in self.ways else name

    def memory(self, name: str) -> int:
        """Bytes that moving a tensor of the files takes at most."""
        entry = self.checkpoint.entries[name]
        if name in self.stored:
            return bytes_needed(entry.meta, self.stored[name])
        if name not in self.ways:
            return min(PANEL, entry.bytes)
        moves = self.ways[name]
        if moves.source is None:
            return moves.way.memory(self.meta[self.spelled[moves.own]])
        return moves.way.memory(entry.meta)

    def panels(self, opened: Tensors, name: str, tensor: Rows) -> Iterator[torch.Tensor]:
        """The rows of one tensor, moved; `tensor` is its `source` in the open files."""
        if name in self.stored:
            return moved_rows(tensor, self.stored[name], name, self.checkpoint.place.address)
        if name not in self.ways:
            return as_they_are(tensor)
        moves, rows = self.ways[name], self.joins.of(opened)
        others = [n for n in moves.way.steps.names if n in self.spelled and n != moves.own]
        tensors = {n: rows[self.spelled[n]][:] for n in others}
        for other, found in tensors.items():
            require_finite(self, self.spelled[other], found)
        if moves.source is not None:
            return act_panels(
                moves.symmetry, moves.element, moves.own, {**tensors, moves.own: tensor},
                moves.way,
            )  # fmt: skip
        for panel in as_they_are(tensor):  # for its hash
            require_finite(self, name, panel)
        whole = {**tensors, moves.own: rows[self.spelled[moves.own]][:]}
        moved = act_tensor(moves.symmetry, moves.element, moves.own, whole)
        return iter([self.windows[name](moved).contiguous()])

    def kind(self, name: str) -> Hashable:
        """What tensors have in common that take as long as each other, besides dtype and shape."""
        return self.ways[name].way.rows if name in self.ways else name in self.stored

    @property
    def places(self) -> list[str]:
        """The spaces and shifts that move."""
        return list(self.element.places)

    @property
    def bytes(self) -> int:
        """What is read."""
        return self.checkpoint.bytes

    @cached_property
    def meta(self) -> dict[str, torch.Tensor]:
        """All tensors, those that are put together as well, without numbers."""
        return {**self.checkpoint.meta(), **self.joins.meta(self.checkpoint.entries)}


@dataclass(frozen=True)
class Done:
    """What became of a piece: hashes of what was read and written, and how many numbers moved."""

    hashes: dict[str, str]
    written: dict[str, str]
    moved: int

    def numbers(self) -> dict[str, Any]:
        """As a journal holds it."""
        return {"hashes": self.hashes, "written": self.written, "moved": self.moved}


def require_fitting(job: Job) -> None:
    """Ask for every tensor whether it can be moved: what can be refused is, before it is read.

    One without a plan is moved on the meta device.

    Raises:
        CheckpointError: a tensor that has to move is missing, has another shape than its type, or
            numbers that cannot carry the element; a quantised weight cannot say where it goes.
    """
    where = job.checkpoint.place.address
    _ = job.stored
    lost = [
        name for name, movers in job.symmetry.movers.items()
        if movers and name not in job.spelled and steps(job.symmetry, job.element, name).moved
    ]  # fmt: skip
    if lost:
        raise CheckpointError(
            where, f"{few(lost)} missing, which the element moves",
            "all tensors of the model that the symmetry was derived from",
            "Give the weights of that model, or an element of these weights",
        )  # fmt: skip
    meta = job.meta
    with refused(where, _MOVABLE, _LEFT_OUT):
        for moves in job.ways.values():
            needed = moves.way.steps.names
            given = {n: meta[job.spelled[n]] for n in needed if n in job.spelled}
            if moves.source is not None:
                given[moves.own] = meta[moves.source]
            move = act_tensor if moves.way.plans is None else check_tensor
            move(moves.symmetry, moves.element, moves.own, given)


@contextmanager
def one_thread() -> Iterator[None]:
    """torch with one thread: the sums of matrix products must not depend on how many there are."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _Rooms(threading.local):
    """Memory to read into, of each thread."""

    def __init__(self) -> None:
        self.room = Room()


_ROOMS = _Rooms()


# Integers of each dtype's size, and what the bits of infinity and of minus infinity are as such.
_INTEGERS = {
    torch.float16: (torch.int16, "uint16", 0x7C00, 0xFC00),
    torch.bfloat16: (torch.int16, "uint16", 0x7F80, 0xFF80),
    torch.float32: (torch.int32, "uint32", 0x7F80_0000, 0xFF80_0000),
    torch.float64: (torch.int64, "uint64", 0x7FF0 << 48, 0xFFF0 << 48),
}


def part_of(path: Path) -> Path:
    """What a file is called until all of it is there."""
    return path.with_name(path.name + ".part")


def write_piece(job: Job, folder: Path, piece: Piece) -> Done:
    """Move the tensors of a piece and write them to their places in a file that exists.

    The bytes are on the disk when it returns; to do it twice changes nothing.

    Raises:
        CheckpointError: a number is not finite, a source has changed, or cannot be read.
        OSError: the system does not let it be written.
    """
    hashes, written, moved = {}, {}, 0
    file = os.open(part_of(folder / piece.file), os.O_WRONLY | getattr(os, "O_BINARY", 0))
    try:
        with Opened(job.checkpoint) as opened:
            for placed in piece.tensors:
                seen, made = xxhash.xxh3_128(), xxhash.xxh3_128()
                source = job.source(placed.entry.name)
                tensor = opened.tensor(source, _ROOMS.room, seen)
                at = placed.start
                with refused(job.checkpoint.place.address, _MOVABLE, _LEFT_OUT):
                    for panel in job.panels(opened, placed.entry.name, tensor):
                        require_moved(job, placed.entry.name, panel, tensor)
                        at = _write(file, at, panel, made)
                assert at == placed.start + placed.entry.bytes
                moved += tensor.shape.numel() if job.moves(placed.entry.name) else 0
                hashes[source] = seen.hexdigest()
                written[placed.entry.name] = made.hexdigest()
        os.fsync(file)
        if piece.tensors:
            forget(file, piece.tensors[0].start, piece.bytes)
    finally:
        os.close(file)
    opened.require_unchanged()
    return Done(hashes, written, moved)


def _write(file: int, at: int, panel: torch.Tensor, made: Hash) -> int:
    """Write numbers at a place; where the next ones go."""
    data = panel.contiguous().view(-1).view(torch.uint8).numpy().data
    made.update(data)
    done = 0
    while done < len(data):
        done += os.pwrite(file, data[done:], at + done)
    return at + done


def require_finite(job: Job, name: str, panel: torch.Tensor) -> None:
    """Raise for NaN and infinities in what was read."""
    if not _is_finite(panel):
        resting = job.names.get(name) in job.symmetry.buffers or not job.moves(name)
        masks = {name} if resting else set()  # infinities that somebody may have meant
        check_finite({name: panel}, job.checkpoint.place.address, masks)


def require_moved(job: Job, name: str, panel: torch.Tensor, tensor: Rows) -> None:
    """Raise for NaN and infinities in rows to be written, which what is read or the move has made.

    Args:
        job: what moves them.
        name: of the tensor that is written.
        panel: some of its rows.
        tensor: where they come from, which is read again if it has to be known.
    """
    try:
        require_finite(job, name, panel)
    except CheckpointError:
        if not job.moves(name):
            raise
        for rows in as_they_are(tensor):
            require_finite(job, job.source(name), rows)
        raise overflowed(job.checkpoint.place.address, name, panel) from None


def _is_finite(panel: torch.Tensor) -> bool:
    """Whether there is no NaN and no infinity: their bits are the largest integers of a sign."""
    if panel.dtype not in _INTEGERS or not panel.numel():
        return True
    signed, unsigned, infinite, negative = _INTEGERS[panel.dtype]
    bits = panel.view(-1).view(signed).numpy()
    return not (bits.max() >= infinite or bits.view(unsigned).max() >= negative)

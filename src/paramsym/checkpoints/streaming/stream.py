"""A job done piece by piece: interrupted or not, the files that it leaves are the same."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from paramsym.checkpoints.errors import CheckpointError
from paramsym.checkpoints.streaming.job import Job, one_thread, part_of, write_piece
from paramsym.checkpoints.streaming.journal import Journal, journal_of, remove
from paramsym.checkpoints.streaming.layout import Layout, NewFile, Piece
from paramsym.checkpoints.writing import refuse_existing, refuse_small_disk, settle, system_reason
from paramsym.engines import Engine
from paramsym.formats.drafts import flush, reserve
from paramsym.formats.errors import Transient

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Streamed:
    """What a run wrote, all of it: also what was done before it was resumed.

    `hashes` are those of the tensors that were read, `written` those of what they became.
    """

    hashes: dict[str, str]
    written: dict[str, str]
    moved: int


@contextmanager
def streamed(
    job: Job, layout: Layout, target: Path, request: Mapping[str, Any], engine: Engine,
    resume: bool = False, force: bool = False, progress: Progress = lambda _: None,
) -> Iterator[tuple[Path, Streamed]]:  # fmt: skip
    """Do a job; inside the block stands what was written, under a name that is not yet its own.

    When the block ends without an error it gets its name at once. After an error of the system (a
    full disk, an interrupt, a source out of reach) the run stays as it is, to be resumed; after one
    of the input nothing stays.

    Args:
        job: what is moved.
        layout: the files to be written: one, or several and an index in a folder.
        target: what they become.
        request: what is asked for, in plain values: only the same can be resumed.
        engine: who does the pieces.
        resume: go on with a run for this target that was interrupted.
        force: replace what stands at `target`.
        progress: is told what is being done, with rate and remaining time.

    Raises:
        CheckpointError: another run writes there; the run that is to be resumed was asked for
            something else; or the system does not let it be written.
    """
    with journal_of(target) as journal:
        try:
            refuse_existing(target, force)
            _begin(journal, target, request, resume)
            _require_room(journal, target, layout.bytes)
            draft = journal.made / target.name
            folder = draft if layout.in_folder else journal.made
            with _resumable(target):
                _write_all(job, layout, folder, journal, engine, progress)
                progress("flushing")
            made = journal.done.values()
            hashes = {n: h for said in made for n, h in said["hashes"].items()}
            written = {n: h for said in made for n, h in said["written"].items()}
            moved = sum(said["moved"] for said in made)
            with _resumable(target):
                yield draft, Streamed(hashes, written, moved)
                flush(draft)
                settle(draft, target, journal.folder / "replaced")
            remove(journal.folder)
        except CheckpointError as error:
            if not isinstance(error, Transient):
                remove(journal.folder)
            raise


class Interrupted(Transient):
    """The system stopped a run that can be resumed."""


@contextmanager
def _resumable(target: Path) -> Iterator[None]:
    """What the system refuses, as an error after which what is done stays."""
    try:
        yield
    except CheckpointError:
        raise
    except (OSError, RuntimeError) as error:
        reason = system_reason(error)
        if reason is None:
            raise
        raise Interrupted(
            str(target), f"writing stopped ({reason})", "room for all of it",
            "What is done is kept: make room and go on with --resume; without it the next run for "
            "this target begins anew",
        ) from error  # fmt: skip


def _begin(journal: Journal, target: Path, request: Mapping[str, Any], resume: bool) -> None:
    """Begin a run, or go on with one of the same request."""
    found = journal.read() if resume else None
    if found is None:
        return journal.begin(request)
    different = [key for key in {**found, **request} if found.get(key) != request.get(key)]
    if different:
        key = different[0]
        raise Interrupted(
            f"--resume {target}", f"the run there was asked for another {key} "
            f"({_short(found.get(key))} instead of {_short(request.get(key))})",
            "the same source, element and layout", "Begin anew without --resume",
        )  # fmt: skip


def _require_room(journal: Journal, target: Path, size: int) -> None:
    """Raise where the disk has too little room besides what an earlier run has taken already."""
    stats = [file.stat() for file in journal.made.rglob("*") if file.is_file()]
    taken = sum(512 * s.st_blocks if hasattr(s, "st_blocks") else s.st_size for s in stats)
    try:
        refuse_small_disk(target, size - taken)
    except CheckpointError as error:
        if not taken:
            raise
        raise Interrupted(error.where, error.came, error.expected, error.instead) from error


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _write_all(
    job: Job, layout: Layout, folder: Path, journal: Journal, engine: Engine, progress: Progress
) -> None:
    """Every piece that is not done yet, and the name of each file whose pieces all are."""
    folder.mkdir(exist_ok=True)
    with one_thread():
        _write_pieces(job, layout, folder, journal, engine, progress)
    if layout.index is not None:
        name, text = layout.index
        (folder / name).write_text(text, encoding="utf-8")


def _write_pieces(
    job: Job, layout: Layout, folder: Path, journal: Journal, engine: Engine, progress: Progress
) -> None:
    pieces = list(layout.pieces())
    files = {file.name: file for file in layout.files}
    _forget_lost(journal, pieces, files, folder)
    left: dict[str, int] = dict.fromkeys(files, 0)
    todo: list[Piece] = []
    for piece in pieces:
        if piece.key not in journal.done:
            todo.append(piece)
            left[piece.file] += 1
    for name, count in left.items():
        if count:
            _prepare(folder, files[name])
        else:
            _finish(folder, name)
    rate = _Rate(sum(p.bytes for p in pieces), sum(p.bytes for p in todo), progress)
    for place, done in engine.map(partial(write_piece, job, folder), todo):
        piece = todo[place]
        journal.add(piece.key, {**done.numbers(), "bytes": piece.bytes})
        left[piece.file] -= 1
        if not left[piece.file]:
            _finish(folder, piece.file)
        rate.add(piece.bytes)


def _forget_lost(
    journal: Journal, pieces: list[Piece], files: Mapping[str, NewFile], folder: Path
) -> None:
    """Count only pieces of this layout as done, in files that are there and have their size."""
    whole = {
        name for name, file in files.items()
        if any(p.is_file() and p.stat().st_size == file.bytes
               for p in (folder / name, part_of(folder / name)))
    }  # fmt: skip
    known = {piece.key for piece in pieces if piece.file in whole}
    journal.done = {key: said for key, said in journal.done.items() if key in known}


def _prepare(folder: Path, file: NewFile) -> None:
    """A file of the right size with its head, into which pieces can be written."""
    part = part_of(folder / file.name)
    with part.open("r+b" if part.exists() else "wb") as out:
        out.write(file.head)
        out.flush()
        reserve(out.fileno(), file.bytes)
        os.fsync(out.fileno())


def _finish(folder: Path, name: str) -> None:
    part = part_of(folder / name)
    if part.exists():
        os.replace(part, folder / name)


class _Rate:
    """Tells how much is done, how fast, and how long the rest will take."""

    def __init__(self, total: int, left: int, progress: Progress):
        self.total, self.done, self.first = total, total - left, total - left
        self.progress, self.started = progress, time.monotonic()
        self.add(0)

    def add(self, count: int) -> None:
        """More bytes are done."""
        self.done += count
        said = f"moving {self.done / 1e9:.1f} of {self.total / 1e9:.1f} GB"
        seconds = time.monotonic() - self.started
        if self.done > self.first and seconds > 0:
            speed = (self.done - self.first) / seconds
            left = (self.total - self.done) / speed
            said += f", {speed / 1e9:.2f} GB/s, {left:.0f} s left"
        self.progress(said)

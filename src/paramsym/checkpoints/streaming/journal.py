"""What a run has done, so that another one goes on where it was killed.

A run grows in a hidden folder beside its target, of a name that follows from the target's, so that
every other run for this target finds it. In it are

    lock           locked by the run that works there; the system releases it with the process
    journal.jsonl  first what was asked for, then a line for each piece that is on the disk
    made/          what becomes the target; a file is `….part` until all of its pieces are there

A line is written after its piece has been flushed. A line that was cut short by a kill is no line.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paramsym.checkpoints.errors import CheckpointError
from paramsym.formats.drafts import lock_of

SUFFIX = ".paramsym-run"
_LONGEST = 200  # bytes of a name: file systems take 255


def folder_of(target: Path) -> Path:
    """Where a run for a target grows."""
    name = target.name
    if len(name.encode()) > _LONGEST:
        name = f"{name[:40]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return target.absolute().parent / f".{name}{SUFFIX}"


@dataclass
class Journal:
    """The folder of a run that is locked by this process, and the pieces that are done."""

    folder: Path
    done: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def made(self) -> Path:
        """What is to become the target."""
        return self.folder / "made"

    @property
    def path(self) -> Path:
        """The file of lines."""
        return self.folder / "journal.jsonl"

    def begin(self, request: Mapping[str, Any]) -> None:
        """Forget everything, and say what is asked for."""
        _clear(self.folder)
        self.made.mkdir()
        self.done = {}
        self._append(dict(request))

    def add(self, key: str, said: Mapping[str, Any]) -> None:
        """A piece is on the disk."""
        self.done[key] = dict(said)
        self._append({"piece": key, **said})

    def read(self) -> dict[str, Any] | None:
        """What was asked for; `done` is what was done of it. None if nothing was begun."""
        if not self.path.is_file() or not self.made.is_dir():
            return None
        whole = self.path.read_bytes().rpartition(b"\n")[0]
        with self.path.open("r+b") as file:  # the next line begins where the last whole one ends
            file.truncate(len(whole) + 1 if whole else 0)
        lines = [_parsed(line) for line in whole.splitlines()]
        if not lines or lines[0] is None:
            return None
        self.done = {line["piece"]: line for line in lines[1:] if line and _is_piece(line)}
        return lines[0]

    def _append(self, said: Mapping[str, Any]) -> None:
        with self.path.open("ab") as file:
            file.write(json.dumps(said, separators=(",", ":")).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _is_piece(line: Mapping[str, Any]) -> bool:
    """Whether a line says of a piece what `add` is told."""
    hashes = line.get("hashes"), line.get("written")
    numbers = line.get("moved"), line.get("bytes")
    return (
        isinstance(line.get("piece"), str)
        and all(isinstance(each, dict) for each in hashes)
        and all(isinstance(n, int) for n in numbers)
    )


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


@contextmanager
def journal_of(target: Path) -> Iterator[Journal]:
    """The folder of the run for a target, locked for this process inside the block.

    What stands in it stays when the block ends, however it ends; `remove` takes it away.

    Raises:
        CheckpointError: another run works there, or nothing can be written beside the target.
    """
    folder = folder_of(target)
    try:
        lock = lock_of(folder)
    except OSError as error:
        raise CheckpointError(
            str(target), f"nothing can be written there ({error.strerror})",
            "a folder with permission to write, and room for all of it", "Choose another place",
        ) from error  # fmt: skip
    if lock is None:
        raise CheckpointError(
            str(target), "another run writes it at this moment", "one run for each target",
            "Wait for its end, or choose another place",
        )  # fmt: skip
    try:
        yield Journal(folder)
    finally:
        if folder.is_dir() and {p.name for p in folder.iterdir()} <= {"lock"}:
            remove(folder)
        os.close(lock)


def remove(folder: Path) -> None:
    """Take a run away, its lock last: who finds the folder without it must not begin anew."""
    _clear(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _clear(folder: Path) -> None:
    """Remove everything but the lock; links themselves, and not what they lead to."""
    for entry in folder.iterdir():
        if entry.name != "lock":
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()

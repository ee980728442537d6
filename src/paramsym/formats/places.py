"""Bytes of a file, wherever it lies: on this machine, or behind a URL that fsspec knows.

A local file is read into memory of ours and not mapped: pages of a mapped file count as memory of
the process, and one that is cut short while it is read would end the process instead of raising.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from paramsym.formats.errors import CheckpointError, Transient, first_line

# What a server says of a file that changes with it, in the words of the systems of fsspec.
_CHANGES = (
    "ETag", "etag", "md5Hash", "crc32c", "blob_id", "sha", "mtime", "LastModified",
    "last_modified", "modified", "updated", "timeModified", "created",
)  # fmt: skip
_REMOTE = "Check the address and the connection; with --resume a run goes on where it ended"


class Bytes(Protocol):
    """An open file."""

    def read_into(self, start: int, room: memoryview) -> None:
        """Fill `room` with the bytes from `start` on. Raises `CheckpointError` if there are less"""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Place:
    """Where a file or a folder lies: a path, or a URL with a protocol that fsspec knows."""

    address: str

    @property
    def is_remote(self) -> bool:
        """Whether it is read through fsspec."""
        return "://" in self.address

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.address.rstrip("/").rpartition("/")[2] if self.is_remote else self.path.name

    @property
    def path(self) -> Path:
        """The path on this machine."""
        return Path(self.address).expanduser()

    def __truediv__(self, name: str) -> Place:
        if self.is_remote:
            return Place(f"{self.address.rstrip('/')}/{name}")
        return Place(str(self.path / name))

    @property
    def parent(self) -> Place:
        """The folder that it lies in."""
        if self.is_remote:
            return Place(self.address.rstrip("/").rpartition("/")[0])
        return Place(str(self.path.parent))

    def is_file(self) -> bool:
        """Whether there is a file."""
        with self._reaching():
            system, path = self._system()
            return self.path.is_file() if system is None else system.isfile(path)

    def is_dir(self) -> bool:
        """Whether there is a folder."""
        with self._reaching():
            system, path = self._system()
            return self.path.is_dir() if system is None else system.isdir(path)

    def names(self) -> list[str]:
        """The names of the files in a folder, sorted, without what lies in folders below."""
        with self._reaching():
            system, path = self._system()
            if system is None:
                return sorted(p.name for p in self.path.iterdir() if p.is_file())
            found = system.ls(path, detail=True)
            return sorted(Place(f["name"]).name for f in found if f["type"] == "file")

    def stamp(self) -> tuple[int, str]:
        """The size in bytes, and what changes with the file: its time, or a word of the server."""
        with self._reaching():
            system, path = self._system()
            if system is None:
                found = self.path.stat()
                return found.st_size, str(found.st_mtime_ns)
            said = system.info(path)
            return int(said["size"]), str(next((said[k] for k in _CHANGES if said.get(k)), ""))

    def text(self) -> str:
        """The whole of a small file of text."""
        with self._reaching():
            system, path = self._system()
            if system is None:
                return self.path.read_text(encoding="utf-8")
            return system.cat_file(path).decode("utf-8")

    def fetch(self, to: Path) -> None:
        """Copy the file to this machine."""
        with self._reaching():
            system, path = self._system()
            if system is None:
                shutil.copyfile(self.path, to)
            else:
                system.get_file(path, str(to))

    @contextmanager
    def opened(self) -> Iterator[Bytes]:
        """The file, open for reading. Raises `CheckpointError` where it cannot be read."""
        with self._reaching():
            system, path = self._system()
            found = _Local(self) if system is None else _Remote(self, system.open(path, "rb"))
        try:
            yield found
        finally:
            found.close()

    def _system(self) -> tuple[Any, str]:
        """The file system of fsspec and the path in it; none for this machine."""
        if not self.is_remote:
            return None, ""
        from fsspec.core import url_to_fs

        return url_to_fs(self.address)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """What a system or a server says, as the one error of files."""
        try:
            yield
        except CheckpointError:
            raise
        except Exception as error:
            if not self.is_remote and not isinstance(error, (OSError, UnicodeDecodeError)):
                raise
            said = getattr(error, "strerror", None) or first_line(error)
            raise Transient(
                self.address, f"it cannot be read ({said})", "a file that can be read",
                _REMOTE if self.is_remote else "Check the path, and who may read what is there",
            ) from error  # fmt: skip


class _Local:
    """A file on this machine."""

    def __init__(self, place: Place):
        self.place, self.file = place, os.open(place.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))

    def read_into(self, start: int, room: memoryview) -> None:
        with self.place._reaching():
            done = 0
            while done < len(room):
                count = os.preadv(self.file, [room[done:]], start + done)
                if not count:
                    raise _cut_short(self.place, start + done)
                done += count

    def close(self) -> None:
        os.close(self.file)


class _Remote:
    """A file behind fsspec, which retries what its servers are known to fail at."""

    def __init__(self, place: Place, file: BinaryIO):
        self.place, self.file = place, file

    def read_into(self, start: int, room: memoryview) -> None:
        with self.place._reaching():
            self.file.seek(start)
            done = 0
            while done < len(room):
                found = self.file.read(len(room) - done)
                if not found:
                    raise _cut_short(self.place, start + done)
                room[done : done + len(found)] = found
                done += len(found)

    def close(self) -> None:
        self.file.close()


def _cut_short(place: Place, at: int) -> CheckpointError:
    return CheckpointError(
        place.address, f"the file ends at byte {at:,}, sooner than when it was opened",
        "a file that nobody writes to meanwhile", "Wait for its writer, then start anew",
    )  # fmt: skip

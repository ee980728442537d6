"""Files that appear completely or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path, mode: int | None = None) -> Iterator[Path]:
    """A path to write to, which becomes `path` when the block ends without an error.

    The file or folder grows in a closed folder beside its place, is flushed to the disk and renamed
    at the end, so that nobody ever sees half of it; after an error nothing is left, and an old file
    is as it was.

    Args:
        path: a file, or a folder that is empty or does not exist yet.
        mode: permissions of a file; by default those that the user gives to new ones.

    Raises:
        OSError: nothing can be written beside `path`, on entering the block; or the draft cannot
            take its place, at its end.
    """
    parent = path.absolute().parent
    workshop = Path(tempfile.mkdtemp(dir=parent, prefix=f".{path.name}.", suffix=".tmp"))
    try:
        draft = workshop / path.name
        yield draft
        flush(draft)
        if mode is not None:
            draft.chmod(mode)
        os.replace(draft, path)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def flush(draft: Path) -> None:
    """Have a file, or all files of a folder, on the disk."""
    for path in [draft] if draft.is_file() else [p for p in draft.rglob("*") if p.is_file()]:
        with path.open("rb") as file:
            os.fsync(file.fileno())

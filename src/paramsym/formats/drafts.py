"""Files that appear completely or not at all, by way of temporary folders beside their place.

Whatever the library writes grows in such a folder, is flushed to the disk and renamed. The folder
goes with its block, and those of killed runs go with the next run: each holds a lock file that its
writer keeps locked. The system releases the lock when the writer ends in whatever way, so that a
folder whose lock can be had belongs to nobody: unlike a process number, this also holds between
containers that share a disk.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows: nothing is known of other writers, and nothing is removed
    fcntl = None

SUFFIX = ".paramsym-draft"


@contextmanager
def replacing(path: Path, mode: int | None = None) -> Iterator[Path]:
    """A path to write to, which becomes `path` when the block ends without an error.

    Nobody ever sees half of it; after an error nothing is left, and an old file is as it was.

    Args:
        path: a file, or a folder that is empty or does not exist yet.
        mode: permissions of a file; by default those that the user gives to new ones.

    Raises:
        OSError: nothing can be written beside `path`, on entering the block; or the draft cannot
            take its place, at its end.
    """
    path = path.absolute()  # the block may change the working directory
    remove_stale(path.parent)
    with workshop(path.parent, path.name) as folder:
        draft = draft_in(folder, path)
        yield draft
        flush(draft)
        if mode is not None:
            draft.chmod(mode)
        os.replace(draft, path)


def draft_in(folder: Path, path: Path) -> Path:
    """Where what is to become `path` grows in a workshop: apart from the lock, by its own name."""
    (folder / "made").mkdir()
    return folder / "made" / path.name


def flush(draft: Path) -> None:
    """Have a file, or all files of a folder, on the disk."""
    for path in [draft] if draft.is_file() else [p for p in draft.rglob("*") if p.is_file()]:
        with path.open("rb") as file:
            os.fsync(file.fileno())


def reserve(file: int, size: int) -> None:
    """Make a file as long as it will be, on the disk where the system knows how.

    Raises `OSError` if there is no room for it.
    """
    os.ftruncate(file, size)
    if size and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file, 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise


def forget(file: int, start: int, count: int) -> None:
    """Let the system drop bytes of a file from its cache, which are on the disk.

    Where files are larger than memory, making room for new pages by and by costs more than writing
    them.
    """
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file, start, count, os.POSIX_FADV_DONTNEED)


@contextmanager
def workshop(parent: Path, name: str) -> Iterator[Path]:
    """A folder of one's own beside `name`, removed at the end with all that is in it.

    Raises `OSError` if nothing can be written there.
    """
    while True:
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=f".{name[:100]}.", suffix=SUFFIX))
        try:
            lock = _locked(folder, wait=True)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if lock is None or os.fstat(lock).st_nlink:
            break
        os.close(lock)  # another run took the folder for a stale one before it was locked
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def lock_of(folder: Path) -> int | None:
    """The locked lock file of a folder that is made where there is none; None if another has it.

    Its owner closes it. Raises `OSError` if nothing can be written there.
    """
    while True:
        folder.mkdir(exist_ok=True)
        if fcntl is None:
            return os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        lock = _locked(folder, wait=False)
        if lock is None or os.fstat(lock).st_nlink:
            return lock
        os.close(lock)  # another run removed the folder before it was locked


def remove_stale(parent: Path) -> list[Path]:
    """Remove temporary folders whose writers have ended; what it removed."""
    removed = []
    for folder in parent.glob(f".*{SUFFIX}"):
        if folder.is_symlink() or not folder.is_dir():
            continue
        lock = _locked(folder, wait=False)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
            removed.append(folder)
    return removed


def _locked(folder: Path, wait: bool) -> int | None:
    """The locked lock file of a folder; None if another holds it, or if there are no locks here.

    Where a cleaner has removed the folder in between, the writer gets a file without links.
    """
    if fcntl is None:
        return None
    try:
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError:
        return _unlinked() if wait else None
    except OSError:
        if wait:
            raise
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(lock)
        return None
    return lock


def _unlinked() -> int:
    """A file that has no name any more."""
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())

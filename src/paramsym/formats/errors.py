"""The one error of everything that reads a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


class CheckpointError(ValueError):
    """Something that was given cannot be used; nothing has been written.

    Every such error has four parts, which are also attributes: `where` it was found, what `came`,
    what was `expected`, and what to do `instead`.
    """

    def __init__(self, where: str, came: str, expected: str, instead: str):
        self.where, self.came, self.expected, self.instead = where, came, expected, instead
        super().__init__(f"{where}: {came}. Expected {expected}. {instead}.")

    def __reduce__(self) -> tuple[type, tuple[str, str, str, str]]:
        """Errors come back from other processes, too."""
        return type(self), (self.where, self.came, self.expected, self.instead)

    def lines(self) -> str:
        """The four parts one below the other, for a terminal."""
        return (
            f"Error in {self.where}\n"
            f"  came      {self.came}\n"
            f"  expected  {self.expected}\n"
            f"  instead   {self.instead}"
        )


class Transient(CheckpointError):
    """What was given is not to blame, and another time may do: a server, the system, a worker."""


def few(names: Sequence[str], limit: int = 4, show: Callable[[str], str] = repr) -> str:
    """The first few of many names, as they are shown, and how many more there are."""
    shown = ", ".join(map(show, names[:limit]))
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def first_line(error: BaseException, limit: int = 240) -> str:
    """What a low-level error says, without its tail and without a full stop."""
    text = str(error).strip().splitlines()
    line = text[0] if text else ""
    line = line if len(line) <= limit else line[:limit] + "…"
    return f"{type(error).__name__}: {line}".rstrip(": .")


@contextmanager
def reading(path: Path, expected: str) -> Iterator[None]:
    """What the system refuses while a file is read, as a `CheckpointError`."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            str(path), f"it cannot be read ({error.strerror or first_line(error)})", expected,
            "Check the path, and who may read what is there",
        ) from error  # fmt: skip

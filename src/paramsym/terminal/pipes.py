"""Output that nobody reads to its end is no error."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class _Unbroken:
    """A text stream that falls silent when its reader has gone.

    What the command still does (writing a checkpoint, its exit code) is not disturbed; libraries
    that print would otherwise end the process, and with 1.
    """

    def __init__(self, stream: Any):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._quietly(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._quietly(self._stream.flush)

    def _quietly(self, output: Callable[[], Any]) -> None:
        try:
            output()
        except BrokenPipeError:  # what is buffered must go somewhere when Python ends, too
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


@contextmanager
def unbroken_pipes() -> Iterator[None]:
    """Inside, a closed standard output or error swallows what is written to it."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (None if s is None else _Unbroken(s) for s in before)  # type: ignore[assignment]
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        sys.stdout, sys.stderr = before

"""The error of this layer, which is that of everything that reads a file, and what becomes one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from paramsym.formats.errors import CheckpointError as CheckpointError
from paramsym.formats.errors import few as few
from paramsym.formats.errors import first_line as first_line


@contextmanager
def refused(
    where: str, expected: str, instead: str = "See the end of the message"
) -> Iterator[None]:
    """Inside, what the library refuses becomes an error about a file or an option.

    Raises:
        CheckpointError: in the place of a `ValueError`.
    """
    try:
        yield
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(where, str(error).rstrip("."), expected, instead) from error

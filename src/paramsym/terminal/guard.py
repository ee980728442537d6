"""The one outer handler: whatever happens inside a command ends with a code of the table.

Python itself ends an uncaught exception with 1, which means "no" here; so does an abort.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from paramsym.terminal.exits import ExitCode
from paramsym.terminal.failures import SHOW, failure_of


@contextmanager
def guarded(
    message_of: Callable[[Exception], str | None],
    passes: tuple[type[BaseException], ...] = (),
    show_traceback: bool = False,
) -> Iterator[None]:
    """Run a block; end the process with a code of the table if it raises.

    Args:
        message_of: the text of an error that a room of the library words itself; None for others.
        passes: exceptions that the parser of the command line raises on purpose.
        show_traceback: print the traceback of a defect instead of writing it to a file.

    Raises:
        SystemExit: with the code, after the message has gone to the error stream.
    """
    try:
        yield
    except passes:
        raise
    except KeyboardInterrupt:
        _end("Interrupted: nothing half-written is left.", ExitCode.INTERRUPTED)
    except (Exception, SystemExit) as error:
        message = message_of(error) if isinstance(error, Exception) else None
        if message is not None:
            _end(message, ExitCode.BAD_INPUT)
        wanted = show_traceback or os.environ.get(SHOW, "") not in ("", "0")
        failure = failure_of(error, wanted)
        _end(failure.text, failure.code)


def _end(text: str, code: ExitCode) -> None:
    print(text, file=sys.stderr)
    raise SystemExit(int(code)) from None

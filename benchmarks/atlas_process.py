"""One class of the atlas in a process of its own, which is ended when it takes too long.

It is forked, so that it need not load anything, and says what it has found as soon as it knows it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from functools import partial
from typing import Any

import atlas_measure
from atlas_classes import Case

SECONDS = 60  # of wall time for one class, and half of it until a model is built

_KEEPING = {  # bytes, of what glibc reads as it starts; elsewhere nobody reads it
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
    "MALLOC_TOP_PAD_": "268435456",
    "MALLOC_ARENA_MAX": "1",
}

# Two threads that fork at once would give each child the other's pipe, whose end is then not seen.
_FORKING = threading.Lock()


def keep_memory() -> None:
    """Start this program anew so that it keeps what it frees: a third of an audit's time is the
    kernel's otherwise, which clears the pages that it has just been given back."""
    if not _KEEPING.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **_KEEPING})


def measured(case: Case, audited: int, seconds: float) -> dict[str, Any]:
    """What is found of a class by a process of its own, and how that ended if not by itself."""
    pid, pipe = _started(case, audited, seconds)
    began, said, limit, why = time.monotonic(), b"", seconds / 2, ""
    while part := _read(pipe, began + limit - time.monotonic()):
        said, limit = said + part, seconds
    if part is None:
        os.kill(pid, signal.SIGKILL)
        why = f"ended after {limit:g} seconds"
    os.close(pipe)
    _, status, usage = os.wait4(pid, 0)
    result: dict[str, Any] = {"family": case.family}
    for row in said.decode().splitlines():
        result |= {name: value for name, value in json.loads(row).items() if value is not None}
    result["whole_seconds"] = round(usage.ru_utime + usage.ru_stime, 1)
    code = os.waitstatus_to_exitcode(status)
    if why or code:
        result["ended"] = why or f"exit code {code}"
    return result


def _read(pipe: int, seconds: float) -> bytes | None:
    """What a process says next, nothing at its end, None if it takes too long."""
    ready, _, _ = select.select([pipe], [], [], max(0.0, seconds))
    return os.read(pipe, 1 << 16) if ready else None


def _started(case: Case, audited: int, seconds: float) -> tuple[int, int]:
    """A forked process that measures a class, and the pipe that it speaks into."""
    with _FORKING:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid:
            os.close(writing)
            return pid, reading
    os.close(reading)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    code = 1
    try:
        atlas_measure.AUDITED = audited
        atlas_measure.measure(case, partial(_say, writing), seconds)
        code = 0
    finally:
        os._exit(code)


def _say(pipe: int, found: dict[str, Any]) -> None:
    os.write(pipe, (json.dumps(found) + "\n").encode())

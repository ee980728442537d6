"""Programs in a process of their own that is forked from this one, in which torch is loaded.

To start python and to load torch takes three seconds, which tests of signals, pipes and limits need
not wait for. What a program imports first is not seen here: tests of that start python itself.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
import warnings
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).parents[1]


class Forked:
    """A running program with its two pipes, used like a `subprocess.Popen` of text."""

    def __init__(self, pid: int, stdout: TextIO, stderr: TextIO):
        self.pid, self.stdout, self.stderr = pid, stdout, stderr
        self.returncode: int | None = None

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.communicate()

    def send_signal(self, number: int) -> None:
        """Send a signal, if it runs."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float = 60.0) -> int:
        """Its exit code; less than zero where a signal ended it."""
        ends = time.monotonic() + timeout
        while self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > ends:
                raise TimeoutError(f"process {self.pid} runs after {timeout} seconds")
            else:
                time.sleep(0.005)
        return self.returncode

    def communicate(self, timeout: float = 60.0) -> tuple[str, str]:
        """What it says until it ends, in both pipes."""
        said: dict[TextIO, str] = {}
        pipes = [pipe for pipe in (self.stdout, self.stderr) if not pipe.closed]
        readers = [
            threading.Thread(target=lambda pipe=pipe: said.update({pipe: pipe.read()}))
            for pipe in pipes
        ]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader, pipe in zip(readers, pipes, strict=True):
            reader.join()
            pipe.close()
        return said.get(self.stdout, ""), said.get(self.stderr, "")


def fork(program: str, *arguments: object) -> Forked:
    """Run the text of a program at the root of the repository, with arguments of the command."""
    out, err = os.pipe(), os.pipe()
    with warnings.catch_warnings():  # of threads that are not there in the child: pytest's own
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _become(program, [str(a) for a in arguments], out[1], err[1])
    os.close(out[1])
    os.close(err[1])
    return Forked(pid, os.fdopen(out[0]), os.fdopen(err[0]))


def _become(program: str, arguments: list[str], out: int, err: int) -> None:
    """Run a program as `python -c` does, and end with its exit code, whatever happens."""
    code = 1
    try:
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.closerange(3, 256)  # also what others read from, who wait for its end
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        sys.stdin = open(os.devnull)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(ROOT)
        sys.argv = ["-c", *arguments]
        code = _exit_code(program)
        sys.stdout.flush()
    except BrokenPipeError:
        code = 120  # as python itself
    finally:
        os._exit(code)


def _exit_code(program: str) -> int:
    try:
        exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        return 1
    return 0

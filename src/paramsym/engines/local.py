"""Threads or processes of this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from typing import Any

from paramsym.engines.engine import Engine, Result, Task, lost
from paramsym.formats.errors import CheckpointError, Transient


class Local(Engine):
    """Threads of this process, or processes of this machine.

    Threads are the default, since torch, hashing and files let go of the interpreter, and share
    what is in memory. Processes are for tasks of Python alone: each imports everything anew, and is
    spawned, so that a script that uses them needs `if __name__ == "__main__"`.

    Args:
        workers: how many tasks run at a time; by default as many as this process may use cores.
        processes: whether they are processes.
    """

    def __init__(self, workers: int | None = None, processes: bool = False):
        if workers is not None and workers < 1:
            raise CheckpointError(
                f"Local(workers={workers})", f"{workers} workers", "one or more", "Say a number "
                "of tasks that run at a time, or leave it out for one on each core",
            )  # fmt: skip
        self._workers, self.processes = workers or _cores(), processes

    @property
    def workers(self) -> int:
        """See `Engine.workers`."""
        return self._workers

    def map(
        self, function: Callable[[Task], Result], tasks: Iterable[Task]
    ) -> Iterator[tuple[int, Result]]:
        """See `Engine.map`."""
        if self._workers == 1 and not self.processes:
            yield from enumerate(map(function, tasks))
            return
        pool, call = self._pool(function)
        numbered = enumerate(tasks)
        running: dict[Future[Result], int] = {}
        try:
            while True:
                for place, task in islice(numbered, self._workers - len(running)):
                    running[pool.submit(call, task)] = place
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future.result()
        except BrokenProcessPool as error:
            raise Transient(*lost("engine local:processes", error)) from error
        finally:  # also at Ctrl-C, and where the caller wants no more: what runs is waited for
            pool.shutdown(wait=True, cancel_futures=True)

    def _pool(self, function: Callable[[Any], Any]) -> tuple[Executor, Callable[[Any], Any]]:
        """The workers, and what they are asked to call."""
        if not self.processes:
            return ThreadPoolExecutor(self._workers, "paramsym"), function
        pool = ProcessPoolExecutor(self._workers, get_context("spawn"), _hold, (function,))
        return pool, _call


def _cores() -> int:
    """The cores that this process may use, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# -- inside a process --------------------------------------------------------------------------

_held: list[Callable[[Any], Any]] = []  # the function, which a process is told once


def _hold(function: Callable[[Any], Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _held[:] = [function]


def _call(task: Any) -> Any:
    """Run a task. A terminal sends Ctrl-C to every process: it ends tasks, not who waits for one,
    since that would print a traceback for each worker."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return _held[0](task)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

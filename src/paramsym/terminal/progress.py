"""What a command is doing, on the error stream, once it takes longer than two seconds."""

from __future__ import annotations

import re
import threading
import time
from types import TracebackType
from typing import Any

DELAY = 2.0  # seconds of silence


# "pair 3 of 8" counts what is under way, "2.5 of 8.0 GB" what is done.
_COUNT = re.compile(r"(\d+(?:\.\d+)?) of (\d+(?:\.\d+)?)(?: ([kMGT]?B)\b)?")


def silent(step: str) -> None:
    """No progress: what a library call says by default."""


class Rate:
    """How fast steps that count go by, and how long the rest will take.

    A step counts if it says `3 of 8`. The rate is taken from steps of the same words, once two of
    them have come; what says itself how long it will take is left as it is.
    """

    def __init__(self) -> None:
        self.words: list[str] = []
        self.first = self.began = 0.0

    def __call__(self, step: str, now: float) -> str:
        """The step, with its rate if it has one; `now` is the time in seconds."""
        found = _COUNT.search(step)
        if found is None or step.endswith(" left"):
            return step
        done, total, unit = float(found[1]), float(found[2]), found[3]
        words = [step[: found.start()], step[found.end() :], found[2]]
        if words != self.words or done < self.first:
            self.words, self.first, self.began = words, done, now
        if done == self.first or now <= self.began:
            return step
        rate = (done - self.first) / (now - self.began)
        speed = f"{rate:.2g} {unit}/s" if unit else f"{1 / rate:.2g} s each"
        return f"{step}, {speed}, {(total - done + (not unit)) / rate:.0f} s left"


class Progress:
    """One line with the present step and the time since the start; gone at the end.

    A step that counts (`pair 3 of 8`) is shown with the time that the rest will take, see `Rate`.
    Nothing is shown where the error stream is no terminal, or if `shown` is False (`--json`).

        with Progress() as progress:
            progress("reading the weights")
    """

    def __init__(self, shown: bool = True, delay: float = DELAY, console: Any = None):
        self.step = ""
        self.shown, self.delay, self.console = shown, delay, console
        self._display: Any = None
        self._task: Any = None
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()
        self._rate = Rate()

    def __call__(self, step: str) -> None:
        """Name the step that begins."""
        self.step = step = self._rate(step, time.monotonic())
        with self._lock:
            if self._display is not None:
                self._display.update(self._task, description=step)

    def __enter__(self) -> Progress:
        if self.shown:
            from rich.console import Console

            self.console = self.console or Console(stderr=True)
            if self.console.is_terminal:
                self._timer = threading.Timer(self.delay, self._show)
                self._timer.daemon = True
                self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.end()

    def end(self) -> None:
        """Take the line away, before the block ends: what goes on has no end of its own."""
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self.shown = False
            if self._display is not None:
                self._display.stop()

    def _show(self) -> None:
        from rich.progress import Progress as Bars
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        with self._lock:
            if not self.shown:
                return
            self._display = Bars(
                SpinnerColumn(), TextColumn("{task.description}", markup=False),
                TimeElapsedColumn(), console=self.console, transient=True,
                redirect_stdout=False,  # results go to the output, wherever that leads
            )  # fmt: skip
            self._task = self._display.add_task(self.step, total=None)
            task = self._display.tasks[0]
            task.start_time = (task.start_time or 0.0) - self.delay
            self._display.start()

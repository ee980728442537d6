"""What a command is doing, on the error stream, once it takes longer than two seconds."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

DELAY = 2.0  # seconds of silence


def silent(step: str) -> None:
    """No progress: what a library call says by default."""


class Progress:
    """One line with the present step and the time since the start; gone at the end.

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

    def __call__(self, step: str) -> None:
        """Name the step that begins."""
        self.step = step
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

"""Steps of the demo: shown while they run, and kept for the page that links what they wrote."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

HERE = Path(__file__).resolve().parent


class Both(io.TextIOBase):
    """What is written is shown and kept."""

    def __init__(self) -> None:
        self.kept = io.StringIO()
        self.shown = sys.stdout

    def write(self, text: str) -> int:
        self.shown.write(text)
        return self.kept.write(text)

    def flush(self) -> None:
        self.shown.flush()


@dataclass
class Step:
    """A question, and what was typed and printed to answer it; files beside the page."""

    question: str
    number: int
    parts: list[tuple[str, str]] = field(default_factory=list)
    pages: list[str] = field(default_factory=list)
    pictures: list[str] = field(default_factory=list)


class Tour:
    """The steps so far.

    Commands run in this process, so that PyTorch is loaded once and not for each of them.
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.start = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.start

    def ask(self, question: str) -> None:
        """Begin a step."""
        self.steps.append(Step(question, len(self.steps) + 1))
        headline = f"── {len(self.steps)}. {question} "
        print(f"\n{headline}{'─' * max(2, 96 - len(headline))}", flush=True)

    def say(self, text: str) -> None:
        """What the step has to say besides what commands print."""
        print(text, flush=True)
        self.steps[-1].parts.append(("said", text))

    def run(self, *arguments: str, code: int = 0) -> None:
        """A command as a user would type it, in the folder of the demo.

        Raises:
            SystemExit: it ended with another code.
        """
        from paramsym.cli import app

        typed = f"$ paramsym {' '.join(arguments)}"
        print(f"\n{typed}\n", flush=True)
        both, ended = Both(), 0
        with contextlib.redirect_stdout(both), contextlib.chdir(HERE):
            try:
                app(list(arguments), prog_name="paramsym")
            except SystemExit as stop:
                ended = stop.code
        if ended != code:
            raise SystemExit(f"`{typed[2:]}` ended with {ended}, and {code} was expected.")
        self.steps[-1].parts.append(("typed", typed))
        lines = both.kept.getvalue().strip("\n").splitlines()
        self.steps[-1].parts.append(("printed", "\n".join(line.rstrip() for line in lines)))
        self.steps[-1].pages += [Path(a).name for a in arguments if a.endswith(".html")]

    def look(self, *pictures: str) -> None:
        """Pictures that the step drew."""
        self.steps[-1].pictures += pictures

    def write(self, path: Path) -> None:
        """All steps on one page."""
        environment = Environment(
            loader=FileSystemLoader(HERE),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        page = environment.get_template("tour.html").render(steps=self.steps, seconds=self.seconds)
        path.write_text(page, encoding="utf-8")

"""Encoded and decoded checkpoints as text: what was written, and how the key moves them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from paramsym.checkpoints import WrittenDecoded, WrittenEncoded
from paramsym.report.words import error_text, plural

if TYPE_CHECKING:  # it needs what a service is made of
    from paramsym.checkpoints.served import Queried

_NOT = (
    "This is no encryption. Who knows the plain weights, or enough pairs of plain and encoded "
    "samples, recovers the key of the inputs; paramsym.privacy.audit measures which attacks reach "
    "what."
)


def print_encoded(result: WrittenEncoded, console: Console | None = None) -> None:
    """Print what was written, by which key, how it moves, and what that is not."""
    console = console or Console(highlight=False)
    head = _head(str(result.path))
    if result.data is not None:
        head.add_row("data", Text(f"{result.data} ({plural(result.samples, 'sample')})"))
    head.add_row("key", Text(f"{result.key} ({result.fingerprint[:12]}…), to be kept"))
    training = ", ".join(result.optimizers) or "nobody trains"
    head.add_row("made for", f"{training}{f', {result.loss}' if result.loss else ''}")
    head.add_row(
        error_text(result.error),
        "largest difference of an output from the moved one, after reading it back",
    )
    console.print(head)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("moved by", no_wrap=True)
    table.add_column("spaces")
    for how, count in Counter(result.moved.values()).most_common():
        names = [name for name, said in result.moved.items() if said == how]
        more = f" and {count - 3} more" if count > 3 else ""
        table.add_row(Text(how), Text(", ".join(names[:3]) + more))
    console.print(table)
    console.print(Text(_NOT, style="dim"))


def print_decoded(result: WrittenDecoded, console: Console | None = None) -> None:
    """Print what was written, and whether the key is known to be the right one."""
    console = console or Console(highlight=False)
    head = _head(str(result.path))
    said = "named by the checkpoint" if result.checked else "not named by the checkpoint"
    head.add_row("key", Text(f"{result.fingerprint[:12]}…, {said}"))
    head.add_row(
        error_text(result.error),
        "largest difference of an output from the decoded one, after reading it back",
    )
    console.print(head)


def print_queried(result: Queried, console: Console | None = None) -> None:
    """Print what a service answered, by shape."""
    console = console or Console(highlight=False)
    head = _head(str(result.path))
    for name, shape in result.outputs.items():
        head.add_row(name, " × ".join(map(str, shape)))
    console.print(head)


def _head(path: str) -> Table:
    head = Table.grid(padding=(0, 2))
    head.add_column(style="bold", justify="right", no_wrap=True)
    head.add_column(overflow="fold")
    head.add_row("written", Text(path))
    return head

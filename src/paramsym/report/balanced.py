"""A balanced checkpoint as text: the certificate, and the cost of each parameter as two bars."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from paramsym.checkpoints import WrittenBalanced
from paramsym.report.words import error_text

_ROWS = 24  # parameters that are shown, those that cost most
_WIDTH = 11  # characters of the longest bar
_NAME = 36  # and of a name, whose end tells most
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_NAMES = {"l2": "Σ w²", "l1": "Σ |w|"}


def print_balanced(result: WrittenBalanced, console: Console | None = None) -> None:
    """Print what was gained, what is certain of it, where, and what was held."""
    console = console or Console(highlight=False)
    found, written = result.balanced, result.written
    head = Table.grid(padding=(0, 2))
    head.add_column(style="bold", justify="right", no_wrap=True)
    head.add_column(overflow="fold")
    head.add_row("written", Text(str(written.path)))
    cost = f"{_NAMES[result.objective]} from {found.before:.6g} to {found.value:.6g}"
    head.add_row(f"{found.value / found.before:.3g} ×" if found.before else "–", cost)
    head.add_row(str(found.status), _MEANING[str(found.status)].format(gap=found.gap))
    head.add_row(
        error_text(written.error),
        "largest change of an output after reading it back, relative to those around it",
    )
    console.print(head)
    console.print(_bars(result.shares))
    for name, why in found.held.items():
        console.print(Text(f"held {name}: {why}", style="dim"))


_MEANING = {
    "OPTIMAL": "no equivalent point along what moved is lower by more than {gap:.1e}",
    "LOCAL": "nothing nearby is lower; along shifts and scales together that proves no more",
    "UNATTAINED": "there is no least value; what is held below would go to zero or to infinity",
}


def _bars(shares: dict[str, tuple[float, float]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("parameter", "before", "after"):
        table.add_column(heading, no_wrap=True)
    worst = sorted(shares, key=lambda name: -max(shares[name]))
    shown = {*worst[:_ROWS]}
    top = max((max(pair) for pair in shares.values()), default=0.0)
    for name in shares:
        if name in shown:
            before, after = (_bar(value, top) for value in shares[name])
            table.add_row(
                Text(name if len(name) <= _NAME else f"…{name[1 - _NAME :]}"), before, after
            )
    if len(worst) > _ROWS:
        table.add_row(Text(f"and {len(worst) - _ROWS} that cost less", style="dim"))
    return table


def _bar(value: float, top: float) -> Text:
    eighths = round(8 * _WIDTH * value / top) if top else 0
    bar = _EIGHTHS[8] * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
    return Text(f"{value:<8.3g} {bar:<{_WIDTH}}")

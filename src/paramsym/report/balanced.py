"""A balanced checkpoint as text: the certificate, and the share of each parameter as two bars."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from paramsym.checkpoints import Plan, Transformed, WrittenBalanced
from paramsym.report.words import error_text

_ROWS = 24  # parameters that are shown, those that cost most
_WIDTH = 11  # characters of the longest bar
_NAME = 36  # and of a name, whose end tells most
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_NAMES = {
    "l2": "Σ w²", "l1": "Σ |w|", "range": "R⁺ + R⁻ of the widest tensor",
    "error": "expected squared change of the outputs by rounding",
}  # fmt: skip
_BARS = {"range": "R⁺ + R⁻", "error": "share of the error"}


def print_balanced(result: WrittenBalanced, console: Console | None = None) -> None:
    """Print what was gained, what is certain of it, where, and what was held."""
    console = console or Console(highlight=False)
    found, written = result.balanced, result.written
    head = head_of(written)
    cost = f"{_NAMES[result.objective]} from {found.before:.6g} to {found.value:.6g}"
    head.add_row(f"{found.value / found.before:.3g} ×" if found.before else "–", cost)
    convex = result.objective in _BARS
    meaning = _CONVEX if convex and found.status == "LOCAL" else _MEANING[str(found.status)]
    head.add_row(str(found.status), meaning.format(gap=found.gap))
    add_error(head, written)
    console.print(head)
    console.print(_bars(result.shares, _BARS.get(result.objective, "")))
    for name, why in found.held.items():
        console.print(Text(f"held {name}: {why}", style="dim"))


def head_of(written: Transformed | Plan) -> Table:
    """Rows of a figure and what it is, the first of which says what was written."""
    head = Table.grid(padding=(0, 2))
    head.add_column(style="bold", justify="right", no_wrap=True)
    head.add_column(overflow="fold")
    head.add_row("written", Text(str(written.path)))
    return head


def add_error(head: Table, written: Transformed | Plan) -> None:
    """The row that says how well the function was kept; none for what was not written."""
    if isinstance(written, Plan):
        return
    head.add_row(
        error_text(written.error),
        "largest change of an output after reading it back, relative to those around it",
    )


_MEANING = {
    "OPTIMAL": "no equivalent point along what moved is lower by more than {gap:.1e}",
    "LOCAL": "nothing nearby is lower; along shifts and scales together that proves no more",
    "UNATTAINED": "there is no least value; what is held below would go to zero or to infinity",
}
_CONVEX = "no equivalent point along what moved is lower by more than {gap:.1e}, which is not small"


def _bars(shares: dict[str, tuple[float, float]], what: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in (f"parameter{what and ': '}{what}", "before", "after"):
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

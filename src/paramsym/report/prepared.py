"""A checkpoint that was prepared for quantisation as text: the table of what was measured."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from paramsym.checkpoints import WrittenPrepared
from paramsym.quantize.candidates import UNTOUCHED
from paramsym.quantize.grids import Grid
from paramsym.report.balanced import add_error, head_of

_IDEAS = {
    UNTOUCHED: "the weights as they are",
    "equalised": "cross-layer equalisation",
    "range": "least widest range",
    "l2": "least squared norm",
    "error": "least expected error",
}


def print_prepared(result: WrittenPrepared, console: Console | None = None) -> None:
    """Print what was written, how well the function was kept, and the table."""
    console = console or Console(highlight=False)
    head, found = head_of(result.written), result.prepared
    kept = "none is better on the held-out inputs: the weights stay as they are"
    head.add_row(found.chosen, kept if found.chosen == UNTOUCHED else _IDEAS[found.chosen])
    head.add_row(_grid(result.grid), "rounded to for this table alone; what is written is not")
    add_error(head, result.written)
    console.print(head)
    console.print(_table(result))
    legend = "change: mean squared change of the outputs on held-out inputs"
    console.print(Text(f"{legend}; activations: of the layer where they grow most", style="dim"))
    for row in found.candidates:
        if row.verdict.startswith("rejected"):
            limit = "; --activations FACTOR allows more"
            console.print(Text(f"{row.name} {row.verdict}{limit}", style="dim"))


def _table(result: WrittenPrepared) -> Table:
    rows = result.prepared.candidates
    first, divergent = rows[0], any(row.divergence is not None for row in rows)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    columns = ["change", "ratio", *(["KL"] if divergent else []), "activations"]
    table.add_column("candidate", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for row in rows:
        ratio = f"{row.change / first.change:.3g}" if first.change else "–"
        numbers = [f"{row.change:.3g}", ratio, f"{row.growth:.3g} ×"]
        if divergent:
            numbers.insert(2, "–" if row.divergence is None else f"{row.divergence:.3g}")
        says = Text(row.verdict.split(":")[0] or "written", "" if row.verdict else "bold")
        table.add_row(row.name, *numbers, says)
    return table


def _grid(grid: Grid) -> str:
    each = grid.groups if isinstance(grid.groups, str) else f"{grid.groups} weights"
    return f"int{grid.bits} per {each}{'' if grid.symmetric else ', asymmetric'}"

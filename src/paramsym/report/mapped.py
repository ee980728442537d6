"""Maps of scales as text: what holds, what a format cannot say, what is wrong with a mapping."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table
from rich.text import Text

from paramsym.checkpoints import Exported, MappingChecked
from paramsym.interop import Checked, ScaleMap
from paramsym.interop.exporting import TOLERANCE as KEPT
from paramsym.interop.matching import common_ancestor
from paramsym.report.collapse import collapse
from paramsym.report.words import plural


def print_exported(result: Exported, console: Console | None = None) -> None:
    """Print maps, folded over layers, and what was refused; the document if it was not written."""
    console = console or Console(highlight=False)
    made = result.export
    if result.output is None:
        console.print(Text(made.text()), soft_wrap=True)
        return
    console.print(Text(f"{result.output}: {plural(len(made.entries), 'map')} for {made.tool}\n"))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("written by", "read by", "maps"):
        table.add_column(head, overflow="fold")
    for group in collapse(made.entries, lambda e: e.smooth, _readers, enough=0):
        table.add_row(group.label, _readers(group.first), str(group.count))
    console.print(table)
    if made.error is not None:
        change = f"the function changes by {made.error:.1e}"
        console.print(Text(f"\nreplayed with random scales: {change}"))
    if made.note:
        console.print(Text(made.note), soft_wrap=True)
    if made.refused:
        console.print(Text(f"\nNot expressible, {plural(len(made.refused), 'space')}:"))
        for group in collapse(made.refused, lambda r: r.space, lambda r: r.kind, 0):
            row = f"  {group.label}: {group.first.kind} ({group.first.reason})"
            console.print(Text(row), soft_wrap=True)


def print_mapping(result: MappingChecked, console: Console | None = None) -> None:
    """Print a verdict for each map that is not sound, with the right one, and a count of all."""
    console = console or Console(highlight=False)
    found = result.check
    counts = Counter(each.verdict.kind for each in found.maps)
    said = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    console.print(Text(f"{'sound' if found.sound else 'not sound'}: {said or 'no entries'}"))
    for each in found.maps:
        if not each.sound:
            _print_wrong(each, console)
    if found.note:
        console.print(Text(f"\n{found.note}"), soft_wrap=True)


def _print_wrong(each: Checked, console: Console) -> None:
    where = each.entry if each.map is None else str(each.map)
    console.print(Text(f"\n{where}"), soft_wrap=True)
    console.print(Text(f"  {each.verdict}"), soft_wrap=True)
    if each.change is not None:
        console.print(Text(f"  replayed, the function changes by {each.change:.1e}"), end="")
        seen = each.change > KEPT
        console.print("" if seen else ": these inputs do not reach it, or a symmetry is missing")
    if each.corrected is not None:
        console.print(Text(f"  right: {', '.join(each.corrected.balance)}"), soft_wrap=True)


def _readers(entry: ScaleMap) -> str:
    """The readers of a map, by what is theirs behind the name that they share with the writer."""
    around = common_ancestor([entry.smooth, *entry.balance])
    return ", ".join(name[len(around) + bool(around) :] for name in entry.balance)

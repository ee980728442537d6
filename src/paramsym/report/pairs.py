"""Checkpoints held against each other as text: what they are, what moved, how near they came."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from paramsym.checkpoints import Compared, WrittenAligned, WrittenMerged
from paramsym.checkpoints.moves import SHIFT, Move
from paramsym.report.balanced import add_error, head_of
from paramsym.report.collapse import collapse
from paramsym.report.words import plural

_ROWS = 24  # tensors that are shown, those that stay farthest apart


def print_compared(result: Compared, console: Console | None = None) -> None:
    """Print the verdict, the distance beside unrelated ones, and what was taken over."""
    console = console or Console(highlight=False)
    console.print(Text(str(result.comparison)), soft_wrap=True)
    orbit = result.comparison.orbit
    if orbit is not None and not result.same:
        place = f", first at {orbit.where}" if orbit.where else ""
        console.print(Text(f"\none orbit: {orbit.kind}{place}. {orbit.reason}"), soft_wrap=True)
    if result.element is not None:
        console.print(Text(f"element   {result.element}"), soft_wrap=True)
    _print_held(result.comparison.held, console)


def print_aligned(result: WrittenAligned, console: Console | None = None) -> None:
    """Print what was written, how near it came, and what was moved."""
    console = console or Console(highlight=False)
    head = head_of(result.written)
    head.add_row("element", Text(str(result.element)))
    head.add_row(
        f"{result.before['']:.3g} → {result.after['']:.3g}",
        "distance of the weights from those of A: 0 for equal ones, 1 for orthogonal ones",
    )
    head.add_row(f"{result.aligned.distance:.3g}", "the same, with scales and bases balanced")
    add_error(head, result.written)
    console.print(head)
    console.print(_moves(result.moves))
    console.print(_distances(result.before, result.after))
    _print_held(result.aligned.held, console)


def print_merged(result: WrittenMerged, console: Console | None = None) -> None:
    """Print what was written, and for each checkpoint its share, its distance and its moves."""
    console = console or Console(highlight=False)
    console.print(head_of(result.written))
    table = _table("checkpoint", "share", "distance from the first", "aligned")
    rows = zip(result.names, result.shares, result.before, result.after, strict=True)
    for name, share, before, after in rows:
        table.add_row(Text(name), f"{share:.3g}", f"{before:.3g}", f"{after:.3g}")
    console.print(table)
    for name, moves in zip(result.names[1:], result.moves[1:], strict=True):
        console.print(Text(f"moved of {name}", style="dim"))
        console.print(_moves(moves))


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(first, overflow="fold")
    for heading in others:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _moves(moves: Mapping[str, Move]) -> Table | Text:
    """Spaces that moved, those of repeated layers in one row, and how many shifts."""
    if not moves:
        return Text("nothing had to move", style="dim")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("moved", "by", "units"):
        table.add_column(heading, overflow="fold")
    shifts = [name for name, move in moves.items() if move.how == SHIFT]
    spaces = [item for item in moves.items() if item[0] not in shifts]
    for group in collapse(spaces, lambda item: item[0], lambda item: item[1].how):
        units, of = (sum(getattr(m, field) for _, m in group.items) for field in ("units", "of"))
        times = f"  ×{group.count}" if group.count > 1 else ""
        table.add_row(
            Text.assemble(group.label, (times, "dim")), group.first[1].how,
            f"{units:,} of {of:,}" if units else "",
        )  # fmt: skip
    if shifts:
        table.add_row(Text(shifts[0] if len(shifts) == 1 else plural(len(shifts), SHIFT)), SHIFT)
    return table


def _distances(before: Mapping[str, float], after: Mapping[str, float]) -> Table:
    """The tensors that stay farthest apart, in the order of the network."""
    worst = sorted((n for n in after if n), key=lambda n: -after[n])
    shown = {*worst[:_ROWS]}
    table = _table("distance of tensor", "before", "after")
    for name in after:
        if name in shown:
            table.add_row(Text(name), f"{before[name]:.3g}", f"{after[name]:.3g}")
    if len(worst) > _ROWS:
        table.add_row(Text(f"and {len(worst) - _ROWS} that are nearer", style="dim"))
    return table


def _print_held(held: Mapping[str, str], console: Console) -> None:
    for name, why in held.items():
        console.print(Text(f"held {name}: {why}", style="dim"))

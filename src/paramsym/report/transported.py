"""What went with its model, as text: the comparison, the control, and the types."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from paramsym.checkpoints import WrittenTransported

_SHOWN = 12  # tensors whose types are printed


def print_transported(result: WrittenTransported, console: Console | None = None) -> None:
    """Print what was written, how well it follows, and by which types."""
    console = console or Console(highlight=False)
    head = Table.grid(padding=(0, 2))
    head.add_column(style="bold", justify="right", no_wrap=True)
    head.add_column(overflow="fold")
    head.add_row("written", Text(str(result.path)))
    head.add_row(f"{result.check.error:.1e}", f"largest change: {result.compared}")
    head.add_row(f"{result.check.control:.1e}", "the control: the same, left as it was")
    console.print(head)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("tensor", overflow="fold")
    table.add_column("type", overflow="fold")
    for name, axes in [*result.types.items()][:_SHOWN]:
        table.add_row(Text(name), Text(axes))
    console.print(table)
    if len(result.types) > _SHOWN:
        console.print(Text(f"and {len(result.types) - _SHOWN} more, with --json", style="dim"))

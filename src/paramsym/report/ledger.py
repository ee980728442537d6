"""A ledger of conserved quantities as a table for a terminal, and as one HTML page."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from paramsym.checkpoints.writing import write_text
from paramsym.dynamics.ledger_report import LedgerReport


def print_ledger(
    source: str, model: str, report: LedgerReport, console: Console | None = None
) -> None:
    """Print what was measured and foreseen, family by family, and the verdict."""
    console = console or Console(highlight=False)
    skipped = f", {report.skipped:,} skipped" if report.skipped else ""
    console.print(Text(f"{source}: {model}, {report.steps:,} steps{skipped}", style="bold"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("family", overflow="fold")
    for name in ("quantities", "largest measured", "predicted", "residual"):
        table.add_column(name, justify="right")
    for row in report.families:
        style = "bold red" if row.name in report.broken else ""
        table.add_row(
            row.name, f"{row.count:,}", f"{row.measured:.6g}", f"{row.predicted:.6g}",
            f"{row.residual:.1e}", style=style,
        )  # fmt: skip
    console.print(table)
    console.print(Text(verdict(report)))


def verdict(report: LedgerReport) -> str:
    """In a sentence, whether the quantities were conserved."""
    size = f"the largest residual is {report.relative:.1e} of the largest quantity"
    if not report.broken:
        return f"Conserved to rounding: {size}."
    return (
        f"Not conserved: {', '.join(report.broken)}; {size}, rounding explains "
        f"{report.floor / (report.scale or 1.0):.1e}. "
        "Some gradient was not that of a function of the outputs: a penalty on weights in the "
        "loss, a backward pass that is wrong or rounded, gradients that are clipped by value or "
        "layer by layer, or weights that are changed within a step."
    )


def write_ledger_page(source: str, model: str, report: LedgerReport, path: Path) -> None:
    """Write the page, completely or not at all; see `write_text`."""
    environment = Environment(
        loader=PackageLoader("paramsym.report", "templates"),
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    text = environment.get_template("ledger.html").render(
        source=source, model=model, report=report, verdict=verdict(report)
    )
    write_text(text, path, "--html")

"""Findings for a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from paramsym.checkpoints import Transformed
from paramsym.report.balanced import add_error, head_of
from paramsym.report.findings import Findings
from paramsym.report.tables import FamilyRow, SpaceRow, family_rows, frozen, proof_rows, space_rows
from paramsym.report.words import error_text, percent, power_of_ten
from paramsym.structure.text import probed_rows, random_rows

_COLOURS = {
    "linear": "blue", "orthogonal": "magenta", "monomial": "green", "permutation": "yellow",
    "scaling": "red", "complex": "cyan", "trivial": "bright_black",
}  # fmt: skip


def print_findings(findings: Findings, console: Console | None = None) -> None:
    """Print everything, the most important first."""
    console = console or Console(highlight=False, soft_wrap=False)
    for part in _parts(findings):
        console.print(part)


def _parts(findings: Findings) -> list[RenderableType]:
    parts: list[RenderableType] = ["", _summary(findings)]
    if spaces := space_rows(findings):
        parts += ["", _heading("Spaces", "what may act on them"), _spaces(spaces)]
    if families := family_rows(findings):
        parts += ["", _heading("Shifts", "directions that slide freely"), _families(families)]
    symmetry = findings.symmetry
    if symmetry.dead:
        names = "\n".join(symmetry.dead[:12]) + ("\n…" if symmetry.dead[12:] else "")
        parts += ["", _heading("Dead", "the function ignores them"), _block(names)]
    if symmetry.unknown:
        lines = "\n".join(f"{name}  {place}" for name, place in symmetry.unknown.items())
        parts += [
            "", _heading("Unknown operators", "held fixed; teach them with @paramsym.rule"),
            _block(lines),
        ]  # fmt: skip
    if symmetry.random:
        lines = "\n".join(map("  ".join, random_rows(symmetry)))
        parts += ["", _heading("In distribution", "not number by number"), _block(lines)]
    if symmetry.probed:
        lines = "\n".join(map("  ".join, probed_rows(symmetry)))
        parts += [
            "", _heading("Probed operators", "no rule: tried at many points, not proved"),
            _block(lines),
        ]  # fmt: skip
    if held := frozen(findings):
        lines = [f"{name}  {why}" for name, why in list(held.items())[:12]]
        lines += [f"and {len(held) - 12} more"] if len(held) > 12 else []
        parts += ["", _heading("Held", "tensors that nothing moves"), _block("\n".join(lines))]
    parts += _proof(findings)
    parts += _audit(findings)
    return [*parts, ""]


def _summary(findings: Findings) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", justify="right", no_wrap=True)
    table.add_column()
    table.add_row(findings.model, Text(findings.source, style="dim"))
    table.add_row(f"{findings.parameters:,}", f"parameters in {len(findings.shapes):,} tensors")
    table.add_row(
        str(findings.redundant),
        f"redundant directions ({percent(findings.share)}), counted {findings.counted}"
        + (f"; {findings.redundant.why}" if findings.redundant.why else ""),
    )
    table.add_row(power_of_ten(findings.copies), "equivalent copies by permutations and signs")
    table.add_row(f"{findings.seconds:.2f} s", "of CPU time, to trace and derive")
    return table


def _heading(title: str, note: str) -> Text:
    return Text.assemble((title, "bold"), ("  " + note, "dim"))


def _block(text: str) -> Padding:
    return Padding(Text(text, overflow="fold"), (0, 0, 0, 2))


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), header_style="dim")
    for name, justify in columns:
        right = justify == "right"
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=right)
    return table


def _times(name: str, count: int) -> Text:
    return Text.assemble(name, (f"  ×{count}" if count > 1 else "", "dim"))


def _spaces(rows: list[SpaceRow]) -> Group:
    """Name, group and dimension in columns; below each, over the whole width, the reasons."""
    longest = max(len(f"  {r.name} ×{r.count}") for r in rows)
    widths = [max(len(r.group) for r in rows), max(3, *(len(f"{r.dimension:,}") for r in rows))]

    def line(name: Text, group: Text, dimension: str, style: str = "") -> Table:
        table = Table.grid(padding=(0, 2), expand=longest > 40)
        table.add_column(
            ratio=1 if longest > 40 else None,
            min_width=min(longest, 40),
            overflow="fold",
            style=style,
        )
        table.add_column(width=widths[0], no_wrap=True, style=style)
        table.add_column(width=widths[1], no_wrap=True, justify="right", style=style)
        table.add_row(name, group, dimension)
        return table

    parts: list[RenderableType] = [line(Text("  space"), Text("group"), "dim", "dim")]
    for row in rows:
        name = Text.assemble(("  " + row.name, "bold"), (f" ×{row.count}" * (row.count > 1), "dim"))
        group = Text(row.group, style=_COLOURS.get(row.family, ""))
        parts.append(line(name, group, f"{row.dimension:,}"))
        note = Text(row.why + ("" if row.exact else "; not exact"), overflow="fold")
        note.append("".join(f"\n{text}" for text in (row.place, row.ties) if text), style="dim")
        parts.append(Padding(note, (0, 0, 0, 4)))
    return Group(*parts)


def _families(rows: list[FamilyRow]) -> Table:
    table = _table(
        ("family", "left"), ("shifts", "right"), ("dim", "right"), ("for example", "left")
    )
    for row in rows:
        table.add_row(
            Text(row.family), f"{row.shifts:,}", str(row.dimension),
            Text(row.examples[0], style="dim"),
        )  # fmt: skip
    return table


def _proof(findings: Findings) -> list[RenderableType]:
    found = findings.verification
    if found is None:
        return []
    table = _table(("moved", "left"), ("error", "right"), ("wrong move", "right"))
    for row in proof_rows(findings):
        table.add_row(
            _times(row.name, row.count), error_text(row.error), error_text(row.control)
        )  # fmt: skip
    lead = Text.assemble(
        "worst relative error ", (error_text(found.error), "bold green"),
        "; a wrong move of the same size costs at least ", (error_text(found.control), "bold"),
    )  # fmt: skip
    note = "random moves, measured in float64"
    return ["", _heading("Proof", note), Padding(lead, (0, 0, 0, 2)), table]


def _audit(findings: Findings) -> list[RenderableType]:
    if findings.audit_refused:
        return ["", _heading("Audit", "not done"), _block(findings.audit_refused)]
    found = findings.audit
    if found is None:
        return []
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="bold")
    table.add_column()
    table.add_row(f"{found.nullity:,}", "directions leave the function unchanged (measured)")
    table.add_row(f"{found.explained:,}", "of them the symmetry explains")
    style = "bold green" if found.unexplained == 0 else "bold red"
    table.add_row(Text(f"{found.unexplained:,}", style=style), "unexplained")
    table.add_row(f"{found.dead:,}", "dead parameters among them")
    parts: list[RenderableType] = [Padding(table, (0, 0, 0, 2))]
    parts.append(_block(f"gap in the singular values: {found.gap}"))
    verdict = Text(found.verdict, style="bold green" if found.complete else "bold red")
    parts.append(Padding(verdict, (0, 0, 0, 2)))
    parts += [_block(doubt) for doubt in found.doubts]
    if found.unexplained:
        parts.append(_block("unexplained directions"))
        parts.append(_block("\n".join(f"  {suspect}" for suspect in found.suspects[:12])))
        shares = sorted(found.where.items(), key=lambda item: -item[1])[:8]
        parts.append(_block("they live in"))
        parts.append(_block("\n".join(f"{percent(share):>8}  {name}" for name, share in shares)))
    against = "the network" if found.full is None else f"its twin, {found.parameters:,} parameters"
    return ["", _heading("Audit", f"against the Jacobian of {against}"), Group(*parts)]


def print_transformed(result: Transformed, console: Console | None = None) -> None:
    """Print what was written, and the proof that it is equivalent."""
    console = console or Console(highlight=False)
    table = head_of(result)
    table.add_row(
        percent(result.share),
        f"of {result.entries:,} parameters are in tensors that moved",
    )
    add_error(table, result)
    console.print(table)

"""Maps and blocks as text: what holds, what a format cannot say, what is wrong with a mapping."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table
from rich.text import Text

from paramsym.checkpoints import Exported, MappingChecked, Plan
from paramsym.interop import (
    Block,
    Checked,
    Export,
    Exports,
    OptimizerGroups,
    Rotation,
    RotationExport,
    ScaleMap,
)
from paramsym.interop.exporting import TOLERANCE as KEPT
from paramsym.interop.matching import common_ancestor
from paramsym.report.collapse import Group, collapse
from paramsym.report.words import error_text, plural


def print_exported(result: Exported, console: Console | None = None) -> None:
    """Print what was exported, folded over layers; the document if it was not written."""
    console = console or Console(highlight=False)
    made = result.export
    said = not isinstance(made, Export) or bool(made.entries)
    if result.output is None and result.moved is None and said:
        console.print(Text(made.text()), soft_wrap=True)
        return
    if result.output is not None:
        console.print(Text(f"{result.output}: {_counted(made)}\n"))
    console.print(_rows(made))
    if not isinstance(made, OptimizerGroups):
        _print_proof(made, console)
    moved = result.moved
    if isinstance(moved, Plan):
        console.print(f"\n{moved}", markup=False, soft_wrap=True)
    elif moved is not None:
        said = f"{moved.share:.0%} of the weights moved; outputs differ by "
        said += error_text(moved.error)
        console.print(Text(f"\n{moved.path}: {said}"), soft_wrap=True)


def _counted(made: Exports) -> str:
    if isinstance(made, OptimizerGroups):
        counts = Counter(block.role for block in made.blocks)
        return ", ".join(f"{count} {role}" for role, count in counts.items()) + " blocks"
    if isinstance(made, RotationExport):
        count, folds = len(made.rotations), len(made.folds)
        return f"{plural(count, 'rotation')}, {plural(folds, 'norm')} to fold"
    return f"{plural(len(made.entries), 'map')} for {made.tool}"


def _rows(made: Exports) -> Table:
    """One row for what all layers have alike."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    rows: list[tuple[str, ...]]
    if isinstance(made, OptimizerGroups):
        heads = ("parameter", "role", "blocks", "rows × columns")
        groups = collapse(list(made.by_parameter.items()), lambda e: e[0], _shapes, enough=0)
        rows = [(g.label, g.first[1][0].role, str(len(g.first[1])), _shapes(g.first))
                for g in groups]  # fmt: skip
    elif isinstance(made, RotationExport):
        heads = ("turned", "size", "written by", "read by", "spaces")
        turned = collapse(made.rotations, lambda r: r.space, lambda r: f"{_sides(r)}", enough=0)
        rows = [(g.label, str(g.first.size), *_sides(g.first), str(g.count)) for g in turned]
    else:
        heads = ("written by", "read by", "maps")
        maps = collapse(made.entries, lambda e: e.smooth, _readers, enough=0)
        rows = [(g.label, _readers(g.first), str(g.count)) for g in maps]
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _shapes(entry: tuple[str, tuple[Block, ...]]) -> str:
    shapes = dict.fromkeys(" × ".join(map(str, block.shape)) for block in entry[1])
    return ", ".join(shapes)


def _sides(rotation: Rotation) -> tuple[str, str]:
    """The kinds of modules on both sides, with how many there are."""

    def kinds(names: tuple[str, ...]) -> str:
        counts = Counter(name.rpartition(".")[2] for name in names)
        return ", ".join(f"{n} {kind}" if n > 1 else kind for kind, n in counts.items())

    return kinds(rotation.writers), kinds(rotation.readers)


def _print_proof(made: Export | RotationExport, console: Console) -> None:
    """The replay, and what was refused."""
    if made.error is not None:
        what = "rotations" if isinstance(made, RotationExport) else "scales"
        change = f"the function changes by {made.error:.1e}"
        console.print(Text(f"\nreplayed with random {what}: {change}"))
    if made.note:
        console.print(Text(made.note), soft_wrap=True)
    if made.refused:
        console.print(Text(f"\nLeft out, {plural(len(made.refused), 'space')}:"))
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
    wrong = [each for each in found.maps if not each.sound]
    for group in collapse(wrong, _writer, lambda each: f"{each.verdict} {_right(each)}", enough=0):
        _print_wrong(group, console)
    if found.note:
        console.print(Text(f"\n{found.note}"), soft_wrap=True)


def _print_wrong(group: Group[Checked], console: Console) -> None:
    """What is wrong with maps that are alike in several layers."""
    each, changes = group.first, [x.change for x in group.items if x.change is not None]
    readers = each.entry.partition(" -> ")[2] if each.map is None else _readers(each.map)
    many = f"  (×{group.count})" if group.count > 1 else ""
    rows = [f"\n{group.label} -> {readers}{many}", f"  {each.verdict}"]
    if changes:
        alone = (
            ""
            if max(changes) > KEPT
            else ": these inputs do not reach it, or a symmetry is missing"
        )
        rows.append(f"  replayed, the function changes by {_span(changes)}{alone}")
    if each.corrected is not None:
        rows.append(f"  right: {_readers(each.corrected)}")
    for row in rows:
        console.print(Text(row), soft_wrap=True)


def _writer(each: Checked) -> str:
    return each.entry.partition(" -> ")[0] if each.map is None else each.map.smooth


def _right(each: Checked) -> str:
    return "" if each.corrected is None else _readers(each.corrected)


def _span(changes: list[float]) -> str:
    """One number, or the least and the largest of several."""
    least, most = f"{min(changes):.1e}", f"{max(changes):.1e}"
    return least if least == most else f"{least} to {most}"


def _readers(entry: ScaleMap) -> str:
    """The readers of a map by what is behind the name that all share, experts folded."""
    around = common_ancestor([entry.smooth, *entry.balance])
    names = [name[len(around) + bool(around) :] for name in entry.balance]
    return ", ".join(g.label for g in collapse(names, str, lambda _: "", enough=0))

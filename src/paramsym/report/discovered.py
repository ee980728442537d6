"""What a search for linear symmetries found, beside what is derived, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from paramsym.checking.find import find_symmetry
from paramsym.checkpoints import CheckpointError, Source, fitting
from paramsym.discovery import LinearSymmetries, linear_symmetries
from paramsym.discovery.algebras.comparison import Comparison
from paramsym.discovery.algebras.lie_algebra import LieAlgebra
from paramsym.recording.refusals import TraceError
from paramsym.terminal.progress import silent

_LINES = 24  # generators that are shown


@dataclass(frozen=True)
class Discovered:
    """The linear symmetries of a checkpoint, their algebra, and the comparison.

    Where there is no algebra or no comparison, `without_algebra` and `without_comparison` say why.
    """

    source: str
    model: str
    found: LinearSymmetries
    algebra: LieAlgebra | None = None
    comparison: Comparison | None = None
    without_algebra: str = ""
    without_comparison: str = ""


def discover(
    checkpoint: Source,
    level: str = "auto",
    affine: bool = False,
    training: bool = False,
    compare: bool = True,
    limit: int | None = None,
    names: list[str] | None = None,
    generator: torch.Generator | None = None,
    progress: Callable[[str], None] = silent,
) -> Discovered:
    """Search a checkpoint for linear symmetries, recognise them, and compare with the derived ones.

    Args:
        checkpoint: the model with its example inputs; of its weights, buffers alone are read.
        level: as `linear_symmetries`.
        affine: search constants, too.
        training: the function of the training mode.
        compare: derive the symmetry, too.
        limit: the most unknowns; by default that of `linear_symmetries`.
        names: patterns of the parameters that may move; by default all.
        generator: draws the samples.
        progress: is told what is being done.

    Raises:
        CheckpointError: a model without numbers, a program that is to be run in training mode, or
            in place of the `ValueError` of `linear_symmetries`.
    """
    _require_numbers(checkpoint, training)
    model, inputs = checkpoint.model, checkpoint.inputs
    options: dict[str, Any] = {"names": names, **({} if limit is None else {"limit": limit})}
    with fitting(checkpoint, training), _refusals(checkpoint.label):
        found = linear_symmetries(
            model, inputs, level, affine=affine, training=training, generator=generator,
            progress=progress, **options,
        )  # fmt: skip
    result = Discovered(checkpoint.label, type(model).__name__, found)
    progress("recognising the algebra")
    try:
        result = replace(result, algebra=found.algebra)
    except ValueError as error:
        result = replace(result, without_algebra=str(error))
    if not compare:
        return replace(result, without_comparison="not asked for")
    progress("deriving the symmetry, and comparing")
    try:
        symmetry = find_symmetry(model, inputs, training=training)
        return replace(result, comparison=found.compare(symmetry, checkpoint.state()))
    except (TraceError, ValueError) as error:
        return replace(result, without_comparison=str(error))


_CALL = "linear_symmetries("  # what its refusals begin with


@contextmanager
def _refusals(label: str) -> Iterator[None]:
    """Inside, what `linear_symmetries` refuses becomes an error about the source."""
    try:
        yield
    except ValueError as error:
        text = str(error)
        if not text.startswith(_CALL):
            raise
        came, _, instead = text.partition("): ")[2].partition(". ")
        raise CheckpointError(
            label, came, "a differentiable function of weights and inputs, and a search that fits",
            instead.rstrip(".") or "See the message",
        ) from error  # fmt: skip


def _require_numbers(checkpoint: Source, training: bool) -> None:
    if training and checkpoint.fixed_mode:
        raise CheckpointError(
            f"{checkpoint.label} --training", "a program, whose mode was fixed by its export",
            "a folder or a factory", "Export the model in training mode, and leave the option out",
        )  # fmt: skip
    if not checkpoint.has_weights:
        raise CheckpointError(
            checkpoint.label, "a model on the meta device, without numbers",
            "a model that can be run, whose weights are then drawn at random",
            "Give --weights FILE",
        )  # fmt: skip


def print_discovered(result: Discovered, console: Console | None = None) -> None:
    """Print the algebra, the gap, what was searched, each generator, and the comparison."""
    console = console or Console(highlight=False, soft_wrap=False)
    console.print(_head(result))
    if lines := generator_lines(result):
        console.print(Text.assemble(("\nGenerators", "bold"), ("  what moves, and how", "dim")))
        for line in lines[:_LINES]:
            console.print(Text("  " + line), soft_wrap=True)
        if len(lines) > _LINES:
            console.print(Text(f"  and {len(lines) - _LINES} more", style="dim"))
    if result.without_algebra:
        console.print(Text(f"  {result.without_algebra}", style="dim"), soft_wrap=True)
    console.print(Text.assemble(("\nAgainst the derived symmetry", "bold")))
    if result.comparison is None:
        console.print(Text(f"  {result.without_comparison}", style="dim"), soft_wrap=True)
        return
    for line in str(result.comparison).splitlines():
        console.print(Text("  " + line), soft_wrap=True)
    console.print(Text("  " + verdict(result.comparison), style="bold"), soft_wrap=True)


def _head(result: Discovered) -> Table:
    found = result.found
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(result.model, Text(result.source, style="dim"))
    table.add_row(f"{found.dimension:,}", "linear vector fields leave the function unchanged")
    if result.algebra is not None and found.dimension:
        table.add_row("algebra", Text(_algebra(result.algebra)))
    if found.dimension:
        table.add_row("residual", f"{found.gap.largest_null:.1e} at most, on fresh samples")
    table.add_row("next", f"{found.gap.next:.1e}, of a direction that is no generator")
    table.add_row("searched", Text(f"level {found.level}: {found.searched}"))
    if found.dead:
        table.add_row("dead", Text(", ".join(found.dead)))
    return table


def _algebra(algebra: LieAlgebra) -> str:
    if algebra.rank is None:
        return algebra.name
    return f"{algebra.name}, of rank {algebra.rank}, with a centre of dimension {algebra.centre}"


def generator_lines(result: Discovered) -> list[str]:
    """Each generator of the sparse basis in words; none where there is no such basis."""
    return result.algebra.lines if result.algebra is not None else []


def verdict(comparison: Comparison) -> str:
    """The comparison in one sentence."""
    new, missed = comparison.beyond - comparison.pointwise, comparison.missed
    if new and missed:
        return f"Neither contains the other: {new} directions are new, {missed} were not found."
    if new:
        return f"{new} directions were not derived: the derivation is not complete."
    if missed:
        return f"{missed} linear directions were derived that this ansatz does not hold."
    return "Nothing moves that was not derived, and every linear direction was found."


def discovered_json(result: Discovered) -> str:
    """The result as JSON."""
    found, algebra = result.found, result.algebra
    return json.dumps({
        "source": result.source,
        "model": result.model,
        "level": found.level,
        "affine": found.affine,
        "searched": found.searched,
        "unknowns": found.unknowns,
        "samples": found.samples,
        "dimension": found.dimension,
        "residual": found.gap.largest_null,
        "next": found.gap.next if found.gap.next != float("inf") else None,
        "dead": list(found.dead),
        "generators": [
            {"moves": line, "tensors": list(one.targets)}
            for one, line in zip(algebra.basis, algebra.lines, strict=True)
        ] if algebra is not None else None,
        "algebra": None if algebra is None else {
            "name": algebra.name,
            "closed": algebra.closed,
            "defect": algebra.defect if algebra.defect == algebra.defect else None,
            "rank": algebra.rank,
            "centre": algebra.centre,
            "derived_series": list(algebra.derived),
            "killing_signature": algebra.signature and list(algebra.signature),
            "summands": [asdict(part) for part in algebra.summands],
        },
        "algebra_missing_because": result.without_algebra or None,
        "comparison": None if result.comparison is None else {
            **{k: v for k, v in asdict(result.comparison).items() if k != "searched"},
            "agrees": result.comparison.agrees,
        },
        "comparison_missing_because": result.without_comparison or None,
    }, indent=2, ensure_ascii=False)  # fmt: skip

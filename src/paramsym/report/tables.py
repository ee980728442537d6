"""The rows that the terminal and the page show alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paramsym.report.collapse import collapse, common, sizeless, spread
from paramsym.report.findings import Findings
from paramsym.report.folding import folded_spaces, is_folded
from paramsym.report.meaning import meaning
from paramsym.report.words import family, reason, tie_text
from paramsym.structure.counting import Count, generic_dimension
from paramsym.structure.shift import Shift
from paramsym.structure.space import Space
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.text import group_text, is_free


@dataclass(frozen=True)
class SpaceRow:
    """One space, or equal spaces of repeated layers."""

    name: str
    count: int
    group: str
    family: str
    meaning: str
    dimension: int
    exact: bool
    why: str
    place: str
    ties: str
    tensors: int
    error: float | None
    control: float | None


@dataclass(frozen=True)
class FamilyRow:
    """Shifts of one family, and in how many directions they move together, buffers included."""

    family: str
    shifts: int
    dimension: Count
    examples: tuple[str, ...]


@dataclass(frozen=True)
class ProofRow:
    """One measured space or shift, or several of repeated layers."""

    name: str
    count: int
    kind: str
    error: float
    control: float | None
    exact: bool


def space_rows(findings: Findings) -> list[SpaceRow]:
    """Spaces in the order of the network; those without freedom are left out."""
    symmetry = findings.symmetry
    measured = {row.name: row for row in _rows(findings)}
    made = []
    for group in folded_spaces(symmetry):
        why, _ = reason(group.first)
        proofs = [measured[s.name] for s in group.items if s.name in measured]
        made.append(
            SpaceRow(
                group.label, group.count, spread([_group(symmetry, s) for s in group.items]),
                family(group.first.group), meaning(symmetry, group.items),
                sum(symmetry.dimension(s.name) for s in group.items),
                group.first.exact, why if is_free(group.first) else "",
                common([reason(s)[1] for s in group.items]),
                common([tie_text(symmetry, s) for s in group.items]),
                sum(len(symmetry.parameters_of(s.name)) for s in group.items),
                max((p.error for p in proofs), default=None),
                min((p.control for p in proofs if p.control is not None), default=None),
            )
        )  # fmt: skip
    return made


def _group(symmetry: ParameterSymmetry, space: Space) -> str:
    """The group, and how many copies of it there are."""
    copies = symmetry.copies(space.name)
    if space.size == 1 and space.over:  # one scalar per unit is one group on all units
        copies //= symmetry.spaces[space.over[-1]].size
    return group_text(symmetry, space) + (f" × {copies}" if copies > 1 else "")


def frozen(findings: Findings) -> dict[str, str]:
    """Tensors that nothing moves, and why."""
    symmetry = findings.symmetry
    moving = {name for shift in symmetry.shifts for name in shift.parameters}
    for space in symmetry.spaces:
        moving.update(symmetry.parameters_of(space))
    found = {}
    for name, shape in findings.shapes.items():
        if name in symmetry.signature and shape and name not in moving | {*symmetry.dead}:
            said = [r for r in symmetry.reasons.get(name, ()) if r]
            found[name] = "; ".join(dict.fromkeys(said)) or "no rule frees it"
    return found


def family_rows(findings: Findings) -> list[FamilyRow]:
    """Shifts by family, the largest first."""
    families: dict[str, list[Shift]] = {}
    for shift in findings.symmetry.shifts:
        families.setdefault(_general(shift.family), []).append(shift)
    made = [
        FamilyRow(
            name, len(shifts), _together(findings, shifts),
            tuple(g.label for g in collapse(
                shifts, lambda s: s.name.removeprefix("shift:"), lambda s: str(s.shape), 3)[:3]),
        )
        for name, shifts in families.items()
    ]  # fmt: skip
    return sorted(made, key=lambda row: -row.dimension.value)


def _together(findings: Findings, shifts: list[Shift]) -> Count:
    names = {shift.name for shift in shifts}
    return generic_dimension(findings.symmetry, findings.tensors, names, hold_buffers=False)


def _general(text: str) -> str:
    """A family without the name of the tensor that compensates."""
    return "slides against what reads it" if text.startswith("slides against") else text


def proof_rows(findings: Findings) -> list[ProofRow]:
    """Measured errors, with those of wrong moves of the same size; spaces as in their table."""
    symmetry, rows = findings.symmetry, _rows(findings)
    folds = {s.name: k for k, group in enumerate(folded_spaces(symmetry)) for s in group.items}

    def says(row: Any) -> str:
        fold = folds.get(row.name) if str(row.kind) == "space" else sizeless(str(row.group))
        return f"{row.kind}|{fold}|{row.exact}"

    return [
        ProofRow(
            group.label.removeprefix("shift:"), group.count, str(group.first.kind),
            max(row.error for row in group.items),
            min((r.control for r in group.items if r.control is not None), default=None),
            bool(group.first.exact),
        )
        for group in collapse(
            rows, lambda r: r.name, says, 0 if is_folded(symmetry) else len(rows)
        )
    ]  # fmt: skip


def _rows(findings: Findings) -> list[Any]:
    return [] if findings.verification is None else list(findings.verification.rows)

"""Symmetries as text: a listing that fits a screen, and the full table.

    residual             Permutation(768)                       1 direction unread
    h.{0..11}.ln_1       Scaling(768)           over residual   translates
    h.{0..11}.attn.qk    GeneralLinear(64)      per head        translates

Layers that repeat are one line, with the range of their numbers in braces.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from paramsym.algebra import AbstractMonomial
from paramsym.algebra.lattice import monomial
from paramsym.structure.folding import Repeat, filled, fold
from paramsym.structure.shift import Shift
from paramsym.structure.space import Space

if TYPE_CHECKING:
    from paramsym.structure.symmetry import ParameterSymmetry

WIDTH = 120
_SHORT = 24  # lines of a signature that are shown with the spaces
_FEW = 6  # lines of what comes after the spaces


def listing(symmetry: ParameterSymmetry) -> str:
    """Spaces with what acts on them; before them the signature, where it is short."""
    lines = [*_aligned(_signature_rows(symmetry))]
    if lines and (len(lines) > _SHORT or max(map(len, lines)) > WIDTH):
        lines = []
    rows = [space_row(symmetry, s) for s in symmetry.spaces.values() if is_free(s)]
    further = [_cut(line) for line in _aligned(_further_rows(symmetry))]
    if not lines and len(further) > 2 * _FEW:
        further = [*further[: 2 * _FEW], f"and {len(further) - 2 * _FEW} more lines: see .table()"]
    return "\n\n".join("\n".join(block) for block in (lines, [*_aligned(rows)], further) if block)


def _signature_rows(symmetry: ParameterSymmetry) -> list[tuple[str, ...]]:
    """Each tensor with the types of its axes."""
    return [(name, ", ".join(map(str, axes))) for name, axes in symmetry.signature.items()]


def _further_rows(symmetry: ParameterSymmetry) -> Iterator[tuple[str, ...]]:
    """What belongs to no space: shifts of the parameters alone, and what no output depends on."""
    for shift in symmetry.shifts:
        if not shift.space:
            yield shift.name, f"{shift.family}, {plural(shift.dimension, 'direction')}"
    yield from _dead_rows(symmetry)
    yield from _unreached_rows(symmetry)


def _dead_rows(symmetry: ParameterSymmetry) -> list[tuple[str, ...]]:
    return [(name, "dead") for name in symmetry.dead]


def _unreached_rows(symmetry: ParameterSymmetry) -> list[tuple[str, ...]]:
    return [
        (name, f"{plural(len(rows), 'row')} not reached")
        for name, rows in symmetry.unreached.items()
    ]


def _cut(line: str) -> str:
    """A line that is not longer than the listing is wide."""
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def table(symmetry: ParameterSymmetry) -> str:
    """Everything, line by line: types of all tensors, all spaces with reasons, all shifts."""
    blocks = [
        _signature_rows(symmetry),
        [
            (*space_row(symmetry, s)[:3], s.why + ("" if s.exact else " (not exact)"))
            for s in symmetry.spaces.values()
        ],
        [
            (s.name, plural(s.dimension, "direction"), s.family, f"{s.kind} {s.space}".strip())
            for s in symmetry.shifts
        ],
        _dead_rows(symmetry),
        _unreached_rows(symmetry),
    ]
    return "\n\n".join("\n".join(_columns(block)) for block in blocks if block)


def is_free(space: Space) -> bool:
    """Whether anything but the identity acts on a space."""
    return bool(space.group.dimension or space.group.log_order)


def space_row(symmetry: ParameterSymmetry, space: Space) -> tuple[str, str, str, str]:
    """Name, group, what it stands over, and what else can be said of a space."""
    notes = notes_of(symmetry.translations(space.name))
    if not space.exact:
        notes = [*notes, "not exact"]
    return space.name, group_text(symmetry, space), over_text(symmetry, space), ", ".join(notes)


def group_text(symmetry: ParameterSymmetry, space: Space) -> str:
    """The group of a space; for one scalar per unit, the group that acts on all units."""
    group = space.group
    if _is_scalar(symmetry, space) and isinstance(group, AbstractMonomial):
        group = monomial(symmetry.spaces[space.over[-1]].size, False, group.signs, group.scales)
    return str(group)


def over_text(symmetry: ParameterSymmetry, space: Space) -> str:
    """`over residual` for scalars over units, `per head` for copies of a group."""
    below, parts = space.over, []
    if _is_scalar(symmetry, space):
        parts.append(f"over {_short(below[-1], space.name)}")
        below = below[:-1]
    if below:
        parts.append("per " + ", ".join(_short(base, space.name) for base in below))
    return " ".join(parts)


def _is_scalar(symmetry: ParameterSymmetry, space: Space) -> bool:
    return space.size == 1 and bool(space.over)


def _short(base: str, name: str) -> str:
    """The last part of a name whose other parts are known from a neighbour's."""
    path, _, last = base.rpartition(".")
    return last if path and name.startswith(f"{path}.") else base


def notes_of(shifts: Sequence[Shift]) -> list[str]:
    """What the shifts of a space say about it."""
    notes = ["translates"] if any(s.kind == "origin" for s in shifts) else []
    for kind in ("unread", "absent"):
        if found := [s for s in shifts if s.kind == kind]:
            notes.append(f"{plural(directions(found), 'direction')} {kind}")
    return notes


def directions(shifts: Sequence[Shift]) -> int:
    """How many directions of a space its shifts leave unread or absent.

    One tensor is moved once for each direction; where a projector stands for several, it leaves
    what the columns of its windows do not span.
    """
    counted: dict[object, int] = {}
    for shift in shifts:
        kernels = [f.kernel for f in shift.terms[0].factors if f.kernel]
        count = 1
        if kernels:
            sizes = [w.shape[w.letters.index("x")] for w in kernels[0]]
            columns = sum(math.prod(w.shape) // n for w, n in zip(kernels[0], sizes, strict=True))
            count = max(1, sizes[0] - columns)
        target = shift.terms[0].target
        counted[target] = counted.get(target, 0) + count
    return max(counted.values(), default=0)


def plural(count: int, noun: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _aligned(rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Rows in columns, repeated layers as one line."""
    shown: list[tuple[str, ...]] = []
    for item in fold(list(rows)):
        if isinstance(item, Repeat):
            shown += [filled(record, item.range) for record in item.records]
        else:
            shown.append(item)
    return _columns(shown)


def _columns(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [f"{text:<{w}}" for text, w in zip(row, widths, strict=True) if w]
        yield "  ".join(cells).rstrip()

"""Symmetries as text: a listing that fits a screen, and the full table.

    residual             Permutation(768)                       1 direction unread
    h.{0..11}.ln_1       Scaling(768)           over residual   translates
    h.{0..11}.attn.qk    GeneralLinear(64)      per head        translates

Layers that repeat are one line, with the range of their numbers in braces.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from paramsym.algebra import AbstractMonomial
from paramsym.algebra.lattice import monomial
from paramsym.structure.data import SymmetryData
from paramsym.structure.folding import Repeat, filled, fold
from paramsym.structure.shift import Shift, columns_of
from paramsym.structure.space import Space

WIDTH = 120
_SHORT = 24  # lines of a signature that are shown with the spaces
_FEW = 6  # lines of what comes after the spaces


def listing(symmetry: SymmetryData) -> str:
    """Spaces with what acts on them; before them the signature, where it is short."""
    lines = [*_aligned(_signature_rows(symmetry))]
    if lines and (len(lines) > _SHORT or max(map(len, lines)) > WIDTH):
        lines = []
    ends = [*map(_cut, _aligned(_interface_rows(symmetry)))]
    rows = [space_row(symmetry, s) for s in symmetry.spaces.values() if is_free(s)]
    blocks = [lines, ends, [*map(_cut, _aligned(rows))]]
    further = [_cut(line) for line in _aligned(_further_rows(symmetry))]
    if not lines and len(further) > 2 * _FEW:
        further = [*further[: 2 * _FEW], f"and {len(further) - 2 * _FEW} more lines: see .table()"]
    return "\n\n".join("\n".join(block) for block in (*blocks, further) if block)


def _signature_rows(symmetry: SymmetryData) -> list[tuple[str, ...]]:
    """Each tensor with the types of its axes."""
    return [(name, ", ".join(map(str, axes))) for name, axes in symmetry.signature.items()]


def _interface_rows(symmetry: SymmetryData) -> list[tuple[str, ...]]:
    """Each freed input and output with the type of its feature axis."""
    return [(name, str(feature)) for name, feature in symmetry.features.items()]


def _further_rows(symmetry: SymmetryData) -> Iterator[tuple[str, ...]]:
    """What belongs to no space: shifts of the parameters alone, and what no output depends on."""
    for shift in symmetry.shifts:
        if not shift.space and shift.dimension:
            yield shift.name, f"{shift.family}, {_dimension(shift)}"
    yield from _dead_rows(symmetry)
    yield from _unreached_rows(symmetry)
    yield from random_rows(symmetry)
    yield from probed_rows(symmetry)


def random_rows(symmetry: SymmetryData) -> list[tuple[str, str]]:
    """The operators that draw numbers, and what that means for the symmetry."""
    return [
        (name, f"draws numbers at {place}: past it the symmetry holds in distribution")
        for name, place in symmetry.random.items()
    ]


def probed_rows(symmetry: SymmetryData) -> list[tuple[str, str]]:
    """The operators without a rule whose claims were tried on numbers."""
    return [(name, f"probed: {found}") for name, found in symmetry.probed.items()]


def _dead_rows(symmetry: SymmetryData) -> list[tuple[str, ...]]:
    return [(name, "dead") for name in symmetry.dead]


def _unreached_rows(symmetry: SymmetryData) -> list[tuple[str, ...]]:
    return [
        (name, f"{plural(len(rows), 'row')} not reached")
        for name, rows in symmetry.unreached.items()
    ]


def table(symmetry: SymmetryData) -> str:
    """Everything, line by line: types of all tensors, all spaces with reasons, all shifts."""
    blocks = [
        _signature_rows(symmetry),
        _interface_rows(symmetry),
        [
            (*space_row(symmetry, s)[:3], s.why + ("" if s.exact else " (not exact)"))
            for s in symmetry.spaces.values()
        ],
        [(s.name, _dimension(s), s.family, f"{s.kind} {s.space}".strip()) for s in symmetry.shifts],
        _dead_rows(symmetry),
        _unreached_rows(symmetry),
        random_rows(symmetry),
        probed_rows(symmetry),
    ]
    return "\n\n".join("\n".join(_columns(block)) for block in blocks if block)


def _cut(line: str) -> str:
    """A line that fits; `table` shows it whole."""
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def _dimension(shift: Shift) -> str:
    return bounded(shift.dimension, "direction", shift.is_counted)


def is_free(space: Space) -> bool:
    """Whether anything but the identity acts on a space."""
    return bool(space.group.dimension or space.group.log_order)


def space_row(symmetry: SymmetryData, space: Space) -> tuple[str, str, str, str]:
    """Name, group, what it stands over, and what else can be said of a space."""
    notes = notes_of(symmetry.translations(space.name))
    if not space.exact:
        notes = [*notes, "not exact"]
    return space.name, group_text(symmetry, space), over_text(symmetry, space), ", ".join(notes)


def group_text(symmetry: SymmetryData, space: Space) -> str:
    """The group of a space; for one scalar per unit, the group that acts on all units."""
    group = space.group
    if _is_scalar(symmetry, space) and isinstance(group, AbstractMonomial):
        group = monomial(symmetry.spaces[space.over[-1]].size, False, group.signs, group.scales)
    return str(group)


def over_text(symmetry: SymmetryData, space: Space) -> str:
    """`over residual` for scalars over units, `per head` for copies of a group."""
    below, parts = space.over, []
    if _is_scalar(symmetry, space):
        parts.append(f"over {_short(below[-1], space.name)}")
        below = below[:-1]
    if below:
        parts.append("per " + ", ".join(_short(base, space.name) for base in below))
    return " ".join(parts)


def _is_scalar(symmetry: SymmetryData, space: Space) -> bool:
    return space.size == 1 and bool(space.over)


def _short(base: str, name: str) -> str:
    """The last part of a name whose other parts are known from a neighbour's."""
    path, _, last = base.rpartition(".")
    return last if path and name.startswith(f"{path}.") else base


def notes_of(shifts: Sequence[Shift]) -> list[str]:
    """What the shifts of a space say about it."""
    notes = ["translates"] if any(s.kind == "origin" for s in shifts) else []
    for kind in ("unread", "absent"):
        count, exact = directions([s for s in shifts if s.kind == kind])
        if count:
            notes.append(f"{bounded(count, 'direction', exact)} {kind}")
    return notes


def directions(shifts: Sequence[Shift]) -> tuple[int, bool]:
    """How many directions of a space its shifts leave unread or absent; False if only at most.

    What several tensors show of one space is the same subspace. On the entries of one tensor, the
    directions span a sum of subspaces along one axis: single vectors (constant, or given by gains)
    and kernels, which at generic weights are independent until the axis is full.
    """
    spans: dict[object, tuple[int, dict[object, Shift]]] = {}
    for shift in shifts:
        target = shift.terms[0].target
        cut = [k for k, x in enumerate(target.letters) if x not in shift.letters]
        length = math.prod(target.shape[k] for k in cut)
        place = (target.parameter, target.start, target.shape, target.strides, *cut)
        vectors = spans.setdefault(place, (length, {}))[1]
        read = tuple((f.window.parameter, f.power, f.offset, f.kernel)
                     for f in shift.terms[0].factors)  # fmt: skip
        vectors.setdefault(read, shift)
    counted = [_span(length, list(vectors.values())) for length, vectors in spans.values()]
    return max(counted, key=lambda found: (found[0], not found[1]), default=(0, True))


def _span(length: int, shifts: list[Shift]) -> tuple[int, bool]:
    """The dimension of a sum of lines and kernels in a space of some length."""
    total, exact = 0, True
    kernels: list[set[str]] = []
    for shift in shifts:
        found = [f for f in shift.terms[0].factors if f.kernel]
        if not found:
            total += 1
            continue
        size = found[0].window.shape[0]
        left = columns_of(found[0].kernel)
        exact = exact and left is not None and len(found) == 1
        total += max(0, size - (left or 0))
        names = {window.parameter for window in found[0].kernel}
        exact = exact and all(names.isdisjoint(other) for other in kernels)
        kernels.append(names)
    return min(length, total), exact


def bounded(count: int, noun: str, exact: bool) -> str:
    """`3 rows`, or `at most 3 rows` where that is all that is known."""
    return ("" if exact else "at most ") + plural(count, noun)


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

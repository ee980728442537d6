"""The network as a picture: tensors from input to output, spaces as lanes beside them.

Each tensor is a row, each space a vertical lane from the first tensor that carries it to the last.
A mark where a row meets a lane says how: ● an axis that the space writes, ○ one that reads it (the
dual), ◆ another power, – one that is permuted with it. Repeated layers are one block. This module
only computes places; the template draws them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from paramsym.algebra import Permutation, Trivial
from paramsym.report.collapse import Group, spread
from paramsym.report.findings import Findings
from paramsym.report.folding import folded_spaces, folded_tensors
from paramsym.report.words import family
from paramsym.structure.axes import powers_of
from paramsym.structure.space import Space
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.text import group_text

GAP = 10
SMALL, LARGE = 11.0, 13.0  # sizes of type in pixels
LIMIT = 160  # rows, after which a drawing helps nobody


@dataclass
class Mark:
    """How a tensor carries a space."""

    x: float
    y: float
    kind: str  # "covariant", "dual", "power" or "order"
    family: str
    title: str


@dataclass
class Lane:
    """A space, from the first to the last tensor that carries it."""

    label: str
    space: str
    group: str
    family: str
    title: str
    x: float = 0.0
    top: float = 0.0
    bottom: float = 0.0
    label_y: float = 0.0


@dataclass
class Row:
    """A tensor."""

    label: str
    title: str
    shape: str
    y: float = 0.0
    moves: bool = True


@dataclass
class Block:
    """Rows of one repeated layer."""

    label: str
    count: int
    top: float
    bottom: float


@dataclass
class Drawing:
    """A picture in pixels."""

    width: float = 0.0
    height: float = 0.0
    left: float = 0.0
    right: float = 0.0
    rows: list[Row] = field(default_factory=list)
    lanes: list[Lane] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    omitted: int = 0
    size: float = SMALL

    @property
    def char(self) -> float:
        """The width of a letter."""
        return 0.61 * self.size

    @property
    def step(self) -> float:
        """The height of a row."""
        return 32 if self.size == LARGE else 24

    @property
    def line(self) -> float:
        """The height of a label."""
        return 1.7 * self.size


def draw(findings: Findings) -> Drawing:
    """Lay out the picture of a network."""
    symmetry = findings.symmetry
    tensors = folded_tensors(symmetry, findings.order)
    lanes = {s.name: group for group in folded_spaces(symmetry) for s in group.items}
    return _place(findings, tensors[:LIMIT], lanes, max(0, len(tensors) - LIMIT))


def _place(
    findings: Findings, tensors: list[Group[str]], lanes: dict[str, Group[Space]], omitted: int
) -> Drawing:
    symmetry = findings.symmetry
    picture = Drawing(omitted=omitted, size=LARGE if len(tensors) <= 24 else SMALL)
    touched = [_touches(symmetry, group, lanes) for group in tensors]
    spans = _spans(touched)
    starting = {i: [n for n, (top, _) in spans.items() if top == i] for i in range(len(tensors))}
    heights = _rows(findings, tensors, starting, picture)
    widest = max((len(r.label) + len(r.shape) for r in picture.rows), default=0) + 1
    picture.left = 16 + picture.char * widest
    first, apart = picture.left + 2 * picture.size, 1.5 * picture.size
    columns = _columns(spans)
    picture.right = first + apart * max(columns.values(), default=0) + 3.5 * picture.size
    groups = {group.label: group for group in lanes.values()}
    drawn: dict[str, Lane] = {}
    for label, (top, bottom) in spans.items():
        lane = drawn[label] = _lane(symmetry, groups[label], tensors[top])
        lane.x = first + apart * columns[label]
        lane.top, lane.bottom = picture.rows[top].y, picture.rows[bottom].y
        lane.label_y = heights[top] + picture.line * starting[top].index(label)
    picture.lanes = list(drawn.values())
    for row, found, group in zip(picture.rows, touched, tensors, strict=True):
        row.moves = bool(found)
        for label, power in found.items():
            kind, lane = _kind(groups[label].first, power), drawn[label]
            title = f"{group.label} carries {label} ({_MEANING[kind]})"
            picture.marks.append(Mark(lane.x, row.y, kind, lane.family, title))
    widest = max((len(lane.label) + len(lane.group) + 3 for lane in picture.lanes), default=0)
    picture.width = picture.right + picture.char * widest + 24
    return picture


def _spans(touched: list[dict[str, Fraction]]) -> dict[str, tuple[int, int]]:
    """The first and the last row that meets each lane."""
    spans: dict[str, tuple[int, int]] = {}
    for index, found in enumerate(touched):
        for label in found:
            top, _ = spans.get(label, (index, index))
            spans[label] = top, index
    return spans


def _lane(symmetry: ParameterSymmetry, lane: Group[Space], row: Group[str]) -> Lane:
    """A lane that begins at a row, yet without its place; in a block it is named as the block's."""
    rest = lane.label.removeprefix(_prefix(row.label))
    inside = rest not in ("", lane.label) and lane.count == row.count
    group = spread([group_text(symmetry, space) for space in lane.items])
    return Lane(
        rest if inside else lane.label + _times(lane), lane.label,
        group, family(lane.first.group), f"{lane.label}{_times(lane)}: {group}",
    )  # fmt: skip


def _times(group: Group) -> str:
    return f" ×{group.count}" if group.count > 1 else ""


_MEANING = {
    "covariant": "writes it", "dual": "reads it", "power": "another power",
    "order": "is permuted with it",
}  # fmt: skip


def _rows(
    findings: Findings, tensors: list[Group[str]], starting: dict[int, list[str]], picture: Drawing
) -> list[float]:
    """Fill in rows and blocks; returns the height at which each row's labels begin."""
    step = picture.step
    y, heights, prefix = 10.0, [], ""
    for index, group in enumerate(tensors):
        own = _prefix(group.label)
        if own != prefix:
            if prefix:
                picture.blocks[-1].bottom = y
                y += GAP
            prefix = own
            if own:
                picture.blocks.append(Block(own.rstrip("."), group.count, y, y))
                y += 24
        height = max(step, picture.line * len(starting[index]) + 4)
        shape = spread([" × ".join(map(str, findings.symmetry.shape(n))) for n in group.items])
        label = group.label.removeprefix(own)
        title = f"{group.label}{_times(group)}, {shape}"
        picture.rows.append(Row(label, title, shape, y + step / 2))
        heights.append(y + step / 2)
        y += height
    if prefix:
        picture.blocks[-1].bottom = y
    picture.height = y + 12
    return heights


def _prefix(label: str) -> str:
    """The part of a collapsed name up to its last range: what repeats."""
    head, brace, rest = label.rpartition("}")
    return head + brace + "." if brace and rest.startswith(".") else ""


def _touches(
    symmetry: ParameterSymmetry, tensors: Group[str], lanes: dict[str, Group[Space]]
) -> dict[str, Fraction]:
    """Lanes that tensors meet, each with the power of the first axis that does."""
    found: dict[str, Fraction] = {}
    for axis in (axis for name in tensors.items for axis in symmetry.signature[name]):
        for name, power in powers_of(axis):
            if name in lanes:
                found.setdefault(lanes[name].label, power)
    return found


def _kind(space: Space, power: Fraction) -> str:
    if isinstance(space.group, (Permutation, Trivial)):
        return "order"
    return {1: "covariant", -1: "dual"}.get(int(power), "power") if power.denominator == 1 \
        else "power"  # fmt: skip


def _columns(spans: dict[str, tuple[int, int]]) -> dict[str, int]:
    """A column for each lane, the longest lanes leftmost, none overlapping."""
    taken: list[list[tuple[int, int]]] = []
    columns: dict[str, int] = {}
    for label, (top, bottom) in sorted(spans.items(), key=lambda s: (s[1][0] - s[1][1], s[1][0])):
        fits = (k for k, o in enumerate(taken) if all(bottom < a or top > b for a, b in o))
        column = next(fits, len(taken))
        if column == len(taken):
            taken.append([])
        taken[column].append((top, bottom))
        columns[label] = column
    return columns

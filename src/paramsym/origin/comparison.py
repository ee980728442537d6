"""What two checkpoints are to each other, and what that rests on."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from statistics import mean

from paramsym.geometry.same_orbit import Verdict
from paramsym.structure.element import GroupElement

_ROWS = 24  # tensors and spaces that are printed; all are in the attributes


class Kind(StrEnum):
    """What two checkpoints are to each other."""

    IDENTICAL = "identical"
    SAME = "same up to symmetry"
    DERIVED = "derived"
    UNRELATED = "unrelated"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Null:
    """Aligned distances of unrelated pairs: draws first, then checkpoints that were given."""

    all: tuple[float, ...]

    @property
    def mean(self) -> float:
        return mean(self.all)

    @property
    def least(self) -> float:
        return min(self.all)


@dataclass(frozen=True)
class ComparedUnits:
    """The units of one space of orders, by one tensor or by all.

    Attributes:
        count: those that can be told from others.
        clear: those with a clear partner.
        base: the share of clear partners that unrelated networks may have: 0.25, or the largest
            seen among the pairs of the null distribution.
        chance: the probability of so many at that share, units taken as independent.
        decides: whether a verdict may rest on it: units are compared by 16 numbers or more, are
            enough for all of them to be no chance, and less than half of those of unrelated pairs
            have a clear partner.
    """

    count: int
    clear: int
    base: float
    chance: float
    decides: bool


@dataclass(frozen=True)
class ComparedTensor:
    """One tensor of both checkpoints.

    Attributes:
        distance: aligned distance, 0 for equal ones.
        null: the mean of it over the pairs that are unrelated; None where none was needed, and for
            tensors on which nothing acts, of which unrelated draws are no others.
        taken: whether it was taken over: all of it if the checkpoints are one up to symmetry. If
            one is derived, tensors of which at least half of the units of some space have a clear
            partner; those without units, if they are nearer than 0.6 times any unrelated pair, or
            than 0.1 where nothing acts. Gains that reduction makes one are equal in all, and do
            not count.
        units: those of the space of which the most have a clear partner, compared by this tensor
            alone; None if no space of orders acts on it, or one number is all that a unit has.
    """

    distance: float
    null: float | None
    taken: bool
    units: ComparedUnits | None = None


@dataclass(frozen=True)
class Comparison:
    """What two checkpoints are to each other.

    Attributes:
        kind: IDENTICAL, SAME (up to symmetry), DERIVED (a common origin: one from the other, or
            both from a third), UNRELATED (no trace of a common origin is left in the weights), or
            UNDECIDED.
        reason: why, in one sentence.
        distance: ‖a − b‖ / √(‖a‖² + ‖b‖²) between the reduced, aligned points; for SAME the
            largest of any tensor, as it was given.
        null: the same for unrelated pairs; None for IDENTICAL and SAME, which need none.
        tensors: by name; no buffers, nothing dead, tied tensors once.
        units: by space of orders; empty for IDENTICAL and SAME.
        element: carries b next to a; for SAME, to a.
        held: what could not be brought to its place, or was not told by anything, with the reason.
        orbit: what `same_orbit` says, with the place of the first difference; None for IDENTICAL.
    """

    kind: Kind
    reason: str
    distance: float
    null: Null | None
    tensors: dict[str, ComparedTensor]
    units: dict[str, ComparedUnits]
    element: GroupElement
    held: dict[str, str] = field(default_factory=dict)
    orbit: Verdict | None = None

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.reason}", f"distance  {_written(self.distance)}"]
        if self.null is None:
            return "\n".join(lines)
        lines[-1] += f"   unrelated  {self.null.least:.2f} and more, mean {self.null.mean:.2f}"
        spaces = [(name, _partners(units)) for name, units in self.units.items()]
        tensors = [
            (
                name, f"{t.distance:.2f}", "–" if t.null is None else f"{t.null:.2f}",
                _partners(t.units), "taken over" if t.taken else "",
            )
            for name, t in self.tensors.items()
        ]  # fmt: skip
        lines += _table(("space", "clear partners"), spaces)
        lines += _table(("tensor", "distance", "unrelated", "clear partners", ""), tensors)
        return "\n".join(lines)


def _written(distance: float) -> str:
    return f"{distance:.2f}" if distance >= 0.005 else f"{distance:.1e}"


def _partners(units: ComparedUnits | None) -> str:
    return f"{units.clear} of {units.count}" if units else "–"


def _table(head: tuple[str, ...], body: list[tuple[str, ...]]) -> list[str]:
    """Columns, the first to the left; what does not fit is counted."""
    if not body:
        return []
    rows = [head, *body[:_ROWS]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [""]
    for first, *others in rows:
        cells = [f"{first:<{widths[0]}}"]
        cells += [f"{c:>{w}}" for c, w in zip(others, widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return [*lines, *([f"({len(body) - _ROWS} more)"] if len(body) > _ROWS else [])]

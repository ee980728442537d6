"""What `check_action` found: conditions as rows, each with its control and a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .estimates import Estimate, estimate

_ROUNDINGS = 64  # relative errors up to which nothing is said of a difference
_SEEN = 10  # times the tolerance, from which on a control is seen
IDENTITY = "identity"
ASSOCIATIVITY = "associativity"
INVARIANCE = "loss invariance"
INFINITESIMAL = "infinitesimal"
REPETITION = "one map per batch"
DEPENDENCE = "data dependence"

_BROKEN = {
    REPETITION: "another element in place of the same one",
    IDENTITY: "another element in place of the identity",
    ASSOCIATIVITY: "the product in the other order or without a factor, whichever is farther",
    INVARIANCE: "as far in a random direction",
    INFINITESIMAL: "as fast in a random direction",
    DEPENDENCE: "an element for one batch and its double for the other",
}

Errors = tuple[float, float, float]  # value, moved, control


class Verdict(Enum):
    """What a row says."""

    HOLDS = "holds"
    FAILS = "fails"
    DEPENDS = "depends"
    SAME = "does not depend"
    UNDECIDED = "no verdict: the control is not seen"


@dataclass(frozen=True)
class Row:
    """One condition over all draws.

    Attributes:
        name: of the condition.
        value: the error, relative to ‖θ‖ or to ‖L‖; of data dependence the difference. It is
            judged relative to that and to the control.
        moved: the way that parameters went meanwhile, relative to ‖θ‖.
        control: the same number where the condition is broken on purpose.
        broken: how it is broken.
        verdict: what follows.
    """

    name: str
    value: Estimate
    moved: Estimate
    control: Estimate
    broken: str
    verdict: Verdict


@dataclass(frozen=True)
class ActionCheck:
    """What `check_action` found.

    Attributes:
        rows: one per condition.
        tolerance: the error up to which a condition holds, relative to θ or L and to the control.
    """

    rows: tuple[Row, ...]
    tolerance: float

    @property
    def is_symmetry(self) -> bool:
        """Whether all conditions were seen to hold: identity, associativity, invariance."""
        return all(row.verdict is Verdict.HOLDS for row in self.rows if row.name != DEPENDENCE)

    @property
    def depends_on_data(self) -> bool | None:
        """Whether two batches move one θ differently; None where that is not decided."""
        return {Verdict.DEPENDS: True, Verdict.SAME: False}.get(self[DEPENDENCE].verdict)

    def __getitem__(self, name: str) -> Row:
        """The row of a condition."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(
            f"check[{name!r}]: no such condition; {[row.name for row in self.rows]} were expected. "
            "The infinitesimal one is there if check_action is given directions=…."
        )

    def __str__(self) -> str:
        """A table, one condition per line."""
        interval = f"its {self.rows[0].value.confidence * 100:g} % interval"
        head = ("condition", "median", interval, "worst", "moved", "control", "verdict")
        lines = [head] + [_cells(row) for row in self.rows]
        widths = [max(len(line[k]) for line in lines) for k in range(len(head))]
        text = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        draws = f"{self.rows[0].value.samples} draws, tolerance {self.tolerance:.1g}"
        return "\n".join([*text, draws])


def _cells(row: Row) -> tuple[str, ...]:
    value = row.value
    return (
        row.name, f"{value.median:.1e}", f"{value.low:.1e} to {value.high:.1e}",
        f"{value.worst:.1e}", f"{row.moved.median:.1e}", f"{row.control.median:.1e}",
        row.verdict.value,
    )  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """Which errors count.

    Attributes:
        tolerance: up to which a condition holds, relative to θ or L, and to the control.
        eps: of the dtype. A difference of 64 of these, relative to θ or L, may be rounding, and
            less than one of a loss is not seen.
    """

    tolerance: float
    eps: float


def row(name: str, errors: list[Errors], limits: Limits, confidence: float) -> Row:
    """One condition from its draws: a verdict where the control is seen."""
    value, moved, control = (
        estimate(column, confidence) for column in zip(*errors, strict=True)
    )  # fmt: skip
    verdict = _verdict(name, value.worst, control.median, limits)
    return Row(name, value, moved, control, _BROKEN[name], verdict)


def _verdict(name: str, worst: float, control: float, limits: Limits) -> Verdict:
    """What the worst error says next to the control.

    θ may have entries that rest, and L a constant: errors relative to these alone would be as small
    as one likes. So they are compared with what the control changed as well. Where rounding is
    above that, nothing is seen.
    """
    bound = limits.tolerance * min(1.0, control)
    hidden = bound < worst or (name == INVARIANCE and bound < limits.eps)
    if control < _SEEN * limits.tolerance or (hidden and worst <= _ROUNDINGS * limits.eps):
        return Verdict.UNDECIDED
    if name == DEPENDENCE:
        return Verdict.SAME if worst <= bound else Verdict.DEPENDS
    return Verdict.HOLDS if worst <= bound else Verdict.FAILS

"""What a ledger says, in a few numbers for each family of conserved quantities."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class FamilyRow:
    """The quantities of one space or shift, each number the largest in absolute value.

    Attributes:
        name: of the space or shift.
        count: how many numbers.
        measured: at the parameters.
        predicted: by the recursion.
        residual: of the differences.
    """

    name: str
    count: int
    measured: float
    predicted: float
    residual: float


@dataclass(frozen=True)
class LedgerReport:
    """A ledger at one moment.

    Attributes:
        families: one row for each.
        steps: how many were entered.
        skipped: how often there was none to enter.
        scale: the largest quantity that has been measured.
        floor: what rounding of the parameters in every step makes of the quantities.
        why: by space or shift, why it has no quantity, or not all.
    """

    families: tuple[FamilyRow, ...]
    steps: int
    skipped: int
    scale: float
    floor: float
    why: Mapping[str, str] = field(default_factory=dict)

    @property
    def residual(self) -> float:
        """The largest residual of all."""
        return max((row.residual for row in self.families), default=0.0)

    @property
    def relative(self) -> float:
        """The largest residual, relative to the largest quantity."""
        return self.residual / self.scale if self.scale else self.residual

    @property
    def broken(self) -> tuple[str, ...]:
        """The families whose residual is larger than rounding explains."""
        return tuple(row.name for row in self.families if row.residual > self.floor)

    def as_dict(self) -> dict[str, Any]:
        """All numbers, for JSON."""
        return {
            **asdict(self), "residual": self.residual, "relative": self.relative,
            "broken": list(self.broken),
        }  # fmt: skip

    def to_json(self) -> str:
        """All numbers as JSON."""
        return json.dumps(self.as_dict(), indent=2, ensure_ascii=False)

    def __str__(self) -> str:
        width = max((len(row.name) for row in self.families), default=0)
        skipped = f", {self.skipped:,} skipped" if self.skipped else ""
        lines = [f"{self.steps:,} steps{skipped}"]
        lines += [
            f"{row.name:<{width}}  {row.count:>7,}  measured {row.measured:.6g}  "
            f"predicted {row.predicted:.6g}  residual {row.residual:.1e}"
            for row in self.families
        ]
        verdict = (
            f"not conserved: {', '.join(self.broken)}" if self.broken else "conserved to rounding"
        )
        lines.append(f"{verdict}; residual {self.relative:.1e} of the largest quantity")
        return "\n".join(lines)

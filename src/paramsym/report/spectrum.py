"""The singular values of an audit as a small picture, with the gap."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

WIDTH, HEIGHT = 640, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 14, 40
FLOOR = -18.0  # exponents below are drawn there: they are zero in float64
POINTS = 600


@dataclass(frozen=True)
class Spectrum:
    """Places in pixels; `ticks` are (place, text). `known` says how many values were computed."""

    points: list[tuple[float, float, bool]]  # x, y, whether it counts as zero
    rows: list[tuple[float, str]]
    columns: list[tuple[float, str]]
    gap: tuple[float, float, str] | None  # top, bottom, text
    count: int
    zeros: int
    known: int


def spectrum(audit: Any) -> Spectrum | None:
    """Lay out the singular values of an audit; None where it keeps none.

    Values that are NaN were not needed, and leave their place empty.
    """
    values = {k: float(v) for k, v in enumerate(audit.singular_values) if v == v}
    largest = max(values.values(), default=0.0)
    if not largest:
        return None
    logs = {k: _log(v / largest) for k, v in values.items()}
    bottom = min(-2.0, math.floor(min(logs.values())))
    count, rank = len(audit.singular_values), audit.gap.rank

    def x(index: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (index + 0.5) / count

    def y(log: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * log / bottom

    step = max(1, count // POINTS)
    shown = sorted({*range(0, count, step), max(rank - 1, 0), min(rank, count - 1), count - 1})
    points = [(round(x(i), 1), round(y(logs[i]), 1), i >= rank) for i in shown if i in logs]
    jump = 2 if bottom > -9 else 4
    rows = [
        (round(y(-e), 1), "1" if e == 0 else f"10{_superscript(-e)}")
        for e in range(0, int(-bottom) + 1, jump)
    ]
    ticks = [i for i in (0, count) if i == count or x(count) - x(i) > 60]
    if all(abs(x(rank) - x(i)) > 60 for i in ticks):
        ticks.insert(1, rank)
    columns = [(round(x(i - 0.5), 1), f"{i:,}") for i in ticks]
    gap = None
    if audit.gap.below and rank < count:
        upper, lower = math.log10(audit.gap.above), max(bottom, math.log10(audit.gap.below))
        text = f"gap: a factor of 10{_superscript(round(math.log10(audit.gap.ratio)))}"
        gap = (round(y(upper), 1), round(y(lower), 1), text)
    return Spectrum(points, rows, columns, gap, count, count - rank, len(values))


def _log(value: float) -> float:
    return max(FLOOR, math.log10(value)) if value > 0 else FLOOR


def _superscript(number: int) -> str:
    return str(number).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))

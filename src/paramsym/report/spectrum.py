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


@dataclass(frozen=True)
class _Axes:
    """Where indices from 0 to `count` and powers of ten from 0 down to `bottom` lie, in pixels."""

    count: int
    bottom: float

    def x(self, index: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (index + 0.5) / self.count

    def y(self, log: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * log / self.bottom


def spectrum(audit: Any) -> Spectrum | None:
    """Lay out the singular values of an audit; None where it keeps none.

    Values that are NaN were not needed, and leave their place empty.
    """
    values = {k: float(v) for k, v in enumerate(audit.singular_values) if v == v}
    largest = max(values.values(), default=0.0)
    if not largest:
        return None
    logs = {k: _log(v / largest) for k, v in values.items()}
    count, rank = len(audit.singular_values), audit.gap.rank
    axes = _Axes(count, min(-2.0, math.floor(min(logs.values()))))
    points = [
        (round(axes.x(i), 1), round(axes.y(logs[i]), 1), i >= rank)
        for i in _shown(count, rank)
        if i in logs
    ]
    return Spectrum(
        points, _powers(axes), _indices(axes, rank), _gap(axes, audit.gap),
        count, count - rank, len(values),
    )  # fmt: skip


def _shown(count: int, rank: int) -> list[int]:
    """About `POINTS` indices, the last one and both sides of the gap among them."""
    step = max(1, count // POINTS)
    return sorted({*range(0, count, step), max(rank - 1, 0), min(rank, count - 1), count - 1})


def _powers(axes: _Axes) -> list[tuple[float, str]]:
    jump = 2 if axes.bottom > -9 else 4
    return [
        (round(axes.y(-e), 1), f"10{_superscript(-e)}" if e else "1")
        for e in range(0, int(-axes.bottom) + 1, jump)
    ]


def _indices(axes: _Axes, rank: int) -> list[tuple[float, str]]:
    """Ticks at both ends and at the rank, as far as they leave each other room."""

    def apart(i: int, k: int) -> bool:
        return abs(axes.x(i) - axes.x(k)) > 60

    ticks = [0, axes.count] if apart(0, axes.count) else [axes.count]
    if all(apart(rank, i) for i in ticks):
        ticks.insert(1, rank)
    return [(round(axes.x(i - 0.5), 1), f"{i:,}") for i in ticks]


def _gap(axes: _Axes, gap: Any) -> tuple[float, float, str] | None:
    if not gap.below or gap.rank >= axes.count:
        return None
    upper, lower = math.log10(gap.above), max(axes.bottom, math.log10(gap.below))
    text = f"gap: a factor of 10{_superscript(round(math.log10(gap.ratio)))}"
    return round(axes.y(upper), 1), round(axes.y(lower), 1), text


def _log(value: float) -> float:
    return max(FLOOR, math.log10(value)) if value > 0 else FLOOR


def _superscript(number: int) -> str:
    return str(number).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))

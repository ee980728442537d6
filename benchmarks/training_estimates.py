"""Estimates over the seeds of `training.py`, and how they are written.

Differences are paired: each run is compared with the plain one of the same seed, which has the same
initial values and the same batches. ± is a standard error of the mean over seeds.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

CHOICE = (100, 101)  # seeds by which rates are chosen
DEAD = 1e7  # largest over median eigenvalue
CLEAR = 3.0  # standard errors from which a difference is set in bold
Record = dict[str, Any]


class Estimate(NamedTuple):
    """A mean over seeds and its standard error."""

    mean: float
    error: float
    seeds: int

    @property
    def clear(self) -> bool:
        return abs(self.mean) > CLEAR * self.error


def estimate(values: Sequence[float]) -> Estimate:
    """The mean with the standard error of a small sample; NaN where there are too few."""
    if not values:
        return Estimate(math.nan, math.nan, 0)
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return Estimate(statistics.fmean(values), error, len(values))


class Results:
    """Records of one part, by network, optimiser, start, method and rate."""

    def __init__(self, folder: Path) -> None:
        self.found = [
            r for path in sorted(folder.glob("*.json")) for r in json.loads(path.read_text())
        ]

    def of(self, **wanted: Any) -> list[Record]:
        """Those that agree, in the order of their seeds, without those of the choice of rates."""
        these = [r for r in self.found if all(r[k] == v for k, v in wanted.items())]
        return sorted((r for r in these if r["seed"] not in CHOICE), key=lambda r: r["seed"])

    def choice(self, **wanted: Any) -> float:
        """The mean loss over the seeds of the choice; infinite if one has diverged."""
        these = [
            r for r in self.found
            if all(r[k] == v for k, v in wanted.items()) and r["seed"] in CHOICE
        ]  # fmt: skip
        return statistics.fmean(r.get("loss", math.inf) for r in these) if these else math.inf


def values(found: Iterable[Record], what: str) -> dict[int, float]:
    """By seed, of the runs that have not diverged; conditions without those of networks that have
    died, where half of the eigenvalues are rounding."""
    limit = DEAD if what == "condition" else math.inf
    return {r["seed"]: r[what] for r in found if not r["diverged"] and r[what] < limit}


def ratio(found: list[Record], plain: list[Record], what: str) -> Estimate:
    """The paired logarithm of what was measured, over the plain runs of the same seeds."""
    ours, theirs = values(found, what), values(plain, what)
    return estimate([math.log(ours[k] / theirs[k]) for k in ours if k in theirs])


def difference(found: list[Record], plain: list[Record], what: str) -> Estimate:
    """The paired difference."""
    ours, theirs = values(found, what), values(plain, what)
    return estimate([ours[k] - theirs[k] for k in ours if k in theirs])


def pooled(found: Sequence[Estimate]) -> Estimate:
    """The mean over settings, each with the same weight, and its error if they are independent."""
    known = [f for f in found if not math.isnan(f.mean)]
    if not known:
        return Estimate(math.nan, math.nan, 0)
    error = math.sqrt(sum(f.error**2 for f in known)) / len(known)
    return Estimate(statistics.fmean(f.mean for f in known), error, len(known))


def best_rate(results: Results, **own: Any) -> float:
    """Of one method, on the seeds of the choice."""
    rates = sorted({r["rate"] for r in results.of(**own)})
    return min(rates, key=lambda rate: results.choice(**own, rate=rate))


# -- words -----------------------------------------------------------------------------------------


def minus(text: str) -> str:
    return text.replace("-", "−")


def percent(found: Estimate) -> str:
    """exp of a mean logarithm as a change in percent, bold where it is clear."""
    if math.isnan(found.mean):
        return "–"
    size = math.expm1(found.mean)
    error = (1 + size) * found.error
    digits = 0 if error > 0.005 else 1
    text = f"{100 * size:+.{digits}f} ± {100 * error:.{digits}f} %"
    return minus(f"**{text}**" if found.clear else text)


def points(found: Estimate) -> str:
    """A difference of shares in percentage points."""
    if math.isnan(found.mean):
        return "–"
    text = f"{100 * found.mean:+.2f} ± {100 * found.error:.2f}"
    return minus(f"**{text}**" if found.clear else text)


def factor(found: Estimate) -> str:
    return "–" if math.isnan(found.mean) else f"{math.exp(found.mean):.2f}"


def level(found: Estimate, size: float = 1.0, digits: int = 3) -> str:
    return f"{size * found.mean:.{digits}f} ± {size * found.error:.{digits}f}"


def lost(found: list[Record]) -> str:
    """How many runs have diverged."""
    count = sum(r["diverged"] for r in found)
    return f" ({count} of {len(found)} diverged)" if count else ""


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table in markdown."""
    print(f"\n### {title}\n\n| " + " | ".join(columns) + " |")
    print("|---" * 2 + "|---:" * (len(columns) - 2) + "|")
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |", flush=True)

"""The tables of docs/findings-ensembles.md, from the records of `ensembles.py`."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Record = dict[str, Any]
DATA = ("CIFAR-10", "MNIST")


def records(cache: Path, part: str, name: str) -> list[Record]:
    """One record for each seed that was run."""
    return [json.loads(p.read_text()) for p in sorted(cache.glob(f"{part}-{name}-*.json"))]


def estimate(values: Iterable[float]) -> tuple[float, float]:
    """The mean over seeds, and its standard error."""
    found = [*values]
    error = statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else math.nan
    return statistics.fmean(found), error


def shown(values: Iterable[float], sign: bool = False) -> str:
    mean, error = estimate(values)
    return f"{mean:+.3f} ± {error:.3f}" if sign else f"{mean:.3f} ± {error:.3f}"


def row(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |")


def head(title: str, *cells: str) -> None:
    print(f"\n{title}\n")
    row(*cells)
    print("|---" + "|---:" * (len(cells) - 1) + "|")


def clean(cache: Path, name: str) -> None:
    found = records(cache, "clean", name)
    cells = [(m, s) for m, s, *_ in found[0]["methods"]]
    strengths = sorted({s for _, s in cells})
    single = shown(r["single"] for r in found)
    head(f"{name}: vote minus network ({single}), {len(found)} seeds", "method",
         *(f"ε = {s:g}" for s in strengths))  # fmt: skip
    for method in dict.fromkeys(m for m, _ in cells):
        at = [cells.index((method, s)) for s in strengths]
        row(method, *(shown((r["methods"][k][2] - r["single"] for r in found), True) for k in at))


Judged = Callable[[Record, str], float]


def under(method: str, way: str) -> Judged:
    """Accuracy under one attempt."""
    return lambda entry, who: entry[who][f"{method} {entry['radius']:g} {way}"]


def strongest(entry: Record, who: str) -> float:
    return entry[who]["strongest"]


ATTEMPTS: dict[str, tuple[str, Judged]] = {
    "network": ("single", under("fgsm", "single logits")),
    "transferred": ("vote", under("fgsm", "single logits")),
    "mean logits": ("vote", under("fgsm", "ensemble mean-logits")),
    "mean probabilities": ("vote", under("fgsm", "ensemble mean-probabilities")),
    "mean loss": ("vote", under("fgsm", "ensemble mean-loss")),
}
STEPS: dict[str, tuple[str, Judged]] = {
    "network": ("single", under("pgd", "single logits")),
    "transferred": ("vote", under("pgd", "single logits")),
    "mean logits": ("vote", under("pgd", "ensemble mean-logits")),
    "mean loss": ("vote", under("pgd", "ensemble mean-loss")),
}
ALL: dict[str, tuple[str, Judged]] = {
    "network, all": ("single", strongest),
    "vote, all": ("vote", strongest),
    "mean logits, all": ("mean", strongest),
}


def attacks(cache: Path, name: str, part: str = "attacks") -> None:
    found = records(cache, part, name)
    for place in (1, 3):
        radius = found[0]["arms"][0]["radii"][place]["radius"]
        for title, columns in (("FGSM", ATTEMPTS), ("PGD", STEPS), ("all attempts", ALL)):
            last = ("vote − network",) if columns is ALL else ()
            head(f"{name}: {title}, radius {radius:g}, {len(found)} seeds", "members", *columns,
                 *last)  # fmt: skip
            for k, arm in enumerate(found[0]["arms"]):
                entries = [r["arms"][k]["radii"][place] for r in found]
                gains = (strongest(e, "vote") - strongest(e, "single") for e in entries)
                row(f"{arm['method']}, {arm['strength']:g}, {arm['samples']}",
                    *(shown(judge(e, who) for e in entries) for who, judge in columns.values()),
                    *((shown(gains, True),) if last else ()))  # fmt: skip


def strong(cache: Path, name: str) -> None:
    attacks(cache, name, "strong")


def conditioning(cache: Path, name: str) -> None:
    found = records(cache, "conditioning", name)
    head(f"{name}: by samples, medians over seeds", "samples", "condition", "residual",
         "error of the median member", "of the worst", "vote", "mean logits")  # fmt: skip
    for k, (samples, *_) in enumerate(found[0]["samples"]):
        columns = [[r["samples"][k][c] for r in found] for c in range(1, 8)]
        median, _, residual, error, worst, vote, mean = (statistics.median(c) for c in columns)
        row(f"{samples}", f"{median:.0f}", f"{residual:.1e}", f"{error:.2g}", f"{worst:.2g}",
            shown(columns[5]), shown(columns[6]))  # fmt: skip
    head(f"{name}: the published wrapper", "batch", "from σ(H)", "by batch mates")
    for k, (size, *_) in enumerate(found[0]["wrapper"]):
        off, moved = (statistics.median(r["wrapper"][k][c] for r in found) for c in (1, 2))
        row(f"{size}", f"{off:.1e}", f"{moved:.1e}")


def errors(cache: Path, name: str) -> None:
    found = records(cache, "errors", name)
    heads = {
        "clip": ("network", "vote", "network, clipped to [0, 1]", "vote, clipped"),
        "softmax": ("FGSM", "FGSM by logits", "vote", "vote by logits", "PGD", "PGD by logits",
                    "vote", "vote by logits"),
    }  # fmt: skip
    for part, cells in heads.items():
        head(f"{name}: {part}", "radius", *cells)
        for k, entry in enumerate(found[0][part]):
            columns = range(1, len(entry))
            row(f"{entry[0]:g}", *(shown(r[part][k][c] for r in found) for c in columns))


def main(cache: Path) -> None:
    """Those whose records are there."""
    for part in (clean, attacks, strong, conditioning, errors):
        for name in DATA:
            if records(cache, part.__name__, name):
                part(cache, name)

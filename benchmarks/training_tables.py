"""The tables of `training.py`, in markdown, from its records.

Differences are paired: each run is compared with the plain one of the same seed, which has the same
initial values and the same batches. ± is a standard error of the mean over seeds.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from training_methods import METHODS, OPTIMISERS, PLAIN
from training_networks import NAMES

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


# -- tables ----------------------------------------------------------------------------------------

OTHERS = METHODS[1:]
Told = Callable[[list[Record], list[Record]], str]


def by_method(results: Results, start: str, title: str, first: Told, told: Told) -> None:
    """Rows of networks and optimisers: something of plain training, then of each method beside."""
    rows = []
    for network in NAMES:
        for optimiser in OPTIMISERS:
            own: dict[str, Any] = {"network": network, "optimiser": optimiser, "start": start}
            plain = results.of(**own, method=PLAIN)
            if not plain:
                continue
            cells = [results.of(**own, method=method) for method in OTHERS]
            rows.append([
                network, f"{optimiser} {plain[0]['rate']:g}", first(plain, plain) + lost(plain),
                *(told(found, plain) + lost(found) if found else "–" for found in cells),
            ])  # fmt: skip
    show(f"{title}, {start} start", ["network", "optimiser, rate", PLAIN, *OTHERS], rows)


def losses(results: Results, start: str) -> None:
    by_method(
        results, start, "Training loss at the end and its change",
        lambda found, _: level(estimate([*values(found, "loss").values()])),
        lambda found, plain: percent(ratio(found, plain, "loss")),
    )  # fmt: skip


def accuracies(results: Results, start: str) -> None:
    by_method(
        results, start, "Test accuracy in per cent, and its change in points",
        lambda found, _: level(estimate([*values(found, "accuracy").values()]), 100, 2),
        lambda found, plain: points(difference(found, plain, "accuracy")),
    )  # fmt: skip


def conditions(results: Results, start: str) -> None:
    by_method(
        results, start, "Largest over median eigenvalue of J Jᵀ, and its change",
        lambda found, _: f"{statistics.geometric_mean(values(found, 'condition').values()):,.0f}",
        lambda found, plain: percent(ratio(found, plain, "condition")),
    )  # fmt: skip


def tops(results: Results, start: str) -> None:
    by_method(
        results, start, "Largest eigenvalue of J Jᵀ per example, and its change",
        lambda found, _: f"{statistics.geometric_mean(values(found, 'top').values()):,.0f}",
        lambda found, plain: percent(ratio(found, plain, "top")),
    )  # fmt: skip


def times(results: Results) -> None:
    by_method(
        results, "usual", "CPU-seconds of 300 steps, and the factor",
        lambda found, _: f"{statistics.median(r['seconds'] for r in found):.3f}",
        lambda found, plain: factor(ratio(found, plain, "seconds")),
    )  # fmt: skip


def pooled(found: Sequence[Estimate]) -> Estimate:
    """The mean over settings, each with the same weight, and its error if they are independent."""
    known = [f for f in found if not math.isnan(f.mean)]
    if not known:
        return Estimate(math.nan, math.nan, 0)
    error = math.sqrt(sum(f.error**2 for f in known)) / len(known)
    return Estimate(statistics.fmean(f.mean for f in known), error, len(known))


def summary(results: Results) -> None:
    """By start and method, over all networks and optimisers for which the method is defined."""
    rows = []
    for start in ("usual", "rescaled"):
        for method in OTHERS:
            pairs = [
                (results.of(**own, method=method), results.of(**own, method=PLAIN))
                for own in (
                    {"network": n, "optimiser": o, "start": start}
                    for n in NAMES for o in OPTIMISERS
                )
            ]  # fmt: skip
            pairs = [(found, plain) for found, plain in pairs if found and plain]
            losses = [ratio(*pair, "loss") for pair in pairs]
            gone = [sum(r["diverged"] for side in pairs for r in side[k]) for k in (0, 1)]
            better, worse = (sum(f.clear and f.mean * s > 0 for f in losses) for s in (-1, 1))
            rows.append([
                start, method, len(pairs), percent(pooled(losses)), f"{better}, {worse}",
                points(pooled([difference(*pair, "accuracy") for pair in pairs])),
                percent(pooled([ratio(*pair, "condition") for pair in pairs])),
                percent(pooled([ratio(*pair, "top") for pair in pairs])),
                f"{gone[0]}, {gone[1]}",
                factor(pooled([ratio(*pair, "seconds") for pair in pairs])),
            ])  # fmt: skip
    columns = ["start", "method", "settings", "training loss", "clearly better, worse"]
    columns += ["test accuracy, points", "largest over median eigenvalue", "largest eigenvalue"]
    show("All networks and optimisers", [*columns, "diverged, plain", "time"], rows)


def of_the_start(results: Results) -> None:
    """What a rescaled start changes, each method beside itself from the usual start."""
    rows = []
    for network in NAMES:
        for optimiser in OPTIMISERS:
            cells = []
            for method in METHODS:
                usual, rescaled = (
                    results.of(network=network, optimiser=optimiser, start=s, method=method)
                    for s in ("usual", "rescaled")
                )
                told = percent(ratio(rescaled, usual, "loss")) + lost(rescaled)
                cells.append(told if usual and rescaled else "–")
            if any(cell != "–" for cell in cells):
                rows.append([network, optimiser, *cells])
    show("Training loss from the rescaled start over that from the usual one",
         ["network", "optimiser", *METHODS], rows)  # fmt: skip


def best_rate(results: Results, **own: Any) -> float:
    """Of one method, on the seeds of the choice."""
    rates = sorted({r["rate"] for r in results.of(**own)})
    return min(rates, key=lambda rate: results.choice(**own, rate=rate))


def own_rates(results: Results) -> None:
    """Every method at its own best rate, beside plain training at the best of plain training."""
    rows = []
    for optimiser in OPTIMISERS:
        for start in ("usual", "rescaled"):
            own: dict[str, Any] = {"network": "ReLU", "optimiser": optimiser, "start": start}
            if not results.of(**own, method=PLAIN):
                continue
            plain = results.of(**own, method=PLAIN, rate=best_rate(results, **own, method=PLAIN))
            for method in METHODS:
                if not results.of(**own, method=method):
                    continue
                rate = best_rate(results, **own, method=method)
                found = results.of(**own, method=method, rate=rate)
                rows.append([
                    f"{optimiser}, {start}", method, f"{rate:g}",
                    level(estimate([*values(found, "loss").values()]), 1, 4) + lost(found),
                    percent(ratio(found, plain, "loss")) if method != PLAIN else "",
                    level(estimate([*values(found, "accuracy").values()]), 100, 2),
                    points(difference(found, plain, "accuracy")) if method != PLAIN else "",
                ])  # fmt: skip
    columns = ["optimiser, start", "method", "its rate", "training loss", "change", "test accuracy"]
    show("ReLU perceptron on digits, each method at its own best rate", [*columns, "points"], rows)


def by_rate(results: Results) -> None:
    """At every rate: the loss of plain training from both starts, and its change by balancing."""
    rows, shown = [], ("every 1", "every 10")
    for optimiser in OPTIMISERS:
        for rate in sorted({r["rate"] for r in results.of(optimiser=optimiser, method=PLAIN)}):
            row = [optimiser, f"{rate:g}"]
            for start in ("usual", "rescaled"):
                own: dict[str, Any] = {"optimiser": optimiser, "start": start, "rate": rate}
                plain = results.of(**own, method=PLAIN)
                row.append(level(estimate([*values(plain, "loss").values()])))
                for method in shown:
                    found = results.of(**own, method=method)
                    row.append(percent(ratio(found, plain, "loss")) + lost(found))
            rows.append(row)
    columns = ["optimiser", "rate"]
    columns += [f"{w}, {s}" for s in ("usual", "rescaled") for w in (PLAIN, *shown)]
    show("ReLU perceptron on digits, every method at every rate", columns, rows)


def restarts(folder: Path) -> None:
    """From one trained point: the loss after 200 further steps over that without a move."""
    rows = []
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text())
        for share in sorted({r["share"] for r in found}):
            these = [r for r in found if r["share"] == share]
            starts = [*dict.fromkeys(r["start"] for r in these)]
            base, *moved = ([r for r in these if r["start"] == start] for start in starts)
            rows.append([
                base[0]["network"], f"{share * base[0]['rate']:.2g} = {share:g} × its own",
                level(estimate([r["before"] for r in base])),
                level(estimate([*values(base, "loss").values()])) + lost(base),
                *(percent(ratio(own, base, "loss")) + lost(own) for own in moved),
            ])  # fmt: skip
    columns = ["network", "rate", "loss before", "after, as it is", "rescaled", "balanced"]
    show("SGD goes on for 200 steps from a trained point", columns, rows)


def points_of_restarts(folder: Path) -> None:
    """The eigenvalues at a trained point, and at two equivalent ones."""
    rows = []
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text())
        first = [{**r, "diverged": False} for r in found if r["share"] == found[0]["share"]]
        starts = [*dict.fromkeys(r["start"] for r in first)]
        base, *moved = ([r for r in first if r["start"] == start] for start in starts)
        for what, name in (("top", "largest"), ("condition", "largest over median")):
            size = statistics.geometric_mean(values(base, what).values())
            rows.append([base[0]["network"], name, f"{size:,.0f}",
                         *(percent(ratio(own, base, what)) for own in moved)])  # fmt: skip
    columns = ["network", "eigenvalue of J Jᵀ", "as trained", "rescaled", "balanced"]
    show("Eigenvalues at a trained point and at equivalent ones", columns, rows)


def decays(path: Path) -> None:
    """From both starts, each kind of decay: what is reached, and what the start changes."""
    found, rows = json.loads(path.read_text()), []
    for weight, kind in dict.fromkeys((r["weight"], r["penalty"]) for r in found):
        own = [r for r in found if (r["weight"], r["penalty"]) == (weight, kind)]
        usual, rescaled = ([r for r in own if r["start"] == s] for s in ("usual", "rescaled"))
        row = [kind, f"{weight:g}"]
        for what, size, digits in (("loss", 1, 3), ("accuracy", 100, 2), ("least", 1, 1)):
            row.append(level(estimate([*values(usual, what).values()]), size, digits))
        for what in ("loss", "least", "norm"):
            row.append(percent(ratio(rescaled, usual, what)))
        rows.append([*row, points(difference(rescaled, usual, "accuracy")) + lost(own)])
    columns = ["decay", "weight", "training loss", "test accuracy", "least norm R"]
    columns += [f"{what} from the rescaled start" for what in ("loss", "R", "norm", "points")]
    show("Weight decay at the point and of the orbit, ReLU perceptron, SGD", columns, rows)


def main(cache: Path) -> None:
    """All tables whose records are there."""
    results = Results(cache / "methods")
    if results.found:
        summary(results)
        for table in (losses, accuracies, conditions, tops):
            for start in ("usual", "rescaled"):
                table(results, start)
        of_the_start(results)
        times(results)
    own = Results(cache / "rates")
    if own.found:
        own_rates(own)
        by_rate(own)
    if (cache / "restarts").exists():
        restarts(cache / "restarts")
        points_of_restarts(cache / "restarts")
    if (cache / "decay" / "ReLU.json").exists():
        decays(cache / "decay" / "ReLU.json")

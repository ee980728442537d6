"""The tables of `training.py`, in markdown, from its records (`training_estimates.py`)."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from training_estimates import (
    Record,
    Results,
    best_rate,
    difference,
    estimate,
    factor,
    level,
    lost,
    percent,
    points,
    pooled,
    ratio,
    show,
    values,
)
from training_methods import METHODS, OPTIMISERS, PLAIN
from training_networks import NAMES

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

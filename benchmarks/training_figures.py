"""The figures of docs/findings-training.md, from the records of `training.py`."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from training_estimates import Results, ratio, values
from training_methods import METHODS, OPTIMISERS, PATH, PLAIN
from training_networks import NAMES

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

FOLDER = Path(__file__).parents[1] / "docs" / "figures"
COLOURS = dict(zip(METHODS, ("#222222", "#d98e04", "#0b3c5d", "#328cc1", "#3aa17e", "#b8336a"),
                   strict=True))  # fmt: skip
STYLE: dict[Any, Any] = {
    "font.size": 10, "axes.titlesize": 11, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "grid.color": "#e6e6e6", "grid.linewidth": 0.8, "axes.axisbelow": True,
    "legend.frameon": False, "legend.fontsize": 8.5, "lines.linewidth": 1.6,
    "figure.constrained_layout.use": True,
}  # fmt: skip
STARTS = ("usual", "rescaled")


def changes(results: Results) -> None:
    """Every network and optimiser: the loss of each method over that of plain training."""
    shown = [m for m in METHODS if m not in (PLAIN, PATH)]
    settings = [
        (n, o) for n in NAMES for o in OPTIMISERS if results.of(network=n, optimiser=o)
    ]  # fmt: skip
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 0.38 * len(settings) + 1.2), sharey=True)
    for axis, start in zip(axes, STARTS, strict=True):
        for row, (network, optimiser) in enumerate(settings):
            own = {"network": network, "optimiser": optimiser, "start": start}
            plain = results.of(**own, method=PLAIN)
            for k, method in enumerate(shown):
                found = ratio(results.of(**own, method=method), plain, "loss")
                if found.seeds < 2:
                    continue
                ends = [math.exp(found.mean + s * found.error) for s in (-1, 1)]
                at = row + 0.18 * (k - 1.5)
                axis.plot(ends, [at, at], color=COLOURS[method], linewidth=1.4)
                axis.plot(math.exp(found.mean), at, "o", color=COLOURS[method], markersize=4,
                          label=method if row == 0 else None)  # fmt: skip
        axis.axvline(1, color="#222222", linewidth=0.9)
        axis.set_xscale("log")
        axis.set_xticks([0.25, 0.5, 1, 2, 4], ["¼", "½", "1", "2", "4"])
        axis.minorticks_off()
        axis.set_title(f"{start} start")
        axis.set_xlabel("training loss over that of plain training")
    axes[0].set_yticks(range(len(settings)), [f"{n}, {o}" for n, o in settings])
    axes[0].invert_yaxis()
    axes[1].legend(*axes[0].get_legend_handles_labels(), loc="lower right")
    _save(figure, "changes")


def rates(results: Results) -> None:
    """The ReLU perceptron: the loss of each method at each rate, mean over seeds."""
    figure, axes = plt.subplots(2, 3, figsize=(11, 6), sharey=True)
    for line, start in zip(axes, STARTS, strict=True):
        for axis, optimiser in zip(line, OPTIMISERS, strict=True):
            for method in METHODS:
                own = {"optimiser": optimiser, "start": start, "method": method}
                found = results.of(network="ReLU", **own)
                at, means, errors = [], [], []
                for rate in sorted({r["rate"] for r in found}):
                    here = [r for r in found if r["rate"] == rate]
                    logs = [math.log(x) for x in values(here, "loss").values()]
                    if len(logs) == len(here) > 1:  # no run has diverged
                        at.append(rate)
                        means.append(math.exp(statistics.fmean(logs)))
                        errors.append(statistics.stdev(logs) / math.sqrt(len(logs)))
                if at:
                    size, share = np.array(means), np.array(errors)
                    bars = [size * (1 - np.exp(-share)), size * np.expm1(share)]
                    axis.errorbar(at, size, bars, color=COLOURS[method], label=method, marker="o",
                                  markersize=3, capsize=2)  # fmt: skip
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_title(f"{optimiser}, {start} start")
        line[0].set_ylabel("training loss")
    for axis in axes[1]:
        axis.set_xlabel("rate")
    axes[0, 0].legend()
    _save(figure, "rates")


def _save(figure, name: str) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    figure.savefig(FOLDER / f"training-{name}.png", dpi=100)
    plt.close(figure)


def main(cache: Path) -> None:
    """Those whose records are there."""
    with plt.rc_context(STYLE):
        for draw, part in ((changes, "methods"), (rates, "rates")):
            results = Results(cache / part)
            if results.found:
                draw(results)

"""The figures of docs/findings-ensembles.md, from the records of `ensembles.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from ensembles_tables import ALL, ATTEMPTS, DATA, estimate, records

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

FOLDER = Path(__file__).parents[1] / "docs" / "figures"
COLOURS = {
    "group": "#0b3c5d", "inverse": "#d98e04", "random": "#b8336a", "shuffle": "#8a8a8a",
    "interpolated-permutation": "#3aa17e",
}  # fmt: skip
STYLE: dict[Any, Any] = {
    "font.size": 10, "axes.titlesize": 11, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "grid.color": "#e6e6e6", "grid.linewidth": 0.8, "axes.axisbelow": True,
    "legend.frameon": False, "legend.fontsize": 8.5, "lines.linewidth": 1.6,
    "figure.constrained_layout.use": True,
}  # fmt: skip
SHOWN = ("transferred", "mean logits", "vote, all")
TITLES = ("FGSM, transferred", "FGSM, adaptive (mean logits)", "strongest of all attacks")


def clean(cache: Path) -> None:
    """Figure 10: change of accuracy by method and strength."""
    figure, axes = plt.subplots(1, len(DATA), figsize=(9.5, 3.9))
    for axis, name in zip(axes, DATA, strict=True):
        found = records(cache, "clean", name)
        axis.axhline(0, color="#222222", linewidth=0.9)
        for method, colour in COLOURS.items():
            at = [k for k, cell in enumerate(found[0]["methods"]) if cell[0] == method]
            points = [estimate(r["methods"][k][2] - r["single"] for r in found) for k in at]
            axis.errorbar([found[0]["methods"][k][1] for k in at], [m for m, _ in points],
                          [e for _, e in points], color=colour, label=method, marker="o",
                          markersize=3, capsize=2)  # fmt: skip
        axis.set_xscale("log")
        axis.set_yscale("symlog", linthresh=0.02)
        axis.set_xticks([0.1, 0.3, 1, 3], ["0.1", "0.3", "1", "3"])
        axis.set_yticks([-0.5, -0.1, -0.02, 0], ["−0.5", "−0.1", "−0.02", "0"])
        axis.minorticks_off()
        axis.set_title(f"{name}, network {estimate(r['single'] for r in found)[0]:.3f}")
        axis.set_xlabel("strength ε")
        axis.set_ylim(-1.2, 0.008)
    axes[0].set_ylabel("accuracy of the vote − network")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    _save(figure, "clean")


def attacks(cache: Path) -> None:
    """Figure 11: accuracy by radius under attacks, weak ones and the strongest."""
    figure, axes = plt.subplots(len(DATA), 3, figsize=(11, 6.8), sharey="row", sharex="row")
    for line, name in zip(axes, DATA, strict=True):
        found = records(cache, "attacks", name)
        for axis, attempt, title in zip(line, SHOWN, TITLES, strict=True):
            for k, arm in enumerate(found[0]["arms"]):
                if arm["method"] == "shuffle" or arm["strength"] < 0.5:
                    continue  # at chance, and on the line of the network
                square = arm["method"] == "group" and arm["samples"] < 100
                label = "group, fitted on 32" if square else arm["method"]
                colour = "#328cc1" if square else COLOURS[arm["method"]]
                _line(axis, found, k, attempt, label, colour)
            alone = "network, all" if attempt == SHOWN[2] else "network"
            _line(axis, found, 1, alone, "network", "#222222")
            axis.set_title(f"{name}: {title}")
        line[0].set_ylabel("accuracy")
    for axis in axes[-1]:
        axis.set_xlabel("radius")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    _save(figure, "attacks")


def _line(axis: Any, found: list, k: int, attempt: str, label: str, colour: str) -> None:
    """One arm: mean over seeds with its standard error, from the clean accuracy on."""
    who, judge = {**ATTEMPTS, **ALL}[attempt]
    at, points = [0.0], [estimate(r["arms"][k]["radii"][0][who]["clean"] for r in found)]
    for place, entry in enumerate(found[0]["arms"][k]["radii"]):
        if attempt in ALL and not any(name.startswith("pgd") for name in entry["single"]):
            continue  # only FGSM was tried there
        at.append(entry["radius"])
        points.append(estimate(judge(r["arms"][k]["radii"][place], who) for r in found))
    alone = who == "single"
    axis.errorbar(at, [m for m, _ in points], [e for _, e in points], color=colour, label=label,
                  marker="s" if alone else "o", markersize=3, capsize=2,
                  linestyle="--" if alone else "-", zorder=3 if alone else 2)  # fmt: skip


def conditioning(cache: Path) -> None:
    """What the correction does to images it was not fitted on, by the size of the fitting batch."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6))
    for name, colour in zip(DATA, ("#0b3c5d", "#d98e04"), strict=True):
        found = records(cache, "conditioning", name)
        samples = [entry[0] for entry in found[0]["samples"]]

        def points(column: int, found: list = found, samples: list = samples) -> dict[str, Any]:
            each = [estimate(r["samples"][k][column] for r in found) for k in range(len(samples))]
            return {"y": [m for m, _ in each], "yerr": [e for _, e in each]}

        style: Any = {"color": colour, "marker": "o", "markersize": 3, "capsize": 2}
        left.errorbar(samples, **points(4), **style, label=f"{name}, median member")
        left.errorbar(samples, **points(5), **style, linestyle=":", label=f"{name}, worst")
        right.errorbar(samples, **points(6), **style, label=f"{name}, vote")
        right.errorbar(samples, **points(7), **style, linestyle=":", label=f"{name}, mean logits")
    left.set_yscale("log")
    left.set_ylabel("change of the logits on test images")
    right.set_ylabel("clean accuracy")
    right.set_ylim(0)
    for axis in (left, right):
        axis.set_xscale("log")
        axis.set_xticks([32, 64, 128, 512, 2000], ["32", "64", "128", "512", "2,000"])
        axis.minorticks_off()
        axis.set_xlabel("images the correction was fitted on")
        axis.legend()
    _save(figure, "conditioning")


def _save(figure: Any, name: str) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    figure.savefig(FOLDER / f"ensembles-{name}.png", dpi=100)
    plt.close(figure)


def main(cache: Path) -> None:
    """Those whose records are there."""
    with plt.rc_context(STYLE):
        for draw in (clean, attacks, conditioning):
            if all(records(cache, draw.__name__, name) for name in DATA):
                draw(cache)

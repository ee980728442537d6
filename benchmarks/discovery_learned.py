"""Learned symmetries: figures 2 to 6 of a paper again, and what they do not show.

python benchmarks/discovery_learned.py [scalar laws sigmoid tanh linear constructed]

The paper is "Finding symmetry in neural network parameter spaces". Figures are written to
docs/figures. Ten minutes on one thread for all; each training takes at most two.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from paramsym.discovery import constructed_action
from paramsym.discovery.learned import (
    DATA_DEPENDENT,
    HOMOGENEOUS,
    Learned,
    Problem,
    Samples,
    Schedule,
    Weights,
    layered,
    learn,
    matrix_action,
)
from paramsym.discovery.learned.measures import finite_errors, velocities

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

FOLDER = Path(__file__).parents[1] / "docs" / "figures"
WIDE = torch.float64
COLOURS = ["#0b3c5d", "#328cc1", "#3aa17e", "#d98e04", "#b8336a"]
STYLE = {
    "font.size": 10, "axes.titlesize": 10, "axes.spines.top": False, "axes.spines.right": False,
    "legend.frameon": False, "legend.fontsize": 8.5, "lines.linewidth": 1.8,
    "figure.constrained_layout.use": True,
}  # fmt: skip
MOVING = Weights(size=10.0)  # the published weights, but for γ₄: with γ₄ = 1 nothing moves
LAWS = ("published", "commutator", "second-order")
console = Console(width=170)
rows: list[list[str]] = []


def trained(label: str, problem: Problem, seed: int = 0, **options) -> Learned:
    """One training, timed, with a row for the table and its report."""
    start = time.process_time()
    learned = learn(problem, generator=torch.Generator().manual_seed(seed), **options)
    seconds = time.process_time() - start
    report = learned.report
    every = [
        [np.mean([getattr(each, name).value for each in elements])
         for name in ("distance", "change", "elsewhere")]
        for elements in (report.finite, report.small)
    ]  # fmt: skip
    invariant = report.invariant
    rows.append(
        [label, f"{seconds:.0f}", *(f"{v:.3g}" for part in every for v in part),
         f"{report.speed.value:.3g}", f"{invariant.value:.4f}", f"{invariant.lowest_tenth:.2f}",
         *(f"{report.terms[n]:.3g}" for n in ("invariance", "identity", "size", "orthogonality")),
         *(f"{report.associativity[law]:.3g}" for law in LAWS)]
    )  # fmt: skip
    console.print(f"[bold]{label}[/bold], {seconds:.0f} CPU-seconds")
    console.print(str(report), markup=False, highlight=False)
    return learned


def _generators(path: str, matrices: list[torch.Tensor], titles: list[str], note: str) -> None:
    """Matrices as coloured squares, each on a scale of its own."""
    figure, axes = plt.subplots(1, len(matrices), figsize=(2.5 * len(matrices), 3.3))
    for axis, matrix, title in zip(np.atleast_1d(axes), matrices, titles, strict=True):
        reach = float(matrix.abs().max())
        axis.imshow(matrix, cmap="RdBu", vmin=-reach, vmax=reach)
        if len(matrix) <= 4:
            for (i, j), value in np.ndenumerate(matrix.numpy()):
                dark = abs(value) > 0.6 * reach
                text = f"{value:.1g}" if abs(value) > 0.02 * reach else "0"
                axis.text(j, i, text, ha="center", va="center", fontsize=8,
                          color="white" if dark else "black")  # fmt: skip
        axis.set(title=title, xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    figure.supxlabel(note, fontsize=9)
    figure.savefig(FOLDER / path, dpi=110)
    plt.close(figure)


def _cosine(first: torch.Tensor, other: torch.Tensor) -> float:
    return float((first * other).sum() / first.norm() / other.norm())


def scalar() -> None:
    """Figure 2, three times over: is the learned generator the expected one?"""
    problem = layered([1, 1, 1])
    assert problem.known is not None
    expected = problem.known[0]
    found = [
        trained(f"scalar, seed {seed}", problem, seed, weights=HOMOGENEOUS,
                associativity="published")
        for seed in range(3)
    ]  # fmt: skip
    titles = ["expected"]
    for each in found:
        cosine = _cosine(each.generators[0], expected)
        titles.append(f"|h| = {float(each.generators.norm()):.2f}, cos {cosine:.2f}")
        console.print("h =", each.generators[0].tolist(), f"cosine to diag(1, −1): {cosine:.3f}")
    moved = [each.report.finite[0].distance.value for each in found]
    _generators(
        "discovery-scalar.png", [expected, *(each.generators[0] for each in found)], titles,
        f"learned generators of the scalar linear net, published weights; exp(h) moves "
        f"the parameters by {min(moved):.3f} to {max(moved):.3f} of β = 1",
    )  # fmt: skip


def laws() -> None:
    """The scalar net with three laws of associativity and the integrated objective."""
    problem = layered([1, 1, 1])
    found = {
        law: trained(f"scalar, γ₄ = 10, {law}", problem, weights=MOVING, associativity=law)
        for law in LAWS
    }
    found["integrated (A.3)"] = trained(
        "scalar, γ₄ = 10, integrated (A.3)",
        problem,
        weights=MOVING,
        objective="integrated",
    )
    _finite_figure(problem, found)


def _finite_figure(problem: Problem, found: dict[str, Learned]) -> None:
    """Loss change against distance along exp(th), learned, exact and random."""
    generator = torch.Generator().manual_seed(1)
    samples = problem.draw(2000, generator, WIDE)
    assert problem.known is not None
    times = np.geomspace(0.02, 1, 9)
    figure, axis = plt.subplots(figsize=(6.4, 4.2))
    for colour, (label, each) in zip(COLOURS, found.items(), strict=False):
        points = [
            finite_errors(each.network, each.generators, problem, samples, generator, float(t))[0]
            for t in times
        ]
        distance = [p.distance.value for p in points]
        axis.loglog(distance, [p.change.value for p in points], "o-", ms=3, c=colour, label=label)
    flowed = _flowed(found["commutator"], samples, steps=20)
    console.print(f"flow of the learned field to t = 1: distance, change {flowed[-1]}")
    axis.loglog(*zip(*flowed, strict=True), "s-", ms=3, c=COLOURS[4],
                label="flow of the field learned with commutator")  # fmt: skip
    points = [
        finite_errors(matrix_action, problem.known, problem, samples, generator, float(t))[0]
        for t in np.geomspace(0.01, 1, 9)
    ]
    distance = [p.distance.value for p in points]
    axis.loglog(distance, [p.elsewhere.value for p in points], "--", c="#888888",
                label="random direction")  # fmt: skip
    exact = max(max(p.change.value for p in points), 1e-17)
    axis.axhline(exact, c="black", ls=":", label=f"exact rescaling: {exact:.0e}")
    axis.set(xlabel="median distance moved by exp(th), 0.02 ≤ t ≤ 1",
             ylabel="median change of the loss, relative")  # fmt: skip
    axis.legend(loc="center left")
    figure.savefig(FOLDER / "discovery-finite.png", dpi=110)
    plt.close(figure)


def _flowed(learned: Learned, samples: Samples, steps: int) -> list[tuple[float, float]]:
    """Distances and loss changes along exp(tξ) of the learned field itself, by Runge and Kutta."""
    problem, theta = learned.problem, samples.parameters
    before = problem.loss(samples).sum(1)

    def field(at: torch.Tensor) -> torch.Tensor:
        found = velocities(learned.network, learned.generators, problem, samples.at(at))
        return found[0] / steps

    points = []
    at = theta
    for _ in range(steps):
        first = field(at)
        second = field(at + first / 2)
        third = field(at + second / 2)
        at = at + (first + 2 * second + 2 * third + field(at + third)) / 6
        change = (problem.loss(samples.at(at)).sum(1) - before).abs() / before
        points.append((float((at - theta).norm(dim=1).median()), float(change.median())))
    return points


def _pair(name: str, problem: Problem, weights: Weights, schedule: Schedule) -> dict[str, Learned]:
    return {
        law: trained(f"{name}, {law}", problem, generators=3, weights=weights, associativity=law,
                     schedule=schedule)
        for law in ("published", "commutator")
    }  # fmt: skip


LONG = Schedule(steps=2500, batch=64, decay=1.0)


def _captioned(path: str, learned: Learned, name: str) -> None:
    report = learned.report
    titles = [
        f"|h| = {float(h.norm()):.2g}, moves {each.distance.value:.2f},\n"
        f"loss {100 * each.change.value:.0f} % (random {100 * each.elsewhere.value:.0f} %)"
        for each, h in zip(report.finite, learned.generators, strict=True)
    ]
    note = (f"learned generators, {name}; cosine to ker DF: median {report.invariant.value:.3f}, "
            f"lowest tenth {report.invariant.lowest_tenth:.2f}")  # fmt: skip
    _generators(path, list(learned.generators), titles, note)


def sigmoid() -> None:
    """Figures 3 and 6."""
    found = _pair("sigmoid 3-3-1", layered([3, 3, 1], "sigmoid"), DATA_DEPENDENT, LONG)
    _captioned("discovery-sigmoid.png", found["published"], "sigmoid 3-3-1")
    figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.6), sharey=True)
    names = ["objective", "invariance", "identity", "associativity", "size"]
    for axis, (law, each) in zip(axes, found.items(), strict=True):
        steps = [row["step"] for row in each.curve]
        for colour, name in zip(COLOURS, names, strict=True):
            axis.semilogy(steps, [row[name] for row in each.curve], c=colour, label=name)
        axis.set(title=f"sigmoid 3-3-1, {law} associativity", xlabel="step")
        axis.grid(color="#e6e6e6")
    axes[0].legend(ncols=2)
    figure.savefig(FOLDER / "discovery-curve.png", dpi=110)
    plt.close(figure)


def tanh() -> None:
    """Figure 4."""
    found = _pair("tanh 2-2-2-1", layered([2, 2, 2, 1], "tanh"), DATA_DEPENDENT, LONG)
    _captioned("discovery-tanh.png", found["published"], "tanh 2-2-2-1")


def linear() -> None:
    """Figure 5."""
    problem = layered([1, 2, 1])
    found = _pair("linear 1-2-1", problem, HOMOGENEOUS, Schedule(steps=2500, batch=64))
    _captioned("discovery-linear.png", found["published"], "linear 1-2-1")
    trained("linear 1-2-1, γ₄ = 10, |cos|, commutator", problem, generators=3, weights=MOVING,
            signed=False, associativity="commutator", schedule=LONG)  # fmt: skip


def constructed() -> None:
    """What flows inside of level sets do in the place of figures 3 and 4."""
    for name, widths, moving in (
        ("sigmoid", [3, 3, 1], ["W1", "W2"]),
        ("tanh", [2, 2, 2, 1], ["W1", "W2", "W3"]),
        ("tanh", [2, 2, 2, 1], ["W1", "W3"]),
    ):
        problem = layered(widths, name)
        generator = torch.Generator().manual_seed(0)
        samples = problem.draw(40, generator, WIDE)
        start = time.process_time()
        found = [_flow(problem, samples[i : i + 1], moving, generator) for i in range(40)]
        seconds = (time.process_time() - start) / len(found)
        distance, change = torch.tensor(found, dtype=WIDE).T
        console.print(
            f"{name} {widths}, of {moving}: 40 samples, θ moves by {distance.median():.3f} "
            f"({distance.min():.3f} to {distance.max():.3f}), the loss changes by "
            f"{change.median():.1e} of itself, at most {change.max():.1e}; {seconds:.3f} "
            "CPU-seconds to make and apply one",
            highlight=False,
        )


def _flow(
    problem: Problem, sample: Samples, moving: list[str], generator: torch.Generator
) -> tuple[float, float]:
    """How far h of length one moves parameters, and the relative change of the loss."""
    every = {name: part[0] for name, part in problem.parts(sample.parameters).items()}

    def function(params: dict[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
        whole = {**every, **params}
        return problem.function({n: t[None] for n, t in whole.items()}, inputs[None]).flatten()

    inputs = sample.inputs[0]
    action = constructed_action(function, inputs, {name: every[name] for name in moving})
    h = torch.randn(len(action.directions), generator=generator, dtype=WIDE)
    moved = {**every, **action(h / h.norm(), {name: every[name] for name in moving}, inputs)}
    after = sample.at(problem.flat({name: part[None] for name, part in moved.items()}))
    before = problem.loss(sample)
    change = float(((problem.loss(after) - before).abs() / before).max())
    return float((after.parameters - sample.parameters).norm()), change


TASKS: dict[str, Callable[[], None]] = {
    "scalar": scalar, "laws": laws, "sigmoid": sigmoid, "tanh": tanh, "linear": linear,
    "constructed": constructed,
}  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    plt.rcParams.update(STYLE)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for task in sys.argv[1:] or TASKS:
        TASKS[task]()
    table = Table(
        "training", "CPU s", "moves", "ΔL/L", "random", "/10 moves", "ΔL/L", "random", "speed",
        "cos", "tenth", "(5)", "(6)", "(8)", "(9)", *LAWS,
    )  # fmt: skip
    for row in rows:
        table.add_row(*row)
    console.print(table)

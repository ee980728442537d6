"""Does training that rebalances along the symmetry orbit help? Methods, optimisers, starts, seeds.

    python benchmarks/training.py [methods rates restarts decay …] [--data FOLDER] [--cache FOLDER]
        [--only NETWORK …] [--seeds N] [--minutes M] [--tables]

* `methods`: every network, optimiser, start and method at the rate that is best for plain training.
* `rates`: the ReLU perceptron on digits, every method at each of five rates.
* `restarts`: training goes on from a trained point, from a rescaled and from a balanced one.
* `decay`: weight decay at the point, and at the least norm of its orbit (`orbit_penalty`).

Rates are chosen by the training loss of plain training from the usual start (path-SGD, whose steps
have another unit, by its own), on two seeds that are not used afterwards. What was run is kept in
the cache and not run again; `--minutes` ends early, `--tables` prints what is there. The tables of
docs/findings-training.md and its figures (`training_figures.py`) come from these. One thread.
MNIST is mnist.npz in --data, by default $PARAMSYM_DATA; without it that network is left out.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import training_figures
import training_tables
from training_estimates import CHOICE
from training_methods import METHODS, OPTIMISERS, PATH, PLAIN, Hook, applies
from training_networks import NAMES, Case, case
from training_runs import (
    EXAMPLES,
    Cell,
    Record,
    Training,
    loss_and_accuracy,
    records,
    spectrum,
    written,
)

from paramsym import balance
from paramsym.training.penalty import orbit_penalty

STARTS = ("usual", "rescaled")
RATES = {
    "SGD": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    "momentum": (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
    "Adam": (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
    PATH: (0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
}
GRID = {
    "SGD": (0.03, 0.1, 0.3, 0.6, 1.0),
    "momentum": (0.01, 0.03, 0.1, 0.2, 0.3),
    "Adam": (0.001, 0.003, 0.01, 0.03, 0.06),
    PATH: (0.003, 0.01, 0.03, 0.1, 0.3),
}
DECAYS, PENALTIES = (0.0, 1e-3, 1e-2), ("at the point", "of the orbit")
RESTARTS = ("as it is", "rescaled", "balanced")
SHARES = (0.008, 0.04, 0.2, 1.0)  # of the rate that the point was trained with


class Study:
    """The cases, and where results are kept."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.folder = options, Path(options.cache)
        self.end = time.process_time() + 60 * options.minutes
        self.cases: dict[str, Case] = {}

    def case(self, name: str) -> Case:
        if name not in self.cases:
            self.cases[name] = case(name, Path(self.options.data))
        return self.cases[name]

    def records(self, part: str, cell: Cell, seeds: tuple[int, ...]) -> list[Record]:
        if time.process_time() > self.end:
            raise SystemExit("out of time; call again to go on from here")
        return records(self.case(cell.network), cell, seeds, self.folder / part)

    def rate(self, network: str, optimiser: str, method: str = PLAIN) -> float:
        """The best of the rates for plain training, or for path-SGD, on the seeds of the choice."""
        rates, own = (RATES[PATH], PATH) if method == PATH else (RATES[optimiser], PLAIN)
        means = {
            rate: _mean(
                self.records("choice", Cell(network, optimiser, own, "usual", rate), CHOICE)
            )
            for rate in rates
        }
        return min(means, key=lambda rate: means[rate])


def _mean(found: list[Record]) -> float:
    return sum(r.get("loss", math.inf) for r in found) / len(found)


def combinations(case: Case) -> Iterator[tuple[str, str, str]]:
    """Optimiser, start and method, where they are defined together."""
    for optimiser in OPTIMISERS:
        for start in STARTS:
            for method in METHODS:
                if applies(method, case, optimiser):
                    yield optimiser, start, method


def methods(study: Study) -> None:
    """All methods at the rate chosen for plain training."""
    seeds = tuple(range(study.options.seeds))
    for network in study.options.only:
        for optimiser, start, method in combinations(study.case(network)):
            rate = study.rate(network, optimiser, method)
            cell = Cell(network, optimiser, method, start, rate)
            study.records("methods", cell, seeds)
        print(f"{network}: {time.process_time():.0f} CPU-seconds", file=sys.stderr)


def rates(study: Study) -> None:
    """One network, every method at every rate, on the seeds of the choice and on others."""
    for optimiser, start, method in combinations(study.case("ReLU")):
        for rate in GRID[PATH if method == PATH else optimiser]:
            cell = Cell("ReLU", optimiser, method, start, rate)
            study.records("rates", cell, (*CHOICE, *range(study.options.seeds)))


def restarts(study: Study, count: int = 10) -> None:
    """From a point that plain SGD has reached: on as it is, rescaled, or balanced."""
    for network in {"ReLU", "ReLU MNIST"} & {*study.options.only}:
        made, rate = study.case(network), study.rate(network, "SGD")
        path, found = study.folder / "restarts" / f"{network}.json", []
        if path.exists():
            continue
        for seed in range(count):
            model = made.started(seed, "usual")
            optimiser = torch.optim.SGD(model.parameters(), rate)
            Training(made, model, optimiser, Hook(), seed).go(made.steps)
            point = {n: p.clone() for n, p in model.state_dict().items()}
            starts = dict(zip(RESTARTS, (
                point, made.rescaled(point, seed),
                balance(made.symmetry, point, shifts=False).params,
            ), strict=True))  # fmt: skip
            for start, params in starts.items():
                model.load_state_dict(params)
                top, condition = spectrum(model, made.test[0][:EXAMPLES])
                for share in SHARES:
                    model.load_state_dict(params)
                    optimiser = torch.optim.SGD(model.parameters(), share * rate)
                    before = loss_and_accuracy(model, *made.train)[0]
                    going = Training(made, model, optimiser, Hook(), 500 + seed).go(200)
                    after = loss_and_accuracy(model, *made.train)[0] if going else math.inf
                    found.append({
                        "network": network, "seed": seed, "start": start, "rate": rate,
                        "share": share, "before": before, "loss": after, "diverged": not going,
                        "top": top, "condition": condition,
                    })  # fmt: skip
        written(path, found)


def decay(study: Study, count: int = 8) -> None:
    """Weight decay at the point, and at the least norm of its orbit; plain SGD."""
    made, rate = study.case("ReLU"), study.rate("ReLU", "SGD")
    path, found = study.folder / "decay" / "ReLU.json", []
    if path.exists():
        return
    for seed, start, weight in itertools.product(range(count), STARTS, DECAYS):
        for kind in PENALTIES if weight else ("none",):
            model = made.started(seed, start)
            own = dict(model.named_parameters())

            def penalty(kind=kind, own=own, weight=weight) -> torch.Tensor | float:
                if kind == "none":
                    return 0.0
                if kind == PENALTIES[1]:
                    return weight * orbit_penalty(made.symmetry, own, tolerance=1e-6).float()
                return weight * torch.stack([p.square().sum() for p in own.values()]).sum()

            optimiser = torch.optim.SGD(own.values(), rate)
            training = Training(made, model, optimiser, Hook(), seed, penalty)
            going = training.go(made.steps)
            least = float(orbit_penalty(made.symmetry, own).detach()) if going else math.nan
            found.append({
                "seed": seed, "start": start, "weight": weight, "penalty": kind, "rate": rate,
                "diverged": not going, "loss": loss_and_accuracy(model, *made.train)[0],
                "accuracy": loss_and_accuracy(model, *made.test)[1], "least": least,
                "norm": float(sum(p.detach().square().sum() for p in own.values())),
            })  # fmt: skip
    written(path, found)


PARTS = {part.__name__: part for part in (methods, rates, restarts, decay)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", default=[*PARTS], help=f"among {', '.join(PARTS)}")
    parser.add_argument("--data", default=os.environ.get("PARAMSYM_DATA", "."))
    default = Path(tempfile.gettempdir()) / "paramsym-training"
    parser.add_argument("--cache", type=Path, default=default)
    parser.add_argument("--only", nargs="+", default=[*NAMES])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--tables", action="store_true", help="run nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    missing = not (Path(options.data) / "mnist.npz").exists()
    if missing and "ReLU MNIST" in options.only:
        print(f"left out: ReLU MNIST: {options.data} has no mnist.npz", file=sys.stderr)
        options.only.remove("ReLU MNIST")
    for part in options.parts if not options.tables else ():
        PARTS[part](Study(options))
    training_tables.main(options.cache)
    training_figures.main(options.cache)


if __name__ == "__main__":
    main()

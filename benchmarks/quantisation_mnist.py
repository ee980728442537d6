"""What the least expected error buys on MNIST: twenty small trained networks, and pruning of six.

    python benchmarks/quantisation_mnist.py path/to/mnist.npz [errors|pruning …]

Prints the MNIST tables of docs/findings-quantisation.md. Pixels are in [0, 1]; networks are trained
for three epochs (batches of 128) by Adam (1e-3) or by gradient descent (0.1, momentum 0.9), without
weight decay. Sensitivities for the scales come from 256 images of the training set, errors from
1,000 images of the test set and accuracies from all of it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from quantisation import TOLERANCE, State, accuracy, equalised, pruned, rescaled, spread
from torch import nn

from paramsym import ParameterSymmetry, balance, find_symmetry
from paramsym.quantize.errors import minimize_quantization_error
from paramsym.quantize.grids import Grid
from paramsym.quantize.ranges import minimize_range
from paramsym.quantize.sensitivities import sensitivities

SHAPES = [(32, 32), (24, 24, 24), (64,), (100, 100), (48, 48, 48, 48)]
GRIDS = {"symmetric": Grid(4), "not symmetric": Grid(4, symmetric=False)}
POINTS = 20  # random equivalent points of a network, with scales of σ = 0.05 … 1


class Mnist:
    """Images of 28 × 28 digits: to train on, to calibrate on, and to measure on."""

    def __init__(self, path: str) -> None:
        with np.load(path) as file:
            x = {k: torch.from_numpy(file[k]) for k in ("x_train", "y_train", "x_test", "y_test")}
        images = [x[k].reshape(-1, 784).float() / 255 for k in ("x_train", "x_test")]
        self.train, self.labels = images[0], x["y_train"].long()
        self.calibration, self.held = images[0][:256].double(), images[1].double()
        self.truth = x["y_test"].long()


def trained(data: Mnist, hidden: Sequence[int], optimiser: str, seed: int) -> nn.Sequential:
    """A network after three epochs."""
    torch.manual_seed(seed)
    model = network(hidden).float()
    rule = (
        torch.optim.Adam(model.parameters(), 1e-3)
        if optimiser == "Adam"
        else torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    )
    for _ in range(3):
        for batch in torch.randperm(len(data.train)).split(128):
            rule.zero_grad()
            nn.functional.cross_entropy(model(data.train[batch]), data.labels[batch]).backward()
            rule.step()
    return model.double()


def network(hidden: Sequence[int]) -> nn.Sequential:
    sizes = (784, *hidden, 10)
    made = [(nn.Linear(a, b), nn.ReLU()) for a, b in zip(sizes, sizes[1:], strict=False)]
    return nn.Sequential(*[layer for pair in made for layer in pair][:-1])


class Problem(NamedTuple):
    """A trained network with what is measured on it once."""

    model: nn.Module
    params: State
    symmetry: ParameterSymmetry
    calibrated: State  # sensitivities on the images to calibrate on
    held: State  # and on those to measure on


def problem(data: Mnist, model: nn.Module) -> Problem:
    params = {n: p.detach().clone() for n, p in model.state_dict().items()}
    symmetry = find_symmetry(model, (data.calibration[:3],), check=False)
    generator = torch.Generator().manual_seed(1)
    calibrated = sensitivities(model, [(data.calibration,)], 64, generator)
    held = sensitivities(model, [(data.held[:1000],)], 32, generator)
    return Problem(model, params, symmetry, calibrated, held)


def expected(made: Problem, params: State, grid: Grid, held: bool = True) -> float:
    """Σ Δ²/12 · Σ F at an equivalent point: F goes with the inverse square of a weight's scale."""
    total = 0.0
    for name, f in (made.held if held else made.calibrated).items():
        w, v = made.params[name], params[name]
        if w.ndim >= 2:
            there = f * torch.where(v != 0, w / v, torch.ones_like(w)).square()
            total += float((grid.ranges(v) / grid.steps).square() * there.sum() / 12)
    return total


def measured(made: Problem, params: State, data: Mnist, grid: Grid) -> float:
    """The squared change of the logits by rounding to the nearest."""
    x = data.held[:1000]
    rounded = {n: grid.rounded(p) if p.ndim >= 2 else p for n, p in params.items()}
    moved = torch.func.functional_call(made.model, rounded, (x,)) - made.model(x)
    return float(moved.square().sum())


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's."""
    ranks = [torch.tensor(x).argsort().argsort().double() for x in (one, other)]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])


def errors(data: Mnist, nets: Sequence[tuple[str, nn.Module]]) -> None:
    """Both grids: by scales the errors relative to equalisation and the accuracy at 3 bits."""
    problems = [(label, problem(data, model)) for label, model in nets]
    for kind, grid in GRIDS.items():
        three = Grid(3, symmetric=grid.symmetric)
        rows: dict[str, list[tuple[float, float, float]]] = {}
        kinds: dict[str, list[float]] = {}
        ranks, floors, worst = [], [], 0.0
        for label, made in problems:
            params, symmetry = made.params, made.symmetry
            layers = [n.removesuffix(".weight") for n in params if n.endswith("weight")]
            best = minimize_quantization_error(
                symmetry, params, made.calibrated, grid, tolerance=TOLERANCE
            )
            worst = max(worst, best.gap / best.value)
            points = {
                "untouched": params,
                "equalised": equalised(params, layers),
                "least range": minimize_range(symmetry, params).params,
                "L2 balance": balance(symmetry, params, shifts=False).params,
                "error-weighted": best.params,
            }
            rival = expected(made, points["equalised"], grid, held=False)
            floors.append((best.value - best.gap) / rival)
            aims = {n: expected(made, p, grid) for n, p in points.items()}
            met = {n: measured(made, p, data, grid) for n, p in points.items()}
            for n, p in points.items():
                found = aims[n] / aims["equalised"], met[n] / met["equalised"]
                rows.setdefault(n, []).append((*found, accuracy(made.model, p, data, three)))
            kinds.setdefault(label, []).append(aims["error-weighted"] / aims["equalised"])
            far = [rescaled(symmetry, best.params, k, (k + 1) / POINTS) for k in range(POINTS)]
            ranks.append(rank_correlation(
                [expected(made, p, grid) for p in far], [measured(made, p, data, grid) for p in far]
            ))  # fmt: skip
        print(f"\n{len(nets)} networks, {kind}; certified within {100 * worst:.2g} %; no")
        print(f"scales reach less than {spread(floors)} on the images to calibrate on; rank")
        print(f"correlation of foretold and measured error over random points {spread(ranks)}\n")
        print(
            "| scales | expected error | measured error | accuracy at 3 bits |\n|---|---|---|---|"
        )
        for n, found in rows.items():
            cells = " | ".join(spread([row[k] for row in found]) for k in range(3))
            print(f"| {n} | {cells} |")
        print("\n" + "\n".join(f"{n}: {spread(found)}" for n, found in kinds.items()), flush=True)
    first_kept([made for _, made in problems])


def first_kept(problems: Sequence[Problem]) -> None:
    """The same where the first layer is not rounded: its weights take up scales at no error."""
    for kind, grid in GRIDS.items():
        ratios: dict[str, list[float]] = {"every layer": [], "layers that are rounded": []}
        for every in problems:
            held, calibrated = (
                {n: f for n, f in found.items() if f.ndim >= 2 and n != "0.weight"}
                for found in (every.held, every.calibrated)
            )
            made = every._replace(held=held, calibrated=calibrated)
            names = [n for n in calibrated if made.params[n].ndim >= 2]
            best = minimize_quantization_error(
                made.symmetry, made.params, calibrated, grid, quantized=names, tolerance=TOLERANCE
            )
            own = expected(made, best.params, grid)
            layers = [n.removesuffix(".weight") for n in made.params if n.endswith("weight")]
            for peer, equal in zip(ratios, (layers, layers[1:]), strict=True):
                ratios[peer].append(own / expected(made, equalised(made.params, equal), grid))
        for peer, found in ratios.items():
            print(
                f"first layer kept, {kind}, against {peer} equalised: {spread(found)}", flush=True
            )


def scale_free(made: Problem, share: float) -> State:
    """Weights below the global quantile of w²F set to zero: it is one number at equivalent points.

    Source: Hassibi and Stork, "Optimal brain surgeon" (1993), with a diagonal matrix.
    """
    saliency = {n: made.params[n].square() * f for n, f in made.calibrated.items() if f.ndim >= 2}
    flat = torch.cat([s.reshape(-1) for s in saliency.values()]).sort().values
    level = flat[int(share * len(flat))]
    return {n: p * (saliency[n] > level) if n in saliency else p for n, p in made.params.items()}


def pruning(data: Mnist, models: Sequence[nn.Module], share: float = 0.8) -> None:
    """Accuracy after pruning by magnitude from several points of one orbit, and by w²F."""
    rows: dict[str, list[float]] = {}
    for seed, model in enumerate(models):
        made = problem(data, model)
        far = rescaled(made.symmetry, made.params, seed)
        model.load_state_dict(far)
        there = problem(data, model)
        points = {
            "dense": made.params,
            "magnitude, as trained": pruned(made.params, share),
            "magnitude, least L2": pruned(
                balance(made.symmetry, made.params, shifts=False).params, share
            ),
            "magnitude, least L1": pruned(
                balance(made.symmetry, made.params, "l1", shifts=False).params, share
            ),
            "magnitude, rescaled": pruned(far, share),
            "magnitude, rescaled then least L2": pruned(
                balance(made.symmetry, far, shifts=False).params, share
            ),
            "w²F, as trained": scale_free(made, share),
            "w²F, rescaled": scale_free(there, share),
        }
        for name, point in points.items():
            rows.setdefault(name, []).append(accuracy(model, point, data, None))
    print(
        f"\n{len(models)} networks pruned by {100 * share:.0f} %\n\n"
        "| weights | accuracy |\n|---|---|"
    )
    for name, found in rows.items():
        print(f"| {name} | {spread(found)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("tables", nargs="*", default=["errors", "pruning"])
    chosen = parser.parse_args()
    start, data = time.process_time(), Mnist(chosen.data)
    if "errors" in chosen.tables:
        nets = [
            (f"784-{'-'.join(map(str, hidden))}-10", trained(data, hidden, optimiser, seed))
            for hidden in SHAPES for optimiser in ("Adam", "SGD") for seed in range(2)
        ]  # fmt: skip
        errors(data, nets)
    if "pruning" in chosen.tables:
        pruning(data, [trained(data, (100, 100), "Adam", seed) for seed in range(6)])
    print(f"\n{time.process_time() - start:.0f} CPU-seconds")


if __name__ == "__main__":
    main()

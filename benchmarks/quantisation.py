"""What the least expected error buys: small trained networks, rounded at equivalent points.

    python benchmarks/quantisation.py [mlp|pruning|deep|conv|grids …] [--seeds 8]

Prints the tables of docs/findings-quantisation.md. Every number is the expected squared change of
the logits on held-out images when each weight is moved by an independent uniform error of the
width of its step, to second order (the sum of Δ²/12 · F with F measured on those images), relative
to converged cross-layer equalisation; and the accuracy after rounding to the nearest.
"""

from __future__ import annotations

import argparse
import time

import torch
from sklearn.datasets import load_digits
from torch import nn

from paramsym import ParameterSymmetry, act, balance, find_symmetry
from paramsym.quantize.errors import minimize_quantization_error
from paramsym.quantize.grids import Grid
from paramsym.quantize.sensitivities import sensitivities

State = dict[str, torch.Tensor]
GRIDS = {
    "int4 per tensor": Grid(4),
    "int3 per tensor": Grid(3),
    "int8 per tensor": Grid(8),
    "int4 per channel": Grid(4, "channel"),
    "int4 per tensor, not symmetric": Grid(4, symmetric=False),
}
WIDTHS = {"mlp": (64, 32, 32, 10), "deep": (64, 24, 24, 24, 24, 10)}
TOLERANCE = 2e-2  # of the error: differences of interest are larger


class Digits:
    """Images of 8 × 8 digits: to train on, to calibrate on, and to measure on."""

    def __init__(self) -> None:
        images, labels = load_digits(return_X_y=True)
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
        x, y = torch.from_numpy(images / 8 - 1)[order], torch.from_numpy(labels)[order]
        self.train, self.labels = x[:1200], y[:1200]
        self.calibration = x[:256]
        self.held, self.truth = x[1200:], y[1200:]


def trained(data: Digits, seed: int, kind: str) -> nn.Sequential:
    """A network after 60 epochs of Adam with a little weight decay."""
    torch.manual_seed(seed)
    if kind in WIDTHS:
        sizes = WIDTHS[kind]
        made = [(nn.Linear(a, b), nn.ReLU()) for a, b in zip(sizes, sizes[1:], strict=False)]
        model = nn.Sequential(*[layer for pair in made for layer in pair][:-1])
    else:
        model = nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3),
            nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(64, 10),
        )  # fmt: skip
    model = model.double()
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=1e-2)
    for _ in range(60 if kind in WIDTHS else 25):
        for batch in torch.randperm(len(data.train)).split(100):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(data.train[batch]), data.labels[batch])
            loss.backward()
            optimiser.step()
    return model


def equalised(params: State, layers: list[str], sweeps: int = 3000) -> State:
    """Cross-layer equalisation to convergence: the ranges of each unit on its two sides are equal.

    Source: Nagel, van Baalen, Blankevoort and Welling (2019); the scale of a unit is the root of
    the range of what it writes over that of what reads it.
    """
    params = {n: p.clone() for n, p in params.items()}
    for _ in range(sweeps):
        worst = 0.0
        for before, after in zip(layers, layers[1:], strict=False):
            w, v = params[before + ".weight"], params[after + ".weight"]
            units = len(w)
            split = v.reshape(len(v), units, -1)  # flattened maps: several columns to a channel
            own, read = w.flatten(1).abs().amax(1), split.abs().amax((0, 2))
            scale = (read / own).sqrt()
            scale = torch.where((own > 0) & (read > 0), scale, torch.ones_like(scale))
            w *= scale.reshape(-1, *[1] * (w.ndim - 1))
            params[before + ".bias"] *= scale
            params[after + ".weight"] = (split / scale[None, :, None]).reshape(v.shape)
            worst = max(worst, float(scale.log().abs().max()))
        if worst < 1e-9:
            break
    return params


def with_outliers(symmetry: ParameterSymmetry, params: State, seed: int) -> State:
    """An equivalent network with two units of every layer 30 times as large."""
    generator = torch.Generator().manual_seed(seed)
    values = {}
    for name, space in symmetry.spaces.items():
        scales = torch.ones(space.size, dtype=torch.float64)
        scales[torch.randperm(space.size, generator=generator)[:2]] = 30.0
        values[name] = scales.log()
    return act(symmetry, symmetry.velocity(values).exp(), params)


def rescaled(symmetry: ParameterSymmetry, params: State, seed: int, sigma: float = 1.0) -> State:
    """An equivalent network with log-normal scales."""
    generator = torch.Generator().manual_seed(seed)
    values = {
        name: sigma * torch.randn(space.size, generator=generator, dtype=torch.float64)
        for name, space in symmetry.spaces.items()
    }
    return act(symmetry, symmetry.velocity(values).exp(), params)


def measured(model: nn.Module, params: State, x: torch.Tensor, grid: Grid) -> float:
    """The expected squared change of all logits."""
    kept = {n: p.clone() for n, p in model.state_dict().items()}
    model.load_state_dict(params)
    found = sensitivities(model, [(x,)], 32, torch.Generator().manual_seed(1))
    model.load_state_dict(kept)
    total = 0.0
    for name, f in found.items():
        if f.ndim >= 2:
            steps = (grid.ranges(params[name]) / grid.steps)[grid.group_of(tuple(f.shape))]
            total += float((steps.square() / 12 * f).sum())
    return total


def accuracy(model: nn.Module, params: State, data: Digits, grid: Grid | None) -> float:
    if grid:
        params = {n: grid.rounded(p) if p.ndim >= 2 else p for n, p in params.items()}
    made = torch.func.functional_call(model, params, (data.held,))
    return 100 * float((made.argmax(1) == data.truth).double().mean())


def candidates(
    model: nn.Module, symmetry: ParameterSymmetry, params: State, data: Digits, grid: Grid
) -> tuple[dict[str, State], float]:
    """Equivalent parameters by name, and the certified gap of the error-weighted ones."""
    kept = {n: p.clone() for n, p in model.state_dict().items()}
    model.load_state_dict(params)
    found = sensitivities(model, [(data.calibration,)], 32, torch.Generator().manual_seed(2))
    model.load_state_dict(kept)
    layers = [n.removesuffix(".weight") for n in params if n.endswith("weight")]
    result = minimize_quantization_error(symmetry, params, found, grid, tolerance=TOLERANCE)
    points = {
        "untouched": params,
        "equalised": equalised(params, layers),
        "L2 balance": balance(symmetry, params, shifts=False).params,
        "error-weighted": result.params,
    }
    return points, result.gap / result.value


def spread(values: list[float]) -> str:
    x = torch.tensor(values)
    return f"{float(x.mean()):.3g} ± {float(x.std()):.2g}"


def table(data: Digits, kind: str, seeds: int, grids: list[str], starts: list[str]) -> None:
    rows: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    worst = 0.0
    for seed in range(seeds):
        model = trained(data, seed, kind)
        params = {n: p.detach().clone() for n, p in model.state_dict().items()}
        symmetry = find_symmetry(model, (data.train[:3],), check=False)
        points = {
            "as trained": params,
            "rescaled": rescaled(symmetry, params, seed),
            "outliers": with_outliers(symmetry, params, seed),
        }
        for start in starts:
            for name in grids:
                grid = GRIDS[name]
                found, gap = candidates(model, symmetry, points[start], data, grid)
                worst = max(worst, gap)
                errors = {n: measured(model, p, data.held, grid) for n, p in found.items()}
                for n, p in found.items():
                    ratio = errors[n] / errors["equalised"]
                    rows.setdefault((start, name, n), []).append(
                        (ratio, accuracy(model, p, data, grid))
                    )
    print(f"\n{kind}, {seeds} seeds, certified within {100 * worst:.2g} %\n")
    print("| start | grid | scales | error | accuracy |")
    print("|---|---|---|---|---|")
    for (start, name, n), found in rows.items():
        ratios, hits = [r for r, _ in found], [a for _, a in found]
        print(f"| {start} | {name} | {n} | {spread(ratios)} | {spread(hits)} |", flush=True)


def pruned(params: State, share: float) -> State:
    """Weights of two axes or more below the global quantile of magnitude set to zero."""
    names = [n for n, p in params.items() if p.ndim >= 2]
    flat = torch.cat([params[n].abs().reshape(-1) for n in names]).sort().values
    level = flat[int(share * len(flat))]
    return {n: p * (p.abs() > level) if n in names else p for n, p in params.items()}


def pruning(data: Digits, seeds: int = 6) -> None:
    """Accuracy after global magnitude pruning at 80 %, from several points of one orbit."""
    rows: dict[str, list[float]] = {}
    for seed in range(seeds):
        model = trained(data, seed, "mlp")
        params = {n: p.detach().clone() for n, p in model.state_dict().items()}
        symmetry = find_symmetry(model, (data.train[:3],), check=False)
        far = rescaled(symmetry, params, seed)
        points = {
            "dense": None,
            "untouched": params,
            "L2": balance(symmetry, params, shifts=False).params,
            "L1": balance(symmetry, params, "l1", shifts=False).params,
            "rescaled": far,
            "rescaled, then L2": balance(symmetry, far, shifts=False).params,
        }
        for name, point in points.items():
            kept = params if point is None else pruned(point, 0.8)
            rows.setdefault(name, []).append(accuracy(model, kept, data, None))
    print("\n| weights | accuracy |\n|---|---|")
    for name, found in rows.items():
        print(f"| {name} | {spread(found)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", default=["mlp", "pruning", "deep", "conv", "grids"])
    parser.add_argument("--seeds", type=int, default=8)
    chosen = parser.parse_args()
    start, data = time.process_time(), Digits()
    some = max(1, chosen.seeds // 2)
    for name in chosen.tables:
        if name == "mlp":
            starts = ["as trained", "rescaled", "outliers"]
            table(data, "mlp", chosen.seeds, ["int4 per tensor"], starts)
        elif name == "deep":
            grids = ["int4 per tensor", "int4 per tensor, not symmetric"]
            table(data, "deep", some, grids, ["as trained"])
        elif name == "grids":
            grids = ["int3 per tensor", "int8 per tensor", "int4 per channel"]
            table(data, "mlp", some, grids, ["as trained"])
        elif name == "conv":
            table(data, "convolutional", some, ["int4 per tensor"], ["as trained"])
        elif name == "pruning":
            pruning(data)
        else:
            raise SystemExit(f"{name!r} is no table: mlp, pruning, deep, conv, grids")
        print(f"\n{time.process_time() - start:.0f} CPU-seconds", flush=True)


if __name__ == "__main__":
    main()

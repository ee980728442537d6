"""Polynomial layers beside a dense layer of as many parameters, and least norms beside CVXPY's.

    python benchmarks/waring.py [--quick] [--json]
    python benchmarks/waring.py --solvers [--json]

Times: forward and backward, input gradient included, of 256 → 256 with four terms of degrees 1 to
3, of `nn.Linear(256, 1024)`, which has as many parameters, and of a loop over outputs and terms.
One thread, float32, CPU milliseconds; layer and dense layer run in turns, and the ratio is that of
the medians. With `--solvers`: the least norm along the scales of the networks of
`tests/waring/regularised.py` by `balance` and by CVXPY, where it is installed, as a sum of
exponentials made term by term.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from paramsym import balance, find_symmetry
from paramsym.waring import Polynomial
from tests.waring.regularised import SIZES, layers_of, of_size, state_of

TARGET, TARGET_SOLVER = 1.5, 1e-8
WIDTH, BATCHES = 256, (64, 128, 512)
DEGREES = ((1, 1, 2, 3), (1, 2, 2, 3), (1, 2, 3, 3))


def by_loop(layer: Polynomial, x: Tensor) -> Tensor:
    """The layer output by output and term by term."""
    assert layer.bias is not None
    outputs = []
    for k, kinds in enumerate(layer.kinds):
        value = torch.zeros(len(x))
        for row, (degree, sign) in zip(layer.rows(k), kinds, strict=True):
            value = value + sign * (x @ layer.weight[row] + layer.bias[row]) ** degree
        outputs.append(value)
    return torch.stack(outputs, -1)


def step(call: Callable[[Tensor], Tensor], module: nn.Module, x: Tensor, up: Tensor) -> None:
    module.zero_grad()
    x.grad = None
    call(x).backward(up)


def medians(turns: int, calls: list[tuple[Callable[[], None], int]]) -> list[float]:
    """Median CPU milliseconds of each call, in turns; each is repeated so often within one turn."""
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(turns + 2):  # two to warm up
        for times, (call, repeats) in zip(taken, calls, strict=True):
            start = time.process_time()
            for _ in range(repeats):
                call()
            times.append((time.process_time() - start) / repeats * 1e3)
    return [statistics.median(times[2:]) for times in taken]


def timed(degrees: tuple[int, ...], batch: int, turns: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    layer = Polynomial(WIDTH, WIDTH, degrees, generator=generator)
    dense = nn.Linear(WIDTH, WIDTH * len(degrees))
    sizes = [sum(p.numel() for p in module.parameters()) for module in (layer, dense)]
    assert sizes[0] == sizes[1]
    x = torch.randn(batch, WIDTH, generator=generator, requires_grad=True)
    up = torch.randn(batch, WIDTH, generator=generator)
    wide = torch.randn(batch, dense.out_features, generator=generator)
    with torch.no_grad():
        off = float((layer(x) - by_loop(layer, x)).abs().max() / layer(x).abs().max())
    assert off < 1e-5, off
    polynomial, linear = medians(turns, [
        (lambda: step(layer, layer, x, up), 10),
        (lambda: step(dense, dense, x, wide), 10),
    ])  # fmt: skip
    # apart: its thousands of small tensors would leave the others a cold cache
    (loop,) = medians(3, [(lambda: step(lambda x: by_loop(layer, x), layer, x, up), 1)])
    return {
        "degrees": list(degrees), "batch": batch, "parameters": sizes[0], "polynomial": polynomial,
        "dense": linear, "loop": loop, "of_dense": polynomial / linear, "target": TARGET,
        "loop_over_ours": loop / polynomial,
    }  # fmt: skip


def compared(name: str, objective: str) -> dict[str, Any]:
    """The least norm by `balance` and by CVXPY."""
    model = of_size(name)
    x = torch.ones(2, SIZES[name][0], dtype=torch.float64)
    symmetry = find_symmetry(model, (x,), check=False)
    start = time.process_time()
    ours = balance(symmetry, state_of(model), objective)
    seconds = time.process_time() - start
    start = time.process_time()
    value = by_cvxpy(model, {"l2": 2.0, "l1": 1.0}[objective])
    return {
        "network": name, "objective": objective, "before": ours.before, "balance": ours.value,
        "gap": ours.gap / ours.value, "cvxpy": value, "off": value / ours.value - 1,
        "target": TARGET_SOLVER, "seconds": seconds, "cvxpy_seconds": time.process_time() - start,
    }  # fmt: skip


def by_cvxpy(model: nn.Sequential, exponent: float) -> float:
    """Σ exp(c·y + log m), one exponential for each pair of a term of a layer and an input of it."""
    import cvxpy  # pyright: ignore[reportMissingImports]
    import numpy as np
    from scipy.sparse import csr_array

    layers, powers = layers_of(model)
    starts = np.cumsum([0, *(layer.out_features for layer in layers[:-1])])
    free, masses = 0.0, []
    entries: list[tuple[int, int, float]] = []

    def add(mass: float, places: list[tuple[int, float]]) -> None:
        nonlocal free
        if mass and places:
            entries.extend((len(masses), column, power) for column, power in places)
            masses.append(mass)
        else:
            free += mass

    for at, layer in enumerate(layers):
        for k, terms in enumerate(layer.terms()):
            for term in terms:
                own = [(int(starts[at]) + k, exponent / term.degree)] if at < len(powers) else []
                sizes = term.weight.abs().numpy() ** exponent
                add(float(term.bias.abs()) ** exponent, own)
                if not at:
                    add(float(sizes.sum()), own)
                    continue
                for j, mass in enumerate(sizes):
                    inner = (int(starts[at - 1]) + j, -exponent * powers[at - 1])
                    add(float(mass), [*own, inner])
    rows, columns, numbers = zip(*entries, strict=True)
    shape = (len(masses), int(starts[-1]))
    incidence = csr_array((numbers, (rows, columns)), shape=shape)
    y = cvxpy.Variable(shape[1])
    cost = cvxpy.sum(cvxpy.exp(incidence @ y + np.log(masses))) + free
    task = cvxpy.Problem(cvxpy.Minimize(cost))
    tight = {f"tol_{kind}": 1e-12 for kind in ("gap_abs", "gap_rel", "feas")}
    task.solve(solver="CLARABEL", **tight)
    return float(task.value)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer turns")
    parser.add_argument("--solvers", action="store_true", help="least norms beside CVXPY")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.solvers and importlib.util.find_spec("cvxpy") is None:
        raise SystemExit("--solvers needs cvxpy, which is not installed: pip install cvxpy into an "
                         "environment of its own.")  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = (
            (compared(name, objective) for name in SIZES for objective in ("l2", "l1"))
            if options.solvers
            else (timed(d, batch, 7 if options.quick else 41) for d in DEGREES for batch in BATCHES)
        )
        for row in rows:
            print(json.dumps(row) if options.json else "  ".join(
                f"{k} {v:.15g}" if k in {"balance", "cvxpy"}
                else f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()
            ), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()

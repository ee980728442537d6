"""Least ranges of multilayer perceptrons and of ResNet-50, beside general solvers.

    python benchmarks/ranges.py [--only MLP] [--solvers] [--json]

Kaiming weights, biases 0.1 · N(0, 1), then an equivalent log-normal rescaling (σ = 1). With
`--solvers`, the same least range of 784-256-256-10 by CVXPY, where it is installed, in its best
form by hand: a sparse row for each weight, the logarithms of the scales and of R⁺ and R⁻ by tensor
as variables, log(e^p + e^n) ≤ τ. CPU-seconds of this process; ours from weights to weights, and
with the least norm within one per cent of the range.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import time
from typing import Any

import torch
from torch import Tensor, nn

from paramsym import ParameterSymmetry, act, find_symmetry, minimize_range
from paramsym.quantize.incidence import incidence_of
from paramsym.quantize.passes import edges_above

WIDTHS = {
    "MLP 10-32-32-4": (10, 32, 32, 4),
    "MLP 784-256-256-10": (784, 256, 256, 10),
    "MLP 784-4096-4096-1024-10": (784, 4096, 4096, 1024, 10),
    "MLP 5 × 4560²": (4560,) * 6,
}
REPEATS = 9
COMPARED = "MLP 784-256-256-10"
State = dict[str, Tensor]


def perceptron(widths: tuple[int, ...], dtype: torch.dtype) -> tuple[nn.Module, Tensor]:
    layers: list[nn.Module] = []
    for before, after in zip(widths, widths[1:], strict=False):
        layer = nn.Linear(before, after, dtype=dtype)
        nn.init.kaiming_normal_(layer.weight)
        nn.init.normal_(layer.bias, std=0.1)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1]), torch.randn(2, widths[0], dtype=dtype)


def resnet() -> tuple[nn.Module, Tensor]:
    """ResNet-50 with random batch norms, in evaluation mode."""
    from transformers import ResNetConfig, ResNetModel

    model = ResNetModel(ResNetConfig()).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None and module.running_var is not None
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2.0)
    return model, torch.randn(1, 3, 64, 64)


def rescaled(symmetry: ParameterSymmetry, params: State) -> State:
    """Log-normal scales of every unit, σ = 1."""
    generator, made = torch.Generator().manual_seed(5), {}
    for space in symmetry.spaces.values():
        if getattr(space.group, "scales", False):
            shape = (*(symmetry.spaces[base].size for base in space.over), space.size)
            made[space.name] = torch.randn(shape, generator=generator, dtype=torch.float64)
    return act(symmetry, symmetry.velocity(made).exp(), params)


def problem(name: str) -> tuple[ParameterSymmetry, State]:
    torch.manual_seed(0)
    dtype = torch.float64 if name in {"MLP 10-32-32-4", COMPARED} else torch.float32
    model, x = resnet() if name == "ResNet-50" else perceptron(WIDTHS[name], dtype)
    symmetry = find_symmetry(model, (x,), check=False)
    return symmetry, rescaled(symmetry, {n: p.detach() for n, p in model.state_dict().items()})


def by_cvxpy(symmetry: ParameterSymmetry, params: State, solver: str, **options: Any) -> float:
    """The least range by a general solver; the rows are given to it ready-made."""
    import cvxpy
    import numpy as np
    from scipy.sparse import csr_array

    spaces = [s.name for s in symmetry.spaces.values() if getattr(s.group, "scales", False)]
    incidence = incidence_of(symmetry, params, spaces)
    slots, nodes = 2 * len(incidence.tensors), incidence.nodes
    edges = edges_above(incidence, np.zeros(nodes), np.zeros(slots))[1]
    count = np.arange(len(edges.slot))
    rows = csr_array(
        (np.repeat([1.0, -1.0, -1.0], len(count)),
         (np.tile(count, 3), np.r_[edges.raising, edges.lowering, nodes + edges.slot])),
        shape=(len(count), nodes + slots),
    )  # fmt: skip
    z, top = cvxpy.Variable(nodes + slots), cvxpy.Variable()
    pairs = cvxpy.reshape(z[nodes:], (slots // 2, 2), order="C")
    constraints = [rows @ z <= -edges.size, z[0] == 0, cvxpy.log_sum_exp(pairs, axis=1) <= top]
    cvxpy.Problem(cvxpy.Minimize(top), constraints).solve(solver=solver, **options)
    return math.exp(float(top.value))


def run(name: str) -> dict[str, Any]:
    symmetry, params = problem(name)
    seconds = math.inf
    for _ in range(REPEATS if name in {"MLP 10-32-32-4", COMPARED} else 1):
        start = time.process_time()
        result = minimize_range(symmetry, params, slack=0.0)
        seconds = min(seconds, time.process_time() - start)
    start = time.process_time()
    norm = minimize_range(symmetry, params)
    in_all = time.process_time() - start
    return {
        "model": name, "parameters": sum(p.numel() for p in params.values()),
        "before": result.before, "range": result.value, "gap": result.gap / result.value,
        "rounds": result.rounds, "seconds": seconds, "norm": norm.norm,
        "norm_gap": norm.norm_gap / norm.norm, "with_norm": in_all,
    }  # fmt: skip


def compared(ours: dict[str, Any]) -> list[dict[str, Any]]:
    """Each solver's range and time, and its time over ours."""
    symmetry, params = problem(COMPARED)
    found = []
    for solver, options in (("CLARABEL", {}), ("SCS", {"eps": 1e-6, "max_iters": 100_000})):
        start = time.process_time()
        value = by_cvxpy(symmetry, params, solver, **options)
        seconds = time.process_time() - start
        found.append({"solver": solver, "range": value, "off": value / ours["range"] - 1,
                      "seconds": seconds, "ratio": seconds / ours["seconds"]})  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--solvers", action="store_true", help="beside CVXPY's solvers")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name in (*WIDTHS, "ResNet-50"):
        if options.only in name:
            rows.append(run(name))
            if name == COMPARED and options.solvers:
                if importlib.util.find_spec("cvxpy") is None:
                    raise SystemExit("--solvers needs cvxpy, which is not installed: pip install "
                                     "cvxpy into an environment of its own.")  # fmt: skip
                rows += compared(rows[-1])
    for row in rows:
        print(json.dumps(row) if options.json else "  ".join(
            f"{k} {v:.6g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()
        ))  # fmt: skip


if __name__ == "__main__":
    main()

"""Least norms of orbits: time, memory, and a general solver beside them.

    python benchmarks/balance.py [--only MLP] [--solvers] [--json]

Each case in a process of its own, one thread, CPU-seconds from weights to balanced weights, the
symmetry given. Kaiming or normal weights, then an equivalent log-normal rescaling (σ = 1). Extra
memory is the growth of the peak while `balance` runs, the moved parameters that it returns
included, as a share of the weights. With `--solvers`, 784-256-256-10 by CVXPY, where it is
installed, in its best form by hand: Σ A_ij exp(p(y_i − y_j)) over the pairs of units, A aggregated.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import subprocess
import sys
import time
from typing import Any

import torch
from ranges import COMPARED, perceptron, rescaled, resnet
from ranges import WIDTHS as PERCEPTRONS
from torch import Tensor

from paramsym import ParameterSymmetry, balance, find_symmetry
from paramsym.algebra import GeneralLinear

State = dict[str, Tensor]
Problem = tuple[ParameterSymmetry, State]
SOLVERS = ("CLARABEL", "ECOS", "SCS")
CASES = {
    f"{COMPARED} L2": (COMPARED, "l2", "scales"),
    f"{COMPARED} L1": (COMPARED, "l1", "scales"),
    "ResNet-50 L2": ("ResNet-50", "l2", "scales"),
    "ResNet-50 L1": ("ResNet-50", "l1", "scales"),
    "GPT-2 scales": ("GPT-2", "l2", "scales"),
    "GPT-2 scales and bases": ("GPT-2", "l2", "bases"),
    "Llama 1.1 B scales": ("Llama", "l2", "scales"),
}


def gpt2() -> Problem:
    """GPT-2 small with biases and gains that are not all alike."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config()
    config.use_cache = False
    model = GPT2LMHeadModel(config).eval()
    symmetry = find_symmetry(model, {"input_ids": torch.zeros(1, 16, dtype=torch.long)})
    return symmetry, {
        n: p.detach() + 0.02 * torch.randn_like(p) if p.ndim == 1 else p.detach()
        for n, p in model.state_dict().items()
    }


def llama() -> Problem:
    """The shape of TinyLlama, with random weights; it is never built as a model."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=2048, num_hidden_layers=22, num_attention_heads=32, num_key_value_heads=4,
        intermediate_size=5632, vocab_size=32000,
    )  # fmt: skip
    config.use_cache = False
    with torch.device("meta"):
        model = LlamaForCausalLM(config).eval()
        inputs = {"input_ids": torch.zeros(1, 16, dtype=torch.long)}
    symmetry = find_symmetry(model, inputs)
    made: State = {}
    for name, p in model.state_dict().items():
        own = torch.randn(p.shape) * 0.02 if p.ndim == 2 else torch.rand(p.shape) + 0.5
        made[name] = own if p.is_floating_point() else torch.zeros(p.shape, dtype=p.dtype)
    return symmetry, made


def problem(name: str) -> Problem:
    torch.manual_seed(0)
    if name == "Llama":
        return llama()  # its gains differ by themselves; a rescaled copy would take as much again
    if name == "GPT-2":
        symmetry, params = gpt2()
    else:
        made = resnet() if name == "ResNet-50" else perceptron(PERCEPTRONS[name], torch.float64)
        model, x = made
        symmetry = find_symmetry(model, (x,), check=False)
        params = {n: p.detach() for n, p in model.state_dict().items()}
    return symmetry, rescaled(symmetry, params)


def run(case: str, solvers: bool) -> list[dict[str, Any]]:
    name, objective, moved = CASES[case]
    symmetry, params = problem(name)
    size = sum(p.numel() * p.itemsize for p in params.values())
    bases = [n for n, s in symmetry.spaces.items() if isinstance(s.group, GeneralLinear)]
    options: dict[str, Any] = {"shifts": False, "hold": bases if moved == "scales" else ()}
    peak, start = _peak(), time.process_time()
    result = balance(symmetry, params, objective, **options)
    seconds, extra = [time.process_time() - start], (_peak() - peak) / size
    for _ in range(20 if name == COMPARED else 0):
        start = time.process_time()
        balance(symmetry, params, objective, **options)
        seconds.append(time.process_time() - start)
    row: dict[str, Any] = {
        "case": case, "parameters": sum(p.numel() for p in params.values()),
        "seconds": min(seconds), "extra": extra, "before": result.before, "value": result.value,
        "gap": result.gap / result.value, "moment": max(result.moment.values()),
        "status": str(result.status), "turns": result.rounds,
    }  # fmt: skip
    compared = _compared(params, objective, row) if solvers and name == COMPARED else []
    return [row, *compared]


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _compared(params: State, objective: str, ours: dict[str, Any]) -> list[dict[str, Any]]:
    """Each solver's value and time, and its time over ours."""
    found = []
    for solver in SOLVERS:
        start = time.process_time()
        value = by_cvxpy(params, {"l2": 2.0, "l1": 1.0}[objective], solver)
        seconds = time.process_time() - start
        found.append({
            "case": ours["case"], "solver": solver, "value": value,
            "off": value / ours["value"] - 1, "seconds": seconds,
            "ratio": seconds / ours["seconds"],
        })  # fmt: skip
    return found


def by_cvxpy(params: State, power: float, solver: str) -> float:
    """The least norm of a perceptron with two hidden layers by a general solver."""
    import cvxpy
    import numpy as np
    from scipy.sparse import csr_array

    first, bias, middle, other, last, free = (p.abs().numpy() ** power for p in params.values())
    n, m = len(bias), len(other)
    # node 0 is what no scale moves; then the units of both layers
    rows, columns = (index.ravel() for index in np.indices((m, n)))
    up = np.r_[1 + np.arange(n), 1 + n + np.arange(m), np.zeros(m, int), 1 + n + rows]
    down = np.r_[np.zeros(n + m, int), 1 + n + np.arange(m), 1 + columns]
    sizes = np.r_[first.sum(1) + bias, other, last.sum(0), middle.ravel()]
    count = np.arange(len(sizes))
    entries = np.repeat([power, -power], len(count)), (np.tile(count, 2), np.r_[up, down])
    incidence = csr_array(entries, shape=(len(count), 1 + n + m))
    y = cvxpy.Variable(n + m)
    cost = cvxpy.sum(cvxpy.exp(incidence[:, 1:] @ y + np.log(sizes))) + free.sum()
    task = cvxpy.Problem(cvxpy.Minimize(cost))
    task.solve(solver=solver)
    return float(task.value)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--solvers", action="store_true", help="beside CVXPY's solvers")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.solvers and importlib.util.find_spec("cvxpy") is None:
        raise SystemExit("--solvers needs cvxpy, which is not installed: pip install cvxpy into an "
                         "environment of its own.")  # fmt: skip
    if options.case:
        print(json.dumps(run(options.case, options.solvers)))
        return
    for case in CASES:
        if options.only not in case:
            continue
        own = [sys.executable, __file__, "--case", case, *["--solvers"] * options.solvers]
        done = subprocess.run(own, capture_output=True, text=True, check=True)
        for row in json.loads(done.stdout.splitlines()[-1]):
            print(json.dumps(row) if options.json else "  ".join(
                f"{k} {v:.6g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()
            ), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()

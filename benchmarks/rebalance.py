"""What a rebalance costs, beside the training steps between two of them.

    python benchmarks/rebalance.py [--every 10] [--repeats 60] [--threads 1]

A perceptron 784-512-512-10 in float32 on random images, batch 128. A step is `zero_grad`, forward,
backward and the optimiser; rebalances come between steps as they do in training, so that neither
finds the other's numbers in the cache. Medians of CPU milliseconds; the share is one rebalance over
the steps from one to the next. `error` is the largest relative change of the function by one
rebalance, computed in float64, `excess` what the norm is above that of `balance`, relative, and
`balance` the time of that.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from paramsym import Rebalance, balance, find_symmetry

SIZES, BATCH, BATCHES = (784, 512, 512, 10), 128, 30
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-3),
}


def perceptron() -> nn.Sequential:
    """Of the sizes above, with ReLU."""
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for m, n in zip(SIZES, SIZES[1:], strict=False):
        parts += [nn.Linear(m, n), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def timed(act: Callable[[], Any]) -> float:
    """Milliseconds of CPU time."""
    start = time.process_time()
    act()
    return 1e3 * (time.process_time() - start)


def measured(optimizer: str, objective: str, options: argparse.Namespace) -> list[str]:
    """One row of the table."""
    model = perceptron()
    images = torch.randn(BATCHES, BATCH, SIZES[0])
    labels = torch.randint(SIZES[-1], (BATCHES, BATCH))
    descent = OPTIMIZERS[optimizer](model.parameters())
    symmetry = find_symmetry(model, (images[0],))
    rebalance = Rebalance(symmetry, descent, 10**9, objective, model=model)

    def step(k: int) -> None:
        descent.zero_grad()
        nn.functional.cross_entropy(model(images[k % BATCHES]), labels[k % BATCHES]).backward()
        descent.step()

    def state() -> dict[str, Tensor]:
        return {n: p.detach().clone() for n, p in model.state_dict().items()}

    def computed() -> Tensor:
        """The function of the weights, without the rounding of a forward pass in float32."""
        twin = copy.deepcopy(model).double()
        return twin(images[0].double()).detach()

    rebalance.now()
    steps, moves, slow, errors, excess = [], [], [], [], []
    for turn in range(options.repeats):
        steps += [timed(lambda k=k: step(k)) for k in range(options.every)]
        if turn % 10:
            moves.append(timed(rebalance.now))
            continue
        before, outputs = state(), computed()
        slow.append(timed(lambda: balance(symmetry, before, objective, shifts=False)))  # noqa: B023
        least = balance(symmetry, before, objective, shifts=False).value
        excess.append(rebalance.now().value / least - 1)
        errors.append(float((computed() - outputs).abs().max() / outputs.abs().max()))
    share = median(moves) / (options.every * median(steps))
    return [
        optimizer, objective, f"{median(steps):.2f}", f"{median(moves):.2f}", f"{share:.1%}",
        f"{median(slow):.2f}", f"{max(errors):.1e}", f"{max(map(abs, excess)):.1e}",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--every", type=int, default=10, help="steps between two rebalances")
    parser.add_argument("--repeats", type=int, default=60, help="rebalances")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    table = Table()
    for head in ("optimiser", "norm", "step", "rebalance", f"/ {options.every} steps", "balance",
                 "error", "excess"):  # fmt: skip
        table.add_column(head, no_wrap=True)
    for optimizer in OPTIMIZERS:
        for objective in ("l2", "l1") if optimizer == "SGD" else ("l2",):
            table.add_row(*measured(optimizer, objective, options))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()

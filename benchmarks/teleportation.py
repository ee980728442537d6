"""What a teleport buys, and what it costs.

    python benchmarks/teleportation.py [--json] [--threads N] [--turns K]

**Buys**: the network 5-6-7-8 of Zhao, Dehmamy, Walters and Yu (2022), section 5: leaky ReLU of
slope 0.1, weights and data uniform in (0, 1), batch 4, squared error summed over outputs, descent
with step 1e-4, one teleport after epoch 5. The loss at step 50 for several bounds on the norm, as
means over five seeds.

**Costs**: one teleport of 16 evaluations at 784-512-512-10 and batch 200, in steps of SGD that
alternate with it. CPU-seconds of one process.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from paramsym import find_symmetry
from paramsym.dynamics.teleportation import teleport

BOUNDS = (1.2, 1.5, 2.0, 5.0, 8.0, 1e6)
SEEDS, EPOCHS, BEFORE, RATE = 5, 50, 5, 1e-4
TARGET_SHARE, TARGET_STEPS = 0.4, 80.0
EVALUATIONS, SGD_STEPS = 16, 10


def small(seed: int) -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
    """The network 5-6-7-8 with inputs and targets, in float64."""
    generator = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for before, after in ((5, 6), (6, 7), (7, 8)):
        layers += [nn.Linear(before, after, bias=False), nn.LeakyReLU(0.1)]
    model = nn.Sequential(*layers[:-1]).double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.rand(p.shape, generator=generator, dtype=torch.float64))
    x, y = (torch.rand(4, n, generator=generator, dtype=torch.float64) for n in (5, 8))
    return model, x, y


def trained(seed: int, bound: float | None) -> tuple[float, float]:
    """The loss after all epochs, and by how much the teleport changed it, relative to itself."""
    model, x, y = small(seed)
    symmetry = find_symmetry(model, (x,))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    change = 0.0

    def error(found: torch.Tensor) -> torch.Tensor:
        return (found - y).square().sum(1).mean()

    for epoch in range(EPOCHS):
        if epoch == BEFORE and bound is not None:
            change = teleport(model, symmetry, error, (x,), optimizer, bound=bound).loss_change
        optimizer.zero_grad()
        error(model(x)).backward()
        optimizer.step()
    with torch.no_grad():
        return float(error(model(x))), change


def gains() -> dict[str, Any]:
    """Mean losses of plain descent and by bound, and the largest change of a loss."""
    plain = statistics.fmean(trained(seed, None)[0] for seed in range(SEEDS))
    by_bound, worst = {}, 0.0
    for bound in BOUNDS:
        runs = [trained(seed, bound) for seed in range(SEEDS)]
        by_bound[bound] = statistics.fmean(loss for loss, _ in runs)
        worst = max(worst, *(change for _, change in runs))
    return {"plain": plain, "teleported": by_bound, "change": worst}


def cpu_seconds(call: Callable[[], Any]) -> float:
    """CPU time of one call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def cost(turns: int) -> dict[str, float]:
    """CPU-seconds of a teleport and of a step of SGD, each the least of its turns."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(784, 512), nn.LeakyReLU(0.1), nn.Linear(512, 512), nn.LeakyReLU(0.1),
        nn.Linear(512, 10),
    )  # fmt: skip
    x, y = torch.randn(200, 784), torch.randint(0, 10, (200,))
    symmetry = find_symmetry(model, (x,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    error = nn.CrossEntropyLoss()
    evaluations = []

    def steps() -> None:
        for _ in range(SGD_STEPS):
            optimizer.zero_grad()
            error(model(x), y).backward()
            optimizer.step()

    def jump() -> None:
        found = teleport(
            model, symmetry, lambda z: error(z, y), (x,), optimizer, bound=1e6, steps=EVALUATIONS
        )
        evaluations.append(found.evaluations)

    state = {n: t.clone() for n, t in model.state_dict().items()}
    single, whole = math.inf, math.inf
    for _ in range(turns + 1):  # the first warms up
        model.load_state_dict(state)
        one, other = cpu_seconds(steps) / SGD_STEPS, cpu_seconds(jump)
        single, whole = min(single, one), min(whole, other)
    return {
        "sgd_step": single, "teleport": whole, "steps": whole / single,
        "evaluations": float(min(evaluations)),
    }  # fmt: skip


def show(row: dict[str, Any]) -> None:
    """The numbers, with the targets."""
    gain, price = row["gains"], row["cost"]
    print(f"loss at step {EPOCHS}, mean of {SEEDS} seeds\nplain descent  {gain['plain']:12.4g}")
    for bound, loss in gain["teleported"].items():
        share = f"{loss / gain['plain']:.2f} of it" if math.isfinite(loss) else "diverges"
        print(f"bound {bound:<8g} {loss:12.4g}  {share}")
    print(f"(target at the default of 1.5: at most {TARGET_SHARE} of plain descent)")
    print(f"largest relative change of a loss by a teleport {gain['change']:.0e}")
    print(
        f"a teleport of {price['evaluations']:.0f} evaluations takes {price['teleport']:.3f} "
        f"CPU-seconds, {price['steps']:.0f} steps of SGD (target at most {TARGET_STEPS:.0f})"
    )


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    row = {"gains": gains(), "cost": cost(options.turns)}
    if options.json:
        print(json.dumps(row, indent=1))
    else:
        show(row)


if __name__ == "__main__":
    main()

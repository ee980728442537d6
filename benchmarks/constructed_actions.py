"""Actions by construction on the networks of figures 3 and 4: loss, group law, time.

`python benchmarks/constructed_actions.py [draws]` prints the table of docs/findings-discovery.md:
100 draws of θ, X, Y and an element of norm one, in a minute on one thread.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
from torch import Tensor, nn

from paramsym.discovery import RankDrops, constructed_action
from paramsym.discovery.acting.networks import Network

NETWORKS = {"sigmoid 3-3-1": (nn.Sigmoid, (3, 3, 1)), "tanh 2-2-2-1": (nn.Tanh, (2, 2, 2, 1))}
Params = dict[str, Tensor]


def perceptron(activation: type[nn.Module], widths: tuple[int, ...]) -> nn.Sequential:
    """Normal weights, no biases."""
    layers: list[nn.Module] = []
    for n, m in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(n, m, bias=False, dtype=torch.float64), activation()]
    for layer in layers[::2]:
        nn.init.normal_(layer.weight)
    return nn.Sequential(*layers[:-1])


def row(name: str, frame: str, draws: int) -> str:
    """One line of the table."""
    torch.manual_seed(0)
    activation, widths = NETWORKS[name]
    model = perceptron(activation, widths)
    names = [n for n, _ in model.named_parameters()]
    following = names[-1:] if frame == "commuting" else None
    start = time.process_time()
    action = constructed_action(
        model, torch.randn(1, widths[0], dtype=torch.float64), frame=frame, following=following
    )
    made = time.process_time() - start
    errors, ways, laws, times, stopped = [], [], [], [], 0
    for seed in range(draws):
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int, generator: torch.Generator = generator) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        params = {n: normal(*p.shape) for n, p in model.named_parameters()}
        x, y = normal(1, widths[0]), normal(1, 1)
        h, k = (v / v.norm() for v in (normal(len(action.directions)) for _ in range(2)))
        start = time.process_time()
        try:
            moved = action(h, params, x)
        except RankDrops:
            stopped += 1
            continue
        times.append(time.process_time() - start)
        losses = [float((Network(model)(p, x) - y).square().sum()) for p in (params, moved)]
        errors.append(abs(losses[1] / losses[0] - 1))
        ways.append(sum(float((moved[n] - params[n]).square().sum()) for n in params) ** 0.5)
        try:
            both, at_once = action(k, moved, x), action(h + k, params, x)
            laws.append(max(float((both[n] - at_once[n]).abs().max()) for n in params))
        except RankDrops:
            pass
    middle = statistics.median
    return (
        f"| {name}, {frame} | {max(errors):.0e} | {middle(ways):.1f} | {middle(laws):.0e} "
        f"| {stopped} | {middle(times):.2f} | made in {made:.3f} s, {len(laws)} pairs"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    print("| | loss, worst | way, median | group law, median | stopped | s per element |")
    for network in NETWORKS:
        for kind in ("projected", "commuting"):
            print(row(network, kind, count))

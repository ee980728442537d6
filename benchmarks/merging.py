"""Merging classifiers of digits that were trained apart: distances, barriers, repair.

python benchmarks/merging.py

Multilayer perceptrons on the 8 × 8 digits of scikit-learn from four seeds, aligned by their orders
alone and by weights, by the slow aligner of the tests. Losses and accuracies are of held-out data;
repair sees the training ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise

import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

from paramsym import find_symmetry, loss_barrier, merge
from paramsym.merging.evaluation import loss_of
from paramsym.merging.repair import repair
from tests.merging.aligners import align_orders, permutations_of

SEEDS = range(4)
TRAINED = 1300
NETWORKS = [((64, 64), 0.01), ((64, 64), 1.0), ((256, 256), 0.1)]


def digits() -> tuple[Tensor, Tensor]:
    """Images and labels in a fixed random order; the first `TRAINED` are trained on."""
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    return torch.tensor(data.data / 16 - 0.3, dtype=torch.float32)[order], torch.tensor(
        data.target
    )[order]


def trained(widths: Sequence[int], decay: float, seed: int, x: Tensor, y: Tensor) -> nn.Module:
    """A perceptron of these hidden widths, trained with AdamW."""
    torch.manual_seed(seed)
    sizes = [64, *widths, 10]
    layers = [part for m, n in pairwise(sizes) for part in (nn.Linear(m, n), nn.ReLU())]
    model = nn.Sequential(*layers[:-1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=decay)
    for _ in range(100 if max(widths) > 200 else 400):
        for batch in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    return model


def span(values: Sequence[float]) -> str:
    """The least and the largest."""
    return f"{min(values):.3f} to {max(values):.3f}"


def main() -> None:
    x, y = digits()
    data, (held, truth) = (x[:TRAINED], y[:TRAINED]), (x[TRAINED:], y[TRAINED:])
    table = Table("hidden", "decay", "distance", "barrier", "aligned", "middle", "repaired",
                  "four", "four, repaired")  # fmt: skip
    for widths, decay in NETWORKS:
        nets = [trained(widths, decay, seed, *data) for seed in SEEDS]
        states = [{n: p.detach() for n, p in net.state_dict().items()} for net in nets]
        orders = permutations_of(find_symmetry(nets[0], (held[:7],)))
        loss = loss_of(nets[0], lambda z: nn.functional.cross_entropy(z, truth), (held,))
        accuracy = loss_of(nets[0], lambda z: (z.argmax(1) == truth).float().mean(), (held,))
        rows = []
        for a, b in combinations(states, 2):
            merged = merge(orders, [a, b], align_orders, force=True)
            mended = repair(nets[0], merged.params, merged.aligned, (data[0],)).params
            chord = (loss(a) + loss(b)) / 2
            rows.append(
                (merged.distances[1], loss_barrier(loss, a, b).barrier,
                 loss_barrier(loss, *merged.aligned).barrier, loss(merged.params) - chord,
                 loss(mended) - chord)
            )  # fmt: skip
        many = merge(orders, states, align_orders, force=True)
        mended = repair(nets[0], many.params, many.aligned, (data[0],)).params
        accuracies = [f"{accuracy(many.params):.3f}", f"{accuracy(mended):.3f}"]
        spans = map(span, zip(*rows, strict=True))
        table.add_row("-".join(map(str, widths)), str(decay), *spans, *accuracies)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()

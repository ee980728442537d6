"""Where do weights come from? Verdicts of `compare` on pairs whose origin is known.

    python benchmarks/origin.py [--seed 0] [--only 64-32-32-10 Llama] [--pairs]
    python benchmarks/origin.py --independent

The first prints, by what was done to a network, distances and verdicts of 120 pairs; about five
CPU-minutes of one thread. The second compares networks that were trained independently, on tasks
that determine their weights more or less. Tables of docs/findings-origin.md.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import combinations

import torch
from origin_networks import FAMILIES, Pair, State, pairs, perceptron, state
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from paramsym import ParameterSymmetry, act, find_symmetry
from paramsym.origin.comparing import compare
from paramsym.origin.comparison import Comparison, Kind

RIGHT = {
    "one orbit": {Kind.SAME, Kind.IDENTICAL},
    "derived": {Kind.DERIVED},
    "unrelated": {Kind.UNRELATED},
}
Row = tuple[str, Pair, Comparison]


def compared(symmetry: ParameterSymmetry, pair: Pair, seed: int) -> Comparison:
    """The second network is moved to a random place of its orbit first."""
    generator = torch.Generator().manual_seed(seed)
    moved = act(symmetry, symmetry.sample(generator), pair.b)
    return compare(symmetry, pair.a, moved, generator=generator)


def rows(names: list[str], seed: int, every: bool) -> Iterator[Row]:
    for name in names:
        family = FAMILIES[name]
        symmetry = find_symmetry(family.make(), family.example)
        for k, pair in enumerate(pairs(family, seed)):
            try:
                found = compared(symmetry, pair, seed + k)
            except (RuntimeError, ValueError) as error:
                print(f"{name:14}  {pair.what:40}  failed: {error}", flush=True)
                continue
            if every:
                print(_line(name, pair, found), flush=True)
            yield name, pair, found


def _line(name: str, pair: Pair, found: Comparison) -> str:
    least = f"{found.null.least:.2f}" if found.null else "–"
    wrong = "" if found.kind in RIGHT[pair.truth] else "  <<<"
    return (
        f"{name:14}  {pair.what:40}  {found.distance:.3f}  {least:>5}  {_best(found):>5.0%}  "
        f"{found.kind}{wrong}"
    )


def _best(found: Comparison) -> float:
    """The largest share of clear partners on which the verdict could rest."""
    units = [*found.units.values(), *(t.units for t in found.tensors.values() if t.units)]
    return max((u.clear / u.count for u in units if u.decides), default=0.0)


def summary(found: list[Row]) -> None:
    """One line for each thing that was done, over all networks."""
    by: dict[str, list[Row]] = defaultdict(list)
    for row in found:
        by[row[1].what].append(row)
    print("\n| second network | pairs | distance | of unrelated | clear partners | verdicts |")
    print("|---|---:|---:|---:|---:|---|")
    for what, group in by.items():
        d = [c.distance for *_, c in group]
        ratio = [c.distance / c.null.least for *_, c in group if c.null]
        shares = [_best(c) for *_, c in group if c.null]
        counts = Counter(str(c.kind) for *_, c in group)
        verdicts = ", ".join(f"{n} {kind}" for kind, n in counts.most_common())
        spans = " | ".join(map(_span, (d, ratio, shares)))
        print(f"| {what} | {len(group)} | {spans} | {verdicts} |")
    right = sum(c.kind in RIGHT[p.truth] for _, p, c in found)
    undecided = sum(c.kind is Kind.UNDECIDED for *_, c in found)
    false = sum(p.truth == "unrelated" and c.kind is Kind.DERIVED for _, p, c in found)
    print(
        f"\n{len(found)} pairs: {right} right, {undecided} undecided, "
        f"{len(found) - right - undecided} wrong; independent ones called derived: {false}"
    )


def _span(values: list[float]) -> str:
    if not values:
        return "–"
    low, high = min(values), max(values)
    return f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} – {high:.2f}"


# -- independent networks on tasks that determine their weights more or less -----------------------

TASKS: dict[str, tuple[tuple[int, ...], type[nn.Module], float, str]] = {
    "64-8-10": ((64, 8, 10), nn.ReLU, 0.0, "digits"),
    "64-16-10, decay": ((64, 16, 10), nn.ReLU, 0.1, "digits"),
    "64-512-10": ((64, 512, 10), nn.ReLU, 0.0, "digits"),
    "64-512-10 tanh, decay": ((64, 512, 10), nn.Tanh, 1.0, "digits"),
    "64-32-32-10, decay": ((64, 32, 32, 10), nn.ReLU, 1.0, "digits"),
    "64-32-64 autoencoder, decay": ((64, 32, 64), nn.ReLU, 1.0, "itself"),
    "64-16-64 autoencoder": ((64, 16, 64), nn.ReLU, 0.0, "itself"),
    "2-64-1": ((2, 64, 1), nn.ReLU, 0.0, "plane"),
    "2-64-1 tanh, decay": ((2, 64, 1), nn.Tanh, 0.01, "plane"),
    "2-8-1 tanh": ((2, 8, 1), nn.Tanh, 0.0, "plane"),
    "2-32-32-1": ((2, 32, 32, 1), nn.ReLU, 0.0, "plane"),
    "16-8-4 tanh, teacher 16-8-4": ((16, 8, 4), nn.Tanh, 0.0, "teacher"),
    "16-16-4 tanh, teacher 16-8-4": ((16, 16, 4), nn.Tanh, 0.0, "teacher"),
}


def _data(task: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    if task == "plane":
        x = torch.randn(4000, 2, generator=generator)
        return x, torch.sin(3 * x[:, :1]) * torch.cos(2 * x[:, 1:])
    if task == "teacher":
        x = torch.randn(4000, 16, generator=generator)
        torch.manual_seed(99)
        teacher = perceptron(16, 8, 4, activation=nn.Tanh)()
        with torch.no_grad():
            for p in teacher.parameters():
                p.mul_(3)
            return x, teacher(x)
    x, y = (torch.from_numpy(t) for t in load_digits(return_X_y=True))
    x = (x / 16).float()
    return x, x if task == "itself" else y.long()


def students(name: str, seeds: range, steps: int = 1500) -> list[State]:
    sizes, activation, decay, task = TASKS[name]
    x, y = _data(task)
    loss = functional.cross_entropy if task == "digits" else functional.mse_loss
    found = []
    for seed in seeds:
        torch.manual_seed(seed)
        model = perceptron(*sizes, activation=activation)()
        rule = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=decay)
        generator = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            batch = torch.randint(0, len(x), (100,), generator=generator)
            rule.zero_grad()
            loss(model(x[batch]), y[batch]).backward()
            rule.step()
        found.append(state(model))
    return found


def independent(names: list[str], seed: int) -> None:
    """Three independent networks for each task: three pairs, each again beside the third."""
    print(
        "| network and task | distance | of unrelated | clear partners | alone | beside a third |"
    )
    print("|---|---:|---:|---:|---|---|")
    totals: Counter[str] = Counter()
    for name in names:
        sizes, activation, *_ = TASKS[name]
        model = perceptron(*sizes, activation=activation)()
        symmetry = find_symmetry(model, (torch.zeros(2, sizes[0]),))
        nets = students(name, range(seed, seed + 3))
        alone, beside = [], []
        for i, j in combinations(range(3), 2):
            third = nets[3 - i - j]
            alone.append(compared(symmetry, Pair("", "unrelated", nets[i], nets[j]), seed))
            beside.append(compare(symmetry, nets[i], nets[j], independent=[third]))
        totals.update(f"{k} {c.kind}" for k, g in (("alone", alone), ("beside", beside)) for c in g)
        cells = [
            _span([c.distance for c in alone]),
            _span([c.distance / c.null.least for c in alone if c.null]),
            _span([_best(c) for c in alone]),
            *(_counted(group) for group in (alone, beside)),
        ]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    print(dict(totals))


def _counted(group: list[Comparison]) -> str:
    counts = Counter(str(c.kind) for c in group)
    return ", ".join(f"{n} {kind}" for kind, n in counts.most_common())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=[*FAMILIES, *TASKS])
    parser.add_argument("--pairs", action="store_true", help="print every pair as well")
    parser.add_argument("--independent", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    start = time.process_time()
    if options.independent:
        independent(options.only or [*TASKS], options.seed)
    else:
        summary(list(rows(options.only or [*FAMILIES], options.seed, options.pairs)))
    print(f"{time.process_time() - start:.0f} CPU-seconds")

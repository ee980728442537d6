"""Measurements of paramsym.relu: verdicts on random pairs, exhaustive truth, speed.

    python benchmarks/relu.py campaign --pairs 10000     every verdict against its truth
    python benchmarks/relu.py truth                      all tiny networks, by brute force
    python benchmarks/relu.py speed                      CPU seconds, one thread

Each prints one JSON line per row.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from itertools import product
from typing import Any

import numpy as np
from flint import fmpq, fmpq_mat

from paramsym.relu import Network, decide, moves, verify
from paramsym.relu.absolute import absolute_forms
from paramsym.relu.cells import Enumeration, frame
from paramsym.relu.domains import Everywhere
from paramsym.relu.network import FloatLayer, Layer
from paramsym.relu.randomness import generic
from paramsym.relu.rationals import matrix, rows

FAMILIES = ("shallow", "shallow degenerate", "type A", "type B", "bottleneck", "deep", "integers")


def random_network(widths, rng: random.Random, integers: bool = False) -> Network:
    """A network with rational entries: generic, or small integers full of coincidences."""

    def entry() -> fmpq:
        return fmpq(rng.randint(-2, 2)) if integers else generic(rng)

    layers = []
    for d, n in zip(widths, widths[1:], strict=False):
        layers.append(Layer(fmpq_mat(n, d, [entry() for _ in range(n * d)]),
                            [entry() for _ in range(n)]))  # fmt: skip
    return Network(exact=layers)


def hidden_network(widths, rng: random.Random, reflective: bool = True) -> Network:
    """A three-layer network with one hidden first-layer hyperplane (type B)."""
    net = random_network(widths, rng)
    j = rng.randrange(widths[1])
    table = [
        [abs(x) if k == j else -abs(x) for k, x in enumerate(row)]
        for row in rows(net.exact[1].weight)
    ]
    for k in range(widths[1]):
        if reflective and k != j and rng.random() < 0.5:
            ratio = generic(rng, True)
            for row in table:
                row[k] = -ratio * row[j]
    bias = [-abs(x) for x in net.exact[1].bias]
    return Network(exact=[net.exact[0], Layer(matrix(table, widths[1]), bias), net.exact[2]])


def linear_network(widths, rng: random.Random) -> Network:
    """A three-layer network whose second layer has visible and linear units (type A)."""
    net = random_network(widths, rng)
    linear = rng.randint(0, widths[2])
    w, b = rows(net.exact[1].weight), list(net.exact[1].bias)
    for i in range(linear):
        w[i], b[i] = [abs(x) for x in w[i]], abs(b[i])
    return Network(exact=[net.exact[0], Layer(matrix(w, widths[1]), b), net.exact[2]])


def draw(family: str, rng: random.Random) -> Network:
    """A random network of a family."""
    d, m = rng.randint(1, 4), rng.randint(1, 3)
    if family == "shallow":
        return random_network((d, rng.randint(1, 7), m), rng)
    if family == "shallow degenerate":
        return moves.scramble(random_network((d, rng.randint(1, 4), m), rng, True), 3, rng)
    if family == "type A":
        d = max(d, 2)
        return linear_network((d, rng.randint(2, d), rng.randint(1, 6), m), rng)
    if family == "type B":
        d = max(d, 2)
        return hidden_network((d, rng.randint(2, d), rng.randint(1, 4), m), rng)
    if family == "bottleneck":
        d = rng.randint(2, 5)
        return random_network((d, rng.randint(2, d), rng.randint(1, 6), m), rng)
    if family == "deep":
        depth = rng.randint(2, 4)
        return random_network((rng.randint(1, 3), *(rng.randint(1, 3) for _ in range(depth)), 1),
                              rng)  # fmt: skip
    return random_network((2, *(rng.randint(1, 3) for _ in range(rng.randint(1, 3))), 1), rng, True)


def perturb(net: Network, size: fmpq, rng: random.Random) -> Network:
    """One entry of the network changed by ±size."""
    layers = [Layer(l.weight, list(l.bias)) for l in net.exact]  # noqa: E741
    k = rng.randrange(len(layers))
    weight, bias = rows(layers[k].weight), layers[k].bias
    i = rng.randrange(len(bias))
    j = rng.randrange(len(weight[i]) + 1) if weight[i] else 0
    delta = size * rng.choice([1, -1])
    if j == len(weight[i]):
        bias[i] += delta
    else:
        weight[i][j] += delta
    layers[k] = Layer(matrix(weight, net.widths[k]), bias)
    return Network(exact=layers)


def rounded(net: Network) -> Network:
    """The network in float64."""
    return Network(floats=[FloatLayer(w.copy(), b.copy()) for w, b in net.floats])


def campaign(pairs: int, seed: int = 1, budget: float = 10.0, modes=("exact", "float")):
    """Random pairs by family; every verdict against the truth of its construction.

    Equal pairs come from a chain of moves: DIFFERENT would be wrong. Perturbed pairs may still be
    equal (a dead unit was hit); there the exact verdict is re-verified, and an exact EQUAL of a
    perturbed pair is confirmed by enumerating all joint cells. In float mode the truth is that of
    the rational pair before rounding.
    """
    counts: dict[tuple[str, str], Counter] = {}
    seconds = dict.fromkeys(modes, 0.0)
    failures = []
    for number in range(pairs):
        rng = random.Random(f"{seed}-{number}")
        family = FAMILIES[number % len(FAMILIES)]
        a = draw(family, rng)
        b = moves.scramble(a, rng.randint(1, 5), rng)
        kind = rng.choice(["equal", "equal", "perturbed", "unrelated"])
        if kind == "perturbed":
            b = perturb(b, fmpq(1, 10 ** rng.randint(2, 9)), rng)
        elif kind == "unrelated":
            b = random_network(a.widths, rng)
        truth = "EQUAL" if kind == "equal" else None
        for mode in modes:
            f, g = (a, b) if mode == "exact" else (rounded(a), rounded(b))
            began = time.process_time()
            verdict = decide(f, g, mode=mode, budget=budget)
            seconds[mode] += time.process_time() - began
            said = str(verdict.kind)
            cell = counts.setdefault((mode, family), Counter())
            cell[kind + " " + said] += 1
            wrong = not verify(verdict, f, g)
            if mode == "exact":
                if truth is None and said == "EQUAL":
                    wrong |= not _cells_agree(a, b)
                truth = truth or said
                wrong |= truth == "EQUAL" and said == "DIFFERENT"
            elif truth in ("EQUAL", "DIFFERENT"):
                wrong |= said not in (truth, "UNDECIDED")
            if wrong:
                failures.append((number, mode, family, kind, said, str(truth), verdict.reason))
    for (mode, family), cell in sorted(counts.items()):
        total = sum(cell.values())
        undecided = sum(v for k, v in cell.items() if k.endswith("UNDECIDED"))
        emit(row="campaign", mode=mode, family=family, pairs=total, undecided=undecided,
             **dict(sorted(cell.items())))  # fmt: skip
    cpu = {k: round(v, 1) for k, v in seconds.items()}
    emit(
        row="campaign total", pairs=pairs, wrong=len(failures), cpu_seconds=cpu,
        failures=failures[:20],
    )  # fmt: skip
    return failures


def _cells_agree(a: Network, b: Network) -> bool:
    start = frame(a, b, Everywhere(a.input_dim))
    assert start is not None
    return Enumeration(a, b, Everywhere(a.input_dim), start).run().witness is None


def tiny_networks(n2: int = 1, rng: random.Random | None = None, count: int | None = None):
    """All networks 2-2-n2-1 with entries in {-1, 0, 1} and b_3 = 0 (or `count` random ones)."""
    size = 4 + 2 + 2 * n2 + n2 + n2
    if rng is None:
        choices: Any = product((-1, 0, 1), repeat=size)
    else:
        choices = (tuple(rng.choice((-1, 0, 1)) for _ in range(size)) for _ in range(count or 0))
    yield from choices


def tiny(v, n2: int = 1) -> Network:
    """The network of a tuple of entries."""
    q = [fmpq(x) for x in v]
    at = 6 + 2 * n2
    return Network(
        exact=[
            Layer(fmpq_mat(2, 2, q[:4]), q[4:6]),
            Layer(fmpq_mat(n2, 2, q[6:at]), q[at : at + n2]),
            Layer(fmpq_mat(1, n2, q[at + n2 :]), [fmpq(0)]),
        ]
    )


def truth(limit: int | None = None, every: bool = True):
    """Function classes of all tiny networks by brute force against the normal form.

    Brute force: the values on a grid of rationals that is fine enough to separate them (checked by
    enumerating joint cells between each network and the first one of its class). The normal form
    must not split a class whose first layers have full rank. With `every`, each network is compared
    with the head of its class by enumerating joint cells, else two per class.
    """
    grid = [fmpq(k, 12) for k in range(-60, 61, 7)] + [fmpq(k) for k in (-97, -31, 31, 97)]
    points = np.array([[float(x), float(y)] for x in grid for y in grid])
    classes: dict[bytes, list] = {}
    began = time.process_time()
    total = 0
    for v in tiny_networks():
        if limit and total >= limit:
            break
        total += 1
        w = np.array(v, dtype=float)
        z = np.maximum(points @ w[:4].reshape(2, 2).T + w[4:6], 0)
        p = np.maximum(z @ w[6:8] + w[8], 0) * w[9]
        classes.setdefault(np.round(p, 9).tobytes(), []).append(v)
    # The values are multiples of 1/12 up to 1e-13, so rounding to 9 digits separates exactly.
    where = Everywhere(2)
    split_full_rank = 0
    full = 0
    confirmed = 0
    wrong = 0
    rng = random.Random(0)
    for members in classes.values():
        good = [v for v in members if v[0] * v[3] != v[1] * v[2]]
        if good:
            full += 1
            head = tiny(good[0])
            for v in good[1:]:
                if not absolute_forms(head, tiny(v), where).equal:
                    split_full_rank += 1
                    break
        head = tiny(members[0])
        for v in members if every else rng.sample(members, min(2, len(members))):
            other = tiny(v)
            confirmed += 1
            start = frame(head, other, where)
            assert start is not None
            if Enumeration(head, other, where, start).run().witness is not None:
                wrong += 1
    emit(row="truth", networks=total, classes=len(classes), with_full_rank=full,
         split_among_full_rank=split_full_rank, confirmed_by_cells=confirmed,
         grid_too_coarse=wrong, cpu_seconds=round(time.process_time() - began, 1))  # fmt: skip
    return split_full_rank, wrong, full


def twin(net: Network, rng: np.random.Generator) -> Network:
    """A float network permuted and rescaled at random in float64."""
    layers = [(w.copy(), b.copy()) for w, b in net.floats]
    for k in range(len(layers) - 1):
        (w, b), (v, e) = layers[k], layers[k + 1]
        order, s = rng.permutation(len(b)), np.exp(rng.normal(size=len(b)))
        layers[k], layers[k + 1] = (s[:, None] * w[order], s * b[order]), (v[:, order] / s, e)
    return Network(floats=[FloatLayer(w, b) for w, b in layers])


def dyadic_twin(net: Network, rng: np.random.Generator) -> Network:
    """The same with scales that are powers of two: exactly the same function."""
    layers = [(w.copy(), b.copy()) for w, b in net.floats]
    for k in range(len(layers) - 1):
        (w, b), (v, e) = layers[k], layers[k + 1]
        order, s = rng.permutation(len(b)), 2.0 ** rng.integers(-3, 4, len(b))
        layers[k], layers[k + 1] = (s[:, None] * w[order], s * b[order]), (v[:, order] / s, e)
    return Network(floats=[FloatLayer(w, b) for w, b in layers])


def gaussian(widths, rng: np.random.Generator) -> Network:
    """A float64 network with Gaussian weights."""
    return Network(
        floats=[
            FloatLayer(rng.normal(size=(n, d)) / np.sqrt(d), rng.normal(size=n) * 0.1)
            for d, n in zip(widths, widths[1:], strict=False)
        ]
    )


def speed():
    """The promised timings."""
    rng = np.random.default_rng(0)
    plans = [
        ("shallow 1000-2000-10, float", (1000, 2000, 10), "float", twin, 2.0),
        ("784-128-64-10 twin, float", (784, 128, 64, 10), "float", twin, 1.0),
        ("bottleneck 25-25-20-3, exact", (25, 25, 20, 3), "exact", dyadic_twin, 0.5),
        ("bottleneck 25-20-20-3, exact", (25, 20, 20, 3), "exact", dyadic_twin, 0.5),
        ("bottleneck 50-40-40-10, exact", (50, 40, 40, 10), "exact", dyadic_twin, 3.0),
    ]
    for name, widths, mode, make, promised in plans:
        a = gaussian(widths, rng)
        b = make(a, rng)
        began = time.process_time()
        verdict = decide(a, b, mode=mode)
        emit(row="speed", case=name, verdict=str(verdict.kind),
             cpu_seconds=round(time.process_time() - began, 3), promised=promised,
             bound=verdict.bounds.upper, radius=verdict.bounds.radius)  # fmt: skip
    for widths in ((2, 16, 16, 1), (3, 10, 8, 1), (4, 6, 6, 1), (2, 5, 5, 5, 1), (5, 6, 4, 1)):
        a = gaussian(widths, rng)
        b = dyadic_twin(a, rng)
        start = frame(a, b, Everywhere(widths[0]))
        assert start is not None
        began = time.process_time()
        tree = Enumeration(a, b, Everywhere(widths[0]), start).run()
        took = time.process_time() - began
        emit(row="cells", widths=widths, cells=tree.leaves, per_second=round(tree.leaves / took))


def emit(**values) -> None:
    """One JSON line."""
    print(json.dumps(values, default=str), flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["campaign", "truth", "speed"])
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=int, default=None)
    arguments = parser.parse_args()
    if arguments.what == "campaign":
        campaign(arguments.pairs, arguments.seed)
    elif arguments.what == "truth":
        truth(arguments.limit)
    else:
        speed()


if __name__ == "__main__":
    main()

"""How many pairs of ReLU networks stay undecided at a small budget, class by class.

    python benchmarks/undecided.py --classes dead --pairs 300
    python benchmarks/undecided.py                               every class

    dead        a later hidden unit is never active on the image of the units before it, although
                its weights have both signs; the other network lacks it, or reads it otherwise
    linear      a later hidden unit is always active there; the other network spells it out
    alive       as `dead`, but active on a sliver: by 1e-3 down to 1e-9, at a known input
    thin        float mode, 2-2-2 against 2-6-2 by splits and cancelling pairs
    moved       equal by a chain of moves
    perturbed   one entry changed

Each pair is drawn with the truth of its construction: equal by an identity of functions, or
different at an input that is known. A pair counts as undecided if the verdict is UNDECIDED or took
more CPU than the budget; the wall budget is `--patience` times as long, so that a loaded machine
does not count. One JSON line per class.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from flint import fmpq, fmpq_mat

from paramsym.relu import Network, decide, moves, verify
from paramsym.relu.network import FloatLayer, Layer
from paramsym.relu.randomness import generic

Row = list[fmpq]
ZERO = fmpq(0)
MARGINS = [fmpq(0), fmpq(1, 10**9), fmpq(1, 10**3), fmpq(1)]


@dataclass
class Pair:
    """Two networks and whether they are equal (None: not known)."""

    a: Network
    b: Network
    equal: bool | None


@dataclass
class Draft:
    """A network in the making: per layer the rows and biases, as lists."""

    rows: list[list[Row]]
    biases: list[Row]

    @staticmethod
    def random(widths, rng: random.Random) -> Draft:
        return Draft(
            [[[generic(rng) for _ in range(d)] for _ in range(n)]
             for d, n in zip(widths, widths[1:], strict=False)],
            [[generic(rng) for _ in range(n)] for n in widths[1:]],
        )  # fmt: skip

    def copy(self) -> Draft:
        return Draft([[list(r) for r in t] for t in self.rows], [list(b) for b in self.biases])

    def add(self, layer: int, row: Row, bias: fmpq, out: Row) -> int:
        """A further unit of hidden layer `layer` (from 0); its number."""
        self.rows[layer].append(list(row))
        self.biases[layer].append(bias)
        for held, c in zip(self.rows[layer + 1], out, strict=True):
            held.append(c)
        return len(self.biases[layer]) - 1

    def network(self) -> Network:
        return Network(
            exact=[
                Layer(fmpq_mat(len(b), len(t[0]), [v for r in t for v in r]), list(b))
                for t, b in zip(self.rows, self.biases, strict=True)
            ]
        )


def combination(factors: Row, rows: list[Row]) -> Row:
    """Σ factor·row."""
    return [sum((f * r[k] for f, r in zip(factors, rows, strict=True)), ZERO)
            for k in range(len(rows[0]))]  # fmt: skip


# ------------------------------------------------------------------ units dead on the image


@dataclass
class Dead:
    """A unit over the layer before it: row and bias, and an input where it is largest, if known."""

    row: Row
    bias: fmpq
    peak: Row | None = None


def _reads(draft: Draft, layer: int, rng: random.Random) -> Row:
    """What the layer above reads of a helper unit: something, or nothing at all."""
    read = rng.random() < 0.6
    return [generic(rng) if read else ZERO for _ in draft.rows[layer + 1]]


def fold(draft: Draft, layer: int, rng: random.Random) -> Dead:
    """relu(Σ μ_i z_i) <= Σ μ_i relu(z_i), once or twice, over helper units of a hidden layer."""
    weights: dict[int, fmpq] = {}
    for _ in range(rng.choice([1, 1, 2])):
        parts = []
        for _ in range(rng.randint(2, 3)):
            row, bias = [generic(rng) for _ in draft.rows[layer][0]], generic(rng)
            parts.append((draft.add(layer, row, bias, _reads(draft, layer, rng)), [*row, bias]))
        share = [generic(rng, True) for _ in parts]
        whole = combination(share, [held for _, held in parts])
        at = draft.add(layer, whole[:-1], whole[-1], _reads(draft, layer, rng))
        size = generic(rng, True)
        weights[at] = size
        for (unit, _), s in zip(parts, share, strict=True):
            weights[unit] = -size * s * (1 if rng.random() < 0.7 else fmpq(5, 4))
    row = [weights.get(k, ZERO) for k in range(len(draft.biases[layer]))]
    return Dead(row, -rng.choice(MARGINS) if rng.random() < 0.5 else ZERO)


def spanned(draft: Draft, layer: int, rng: random.Random, margin: fmpq) -> Dead:
    """Units that span R^d positively outweigh 1 to 3 others; the largest value is -margin.

    It is taken at a vertex of the arrangement of these units, of which all are tried.
    """
    d = len(draft.rows[layer][0])
    rows = [[generic(rng) for _ in range(d)] for _ in range(d)]
    rows.append([-v for v in combination([generic(rng, True) for _ in rows], rows)])
    negative = [(row, generic(rng)) for row in rows]
    positive = [
        ([generic(rng) for _ in range(d)], generic(rng)) for _ in range(rng.choice([1, 1, 2, 3]))
    ]
    weights = [generic(rng, True) for _ in positive]
    costs = [fmpq(rng.randint(1, 50), 100) for _ in negative]
    for (row, _), w in zip(positive, weights, strict=True):
        for k, share in enumerate(_cone(rows, row)):
            costs[k] += w * share
    form = [(r, t, w) for (r, t), w in zip(positive, weights, strict=True)]
    form += [(r, t, -c) for (r, t), c in zip(negative, costs, strict=True)]

    def value(x: Row) -> fmpq:
        total = ZERO
        for row, t, w in form:
            z = sum((a * v for a, v in zip(row, x, strict=True)), t)
            total += w * z if z > 0 else ZERO
        return total

    best: tuple[fmpq, Row] | None = None
    for chosen in combinations(form, d):
        table = fmpq_mat(d, d, [v for row, _, _ in chosen for v in row])
        if table.det() == 0:
            continue
        x = table.solve(fmpq_mat(d, 1, [-t for _, t, _ in chosen])).entries()
        found = value(x)
        if best is None or found > best[0]:
            best = (found, x)
    assert best is not None
    weight: dict[int, fmpq] = {}
    for row, t, w in form:
        weight[draft.add(layer, row, t, _reads(draft, layer, rng))] = w
    row = [weight.get(k, ZERO) for k in range(len(draft.biases[layer]))]
    return Dead(row, -best[0] - margin, best[1])


def _cone(rows: list[Row], wanted: Row) -> Row:
    """Shares >= 0 of d+1 positively spanning rows of R^d whose sum is the wanted row."""
    d = len(wanted)
    for k in range(d + 1):
        rest = [r for i, r in enumerate(rows) if i != k]
        table = fmpq_mat(d, d, [rest[j][i] for i in range(d) for j in range(d)])
        if table.det() == 0:
            continue
        share = table.solve(fmpq_mat(d, 1, wanted)).entries()
        if all(s >= 0 for s in share):
            share.insert(k, ZERO)
            return share
    raise AssertionError("rows that do not span positively")


def nested(draft: Draft, layer: int, rng: random.Random) -> Dead:
    """relu(Σ α_i y_i - Σ γ_k y_k) <= Σ α_i y_i, one layer above the units y."""
    n = len(draft.rows[layer][0])
    chosen = rng.sample(range(n), min(n, rng.randint(1, 2)))
    weights: dict[int, fmpq] = {}
    whole = [ZERO if rng.random() < 0.4 else -generic(rng, True) for _ in range(n)]
    for k in chosen:
        row = [generic(rng, True) if i == k else ZERO for i in range(n)]
        weights[draft.add(layer, row, ZERO, _reads(draft, layer, rng))] = -generic(rng, True)
        unit = max(weights)
        whole[k] = -weights[unit] * row[k]
    at = draft.add(layer, whole, -rng.choice(MARGINS), _reads(draft, layer, rng))
    weights[at] = fmpq(1)
    row = [weights.get(k, ZERO) for k in range(len(draft.biases[layer]))]
    return Dead(row, ZERO)


# ------------------------------------------------------------------ pairs


def _widths(rng: random.Random, helpers: int) -> tuple[int, ...]:
    d = rng.randint(2, 6)
    first = max(1, rng.randint(d - 1, d + 2) - helpers)
    hidden = [first, rng.randint(1, 3)]
    if rng.random() < 0.4:
        hidden.append(rng.randint(1, 3))
    return (d, *hidden, rng.randint(1, 2))


def _with_unit(rng: random.Random, margin: fmpq | None = None) -> tuple[Draft, int, Dead]:
    """A network before the dead unit is put in, the layer of that unit, and the unit."""
    how = rng.choice(["fold", "fold", "spanned", "nested"]) if margin is None else "spanned"
    widths = _widths(rng, 0 if how == "nested" else 3)
    if how == "nested":
        if len(widths) < 5:
            *kept, outputs = widths
            widths = (*kept, rng.randint(1, 3), outputs)
        draft = Draft.random(widths, rng)
        return draft, 2, nested(draft, 1, rng)
    if how == "spanned":
        widths = (widths[0], 1, *widths[2:])
        draft = Draft.random(widths, rng)
        return draft, 1, spanned(draft, 0, rng, rng.choice(MARGINS) if margin is None else margin)
    draft = Draft.random(widths, rng)
    layer = rng.randrange(len(widths) - 3)
    return draft, layer + 1, fold(draft, layer, rng)


def dead(rng: random.Random) -> Pair:
    """With a dead unit against without it, or with another that is dead, both moved."""
    draft, layer, unit = _with_unit(rng)
    a, b = draft.copy(), draft.copy()
    reads = len(draft.rows[layer + 1])
    a.add(layer, unit.row, unit.bias, [generic(rng) for _ in range(reads)])
    if rng.random() < 0.4:
        size = generic(rng, True)
        row = [size * v for v in unit.row]
        b.add(layer, row, size * unit.bias, [generic(rng) for _ in range(reads)])
    kinds = rng.choice([("permute", "scale"), moves.KEEPING_WIDTHS, None])
    return Pair(a.network(), moves.scramble(b.network(), rng.randint(1, 4), rng, kinds), True)


def linear(rng: random.Random) -> Pair:
    """A unit that is always active on the image against what it passes on, unit by unit."""
    draft, layer, unit = _with_unit(rng)
    a, b = draft.copy(), draft.copy()
    out = [generic(rng) for _ in draft.rows[layer + 1]]
    a.add(layer, [-v for v in unit.row], -unit.bias, out)
    n = len(unit.row)
    for k, w in enumerate(unit.row):
        if w:
            row = [abs(w) if i == k else ZERO for i in range(n)]
            b.add(layer, row, ZERO, [-c if w > 0 else c for c in out])
    for i, c in enumerate(out):
        b.biases[layer + 1][i] -= c * unit.bias
    return Pair(a.network(), moves.scramble(b.network(), 2, rng, ("permute", "scale")), True)


def alive(rng: random.Random) -> Pair:
    """With a unit that is active on a sliver against without it: different at its peak."""
    size = fmpq(1, 10 ** rng.randint(3, 9))
    draft, layer, unit = _with_unit(rng, -size)
    a, b = draft.copy(), draft.copy()
    a.add(layer, unit.row, unit.bias, [generic(rng) for _ in draft.rows[layer + 1]])
    f, g = a.network(), moves.scramble(b.network(), 2, rng, ("permute", "scale"))
    assert unit.peak is not None
    if f.evaluate(unit.peak) == g.evaluate(unit.peak):  # a unit above does not let it through
        return alive(rng)
    return Pair(f, g, False)


def thin(rng: random.Random) -> Pair:
    """2-2-2 against the same function at 2-6-2, rounded to float64."""
    a = Draft.random((2, 2, 2), rng).network()
    b = a
    while b.widths[1] < 6:
        b = moves.scramble(b, 1, rng, ("split", "insert_cancelling", "permute", "scale"))
    return Pair(rounded(a), rounded(b), True) if b.widths[1] == 6 else thin(rng)


def _ordinary(rng: random.Random) -> Network:
    return Draft.random(_widths(rng, 2), rng).network()


def moved(rng: random.Random) -> Pair:
    """Equal by a chain of moves."""
    a = _ordinary(rng)
    return Pair(a, moves.scramble(a, rng.randint(1, 4), rng), True)


def perturbed(rng: random.Random) -> Pair:
    """One entry changed by 1e-2 to 1e-9."""
    draft = Draft.random(_widths(rng, 2), rng)
    other = draft.copy()
    k = rng.randrange(len(other.rows))
    i = rng.randrange(len(other.biases[k]))
    other.rows[k][i][rng.randrange(len(other.rows[k][i]))] += fmpq(1, 10 ** rng.randint(2, 9))
    b = moves.scramble(other.network(), 2, rng, ("permute", "scale"))
    return Pair(draft.network(), b, None)


def rounded(net: Network) -> Network:
    """The network in float64."""
    return Network(floats=[FloatLayer(w.copy(), b.copy()) for w, b in net.floats])


CLASSES = {f.__name__: f for f in (dead, linear, alive, thin, moved, perturbed)}


def measure(name: str, pairs: int, seed: int, budget: float, patience: float) -> dict[str, Any]:
    """The verdicts on the pairs of a class, held against their truth."""
    counts: Counter[str] = Counter()
    methods: Counter[str] = Counter()
    undecided, wrong, took, total = [], [], 0.0, 0.0
    for number in range(pairs):
        pair = CLASSES[name](random.Random(f"{name}-{seed}-{number}"))
        began = time.process_time()
        verdict = decide(pair.a, pair.b, mode="float" if name == "thin" else "exact",
                         budget=budget * patience)  # fmt: skip
        seconds = time.process_time() - began
        took, total = max(took, seconds), total + seconds
        said = str(verdict.kind)
        counts[said] += 1
        methods[verdict.method] += 1
        if said == "UNDECIDED" or seconds > budget:
            undecided.append((number, pair.a.widths, pair.b.widths, said, round(seconds, 2)))
        says = {"EQUAL": True, "DIFFERENT": False}.get(said)
        if says is not None and pair.equal is not None and says != pair.equal:
            wrong.append(number)
        if not verify(verdict, pair.a, pair.b):
            wrong.append(number)
    return {
        "class": name, "pairs": pairs, "undecided": len(undecided),
        "percent": round(100 * len(undecided) / max(pairs, 1), 2), "wrong": wrong,
        "verdicts": dict(counts), "methods": dict(methods),
        "mean_cpu": round(total / max(pairs, 1), 3), "worst_cpu": round(took, 2),
        "cases": undecided[:20],
    }  # fmt: skip


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", nargs="*", choices=sorted(CLASSES), default=list(CLASSES))
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget", type=float, default=3.0, help="CPU seconds per pair")
    parser.add_argument("--patience", type=float, default=8.0, help="wall seconds per CPU second")
    given = parser.parse_args()
    for name in given.classes:
        row = measure(name, given.pairs, given.seed, given.budget, given.patience)
        print(json.dumps(row, default=str), flush=True)


if __name__ == "__main__":
    main()

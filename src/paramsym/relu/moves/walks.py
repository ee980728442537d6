"""Random walks through a fiber: applicable moves with random arguments."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from paramsym.relu.arithmetic import fmpq, fmpq_mat
from paramsym.relu.layer_fiber import LayerFiber
from paramsym.relu.moves.hidden import reflect, reflection_ratio, translate, translation_bound
from paramsym.relu.moves.linear import change_basis, flip, linear_units, shift_bias
from paramsym.relu.moves.units import (
    insert_cancelling,
    insert_dead,
    insert_silent,
    merge,
    permute,
    scale,
    split,
)
from paramsym.relu.network import Network
from paramsym.relu.randomness import factor, generic, randomness
from paramsym.relu.rationals import ZERO
from paramsym.relu.reading import as_network

Proposal = Callable[[Network, random.Random], "Network | None"]


def _propose_permute(net: Network, rng: random.Random) -> Network | None:
    layer = rng.randint(1, net.depth)
    return permute(net, layer, rng.sample(range(net.widths[layer]), net.widths[layer]))


def _propose_scale(net: Network, rng: random.Random) -> Network | None:
    layer = rng.randint(1, net.depth)
    return scale(net, layer, [factor(rng) for _ in range(net.widths[layer])])


def _propose_split(net: Network, rng: random.Random) -> Network | None:
    layer = rng.randint(1, net.depth)
    share = fmpq(rng.randint(-3, 6), 4)
    parts = [(factor(rng), share), (factor(rng), 1 - share)]
    return split(net, layer, rng.randrange(net.widths[layer]), parts)


def _propose_merge(net: Network, rng: random.Random) -> Network | None:
    layer = rng.randint(1, net.depth)
    seen: dict[tuple[fmpq, ...], list[int]] = {}
    inner = net.exact[layer - 1]
    for i, (row, t) in enumerate(zip(inner.weight.tolist(), inner.bias, strict=True)):
        size = next((abs(x) for x in row if x), None)
        if size is not None:
            seen.setdefault((*(x / size for x in row), t / size), []).append(i)
    groups = [g for g in seen.values() if len(g) > 1]
    return merge(net, layer, rng.choice(groups)) if groups else None


def _propose_dead(net: Network, rng: random.Random) -> Network | None:
    layer = rng.randint(1, net.depth)
    width = net.widths[layer - 1]
    row = [ZERO if layer == 1 else -generic(rng, True) for _ in range(width)]
    out = [generic(rng) for _ in range(net.widths[layer + 1])]
    return insert_dead(net, layer, row, -generic(rng, True), out)


def _propose_silent(net: Network, rng: random.Random) -> Network | None:
    layer = rng.randint(1, net.depth)
    row = [generic(rng) for _ in range(net.widths[layer - 1])]
    return insert_silent(net, layer, row, generic(rng))


def _propose_cancelling(net: Network, rng: random.Random) -> Network | None:
    layer = rng.randint(1, net.depth)
    row = [generic(rng) for _ in range(net.widths[layer - 1])]
    out = [generic(rng) for _ in range(net.widths[layer + 1])]
    return insert_cancelling(net, layer, row, generic(rng), out, factor(rng))


def _propose_translate(net: Network, rng: random.Random) -> Network | None:
    found = []
    for layer in range(1, net.depth):
        for unit in range(net.widths[layer]):
            bound = translation_bound(net, layer, unit)
            if bound is not None:
                found.append((layer, unit, bound))
    if not found:
        return None
    layer, unit, bound = rng.choice(found)
    amount = bound + rng.choice([ZERO, factor(rng), -bound + factor(rng)])
    return translate(net, layer, unit, amount)


def _propose_reflect(net: Network, rng: random.Random) -> Network | None:
    found = [
        (layer, j, k)
        for layer in range(1, net.depth)
        for j in range(net.widths[layer])
        for k in range(net.widths[layer])
        if reflection_ratio(net, layer, j, k) is not None
    ]
    return reflect(net, *rng.choice(found)) if found else None


def _propose_flip(net: Network, rng: random.Random) -> Network | None:
    if net.depth < 2:
        return None
    layer = rng.randint(2, net.depth)
    fiber = LayerFiber(Network(exact=[net.exact[layer - 1], net.exact[layer]]))
    chosen = [i for i in range(fiber.k) if rng.random() < 0.5]
    if not fiber.feasible(chosen):
        return None
    return flip(net, layer, chosen, rng)


def _propose_basis(net: Network, rng: random.Random) -> Network | None:
    layer = rng.randint(1, net.depth)
    units = linear_units(net, layer)
    if not units:
        return None
    r = len(units)
    while True:  # a non-negative table keeps everything non-negative
        table = [[factor(rng) if rng.random() < 0.6 else ZERO for _ in range(r)] for _ in range(r)]
        if fmpq_mat(table).det() != 0:
            return change_basis(net, layer, units, table)


def _propose_shift(net: Network, rng: random.Random) -> Network | None:
    layer = rng.randint(1, net.depth)
    units = linear_units(net, layer)
    if not units:
        return None
    unit = rng.choice(units)
    return shift_bias(net, layer, unit, factor(rng) - net.exact[layer - 1].bias[unit])


PROPOSALS: dict[str, Proposal] = {
    "permute": _propose_permute,
    "scale": _propose_scale,
    "split": _propose_split,
    "merge": _propose_merge,
    "insert_dead": _propose_dead,
    "insert_silent": _propose_silent,
    "insert_cancelling": _propose_cancelling,
    "translate": _propose_translate,
    "reflect": _propose_reflect,
    "flip": _propose_flip,
    "change_basis": _propose_basis,
    "shift_bias": _propose_shift,
}
KEEPING_WIDTHS = (
    "permute", "scale", "translate", "reflect", "flip", "change_basis", "shift_bias",
)  # fmt: skip


def proposals(
    net: Any, rng: Any = 0, kinds: Iterable[str] | None = None
) -> Iterator[tuple[str, Network]]:
    """Each kind of move that applies to a network, once, with random arguments: (kind, result)."""
    network, source = as_network(net, "relu.moves.proposals(network)"), randomness(rng)
    for kind in kinds or PROPOSALS:
        moved = PROPOSALS[kind](network, source) if network.depth else None
        if moved is not None:
            yield kind, moved


def walk(
    net: Any, steps: int, rng: Any = 0, kinds: Iterable[str] | None = None
) -> Iterator[tuple[str, Network]]:
    """A random walk through the fiber: (kind of move, network) after each step.

    Args:
        steps: how many moves.
        rng: an integer seed, a `torch.Generator` or a `random.Random`.
        kinds: the moves to draw from (all by default; `KEEPING_WIDTHS` stays in one architecture).
    """
    network, source = as_network(net, "relu.moves.walk(network)"), randomness(rng)
    names = list(kinds or PROPOSALS)
    for _ in range(steps if network.depth else 0):
        for kind in source.sample(names, len(names)):
            moved = PROPOSALS[kind](network, source)
            if moved is not None:
                network = moved
                yield kind, network
                break


def scramble(net: Any, steps: int = 6, rng: Any = 0, kinds: Iterable[str] | None = None) -> Network:
    """The end of a random walk: another network with exactly the same function."""
    network = as_network(net, "relu.moves.scramble(network)")
    for _, network in walk(network, steps, rng, kinds):  # noqa: B007, B020
        pass
    return network

"""Degeneracies of a three-layer network, in words: what the generic theorems leave out.

"Maximal rank of all masked products" quantifies over exponentially many masks and is not tested;
nothing here depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator

from paramsym.relu.hyperplanes import Key, hyperplane
from paramsym.relu.network import Layer, Network
from paramsym.relu.visibility import truly_visible, visible


def degeneracies(net: Network) -> Iterator[str]:
    """Ranks, zeros, repeated and unread units, and hyperplanes that cancel; nothing if generic."""
    (w1, _), (w2, b2), (w3, _) = net.exact
    rank, n1 = w1.rank(), w1.nrows()
    if rank < n1:
        yield f"first layer: rank {rank} of {n1}"
    for name, entries in (("W_2", w2.entries()), ("b_2", b2)):
        if not all(entries):
            yield f"zero entries in {name}"
    yield from _repeated("first", net.exact[0])
    yield from _repeated("second", net.exact[1])
    for i, column in enumerate(w3.transpose().tolist()):
        if not any(column):
            yield f"second layer: unit {i} is not read"
    if rank == n1:
        yield from _cancelled(net)


def _repeated(name: str, layer: Layer) -> Iterator[str]:
    """Units without a hyperplane, and units whose hyperplane an earlier one has."""
    seen: dict[Key, int] = {}
    for i, (row, t) in enumerate(zip(layer.weight.tolist(), layer.bias, strict=True)):
        if not any(row):
            yield f"{name} layer: unit {i} is constant"
            continue
        first = seen.setdefault(hyperplane(row, t)[1], i)
        if first != i:
            yield f"{name} layer: units {first} and {i} share a hyperplane"


def _cancelled(net: Network) -> Iterator[str]:
    """Hyperplanes that the closed form calls visible and the function does not show."""
    for j in range(net.widths[1]):
        if truly_visible(net, j) != visible(net, j):
            yield f"hyperplane {j} is invisible by cancellation"

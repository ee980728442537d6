"""Moves that use linear units: orientation flips, changes of basis, bias shifts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from paramsym.relu.arithmetic import fmpq_mat
from paramsym.relu.layer_fiber import LayerFiber
from paramsym.relu.moves.tables import MoveError, closed, opened
from paramsym.relu.network import Network
from paramsym.relu.rationals import rational, rows


def flip(net: Any, layer: int, hyperplanes: Iterable[int], rng: Any = 0) -> Network:
    """Another orientation set for a layer behind a ReLU, its linear units making up for it.

    Args:
        layer: 2 or more, so that the layer reads non-negative features.
        hyperplanes: the orientation set S, as in `LayerFiber.sample`.
        rng: the new linear units are drawn at random from all that compensate.
    """
    network, *_ = opened(net, layer, "flip")
    if layer < 2:
        raise MoveError(
            "layer 1", "a layer behind a ReLU", "relu.moves.flip",
            "On all of R^d no unit is linear, so there is nothing that could compensate.",
        )  # fmt: skip
    fiber = LayerFiber(Network(exact=[network.exact[layer - 1], network.exact[layer]]))
    chosen = list(hyperplanes)
    block = fiber.sample(chosen, rng)
    if block is None:
        raise MoveError(
            f"orientation set {chosen} with {fiber.linear} linear units",
            "a compensation A_S of semirank at most the number of linear units",
            "relu.moves.flip",
            "Use LayerFiber.orientations() for those that are feasible.",
        )
    layers = list(network.exact)
    layers[layer - 1], layers[layer] = block.exact
    return Network(exact=layers, name=network.name)


def linear_units(net: Any, layer: int) -> list[int]:
    """Units that are non-negative for structural reasons: (row, bias) >= 0 behind a ReLU."""
    _, w, b, _, _ = opened(net, layer, "linear_units")
    if layer < 2:
        return [i for i, row in enumerate(w) if not any(row) and b[i] >= 0]
    return [i for i, row in enumerate(w) if b[i] >= 0 and all(x >= 0 for x in row)]


def change_basis(net: Any, layer: int, units: Sequence[int], table: Any) -> Network:
    """GL_r on jointly linear units: V ↦ X V, β ↦ X β, U ↦ U X⁻¹, the results staying >= 0."""
    network, w, b, v, e = opened(net, layer, "change_basis")
    r = len(units)
    x = fmpq_mat(r, r, [rational(t, "relu.moves.change_basis(table)") for row in table
                        for t in row])  # fmt: skip
    allowed = set(linear_units(network, layer))
    if not set(units) <= allowed or x.det() == 0:
        raise MoveError(
            f"units {list(units)} and a table of determinant {x.det()}",
            f"units among {sorted(allowed)} and an invertible table",
            "relu.moves.change_basis",
            "Only units that are linear on their whole domain mix.",
        )
    block = fmpq_mat([[*w[i], b[i]] for i in units])
    moved = rows(x * block)
    if any(entry < 0 for row in moved for entry in row):
        raise MoveError(
            "a table that makes an entry of X·(V, β) negative", "X·(V, β) >= 0",
            "relu.moves.change_basis", "The new units must be linear as well.",
        )  # fmt: skip
    outer = rows(fmpq_mat([[row[i] for i in units] for row in v]) * x.inv())
    for place, i in enumerate(units):
        w[i], b[i] = moved[place][:-1], moved[place][-1]
        for row, new in zip(v, outer, strict=True):
            row[i] = new[place]
    return closed(network, layer, w, b, v, e)


def shift_bias(net: Any, layer: int, unit: int, amount: Any) -> Network:
    """The bias of a linear unit by δ, against the biases of its readers."""
    network, w, b, v, e = opened(net, layer, "shift_bias")
    delta = rational(amount)
    if unit not in linear_units(network, layer) or b[unit] + delta < 0:
        raise MoveError(
            f"unit {unit} with bias {b[unit]} + {delta}",
            "a linear unit whose bias stays >= 0", "relu.moves.shift_bias",
            "Otherwise the unit would switch off somewhere.",
        )  # fmt: skip
    b[unit] += delta
    e = [x - delta * row[unit] for x, row in zip(e, v, strict=True)]
    return closed(network, layer, w, b, v, e)

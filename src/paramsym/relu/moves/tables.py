"""A layer and its reader as tables, which the moves change."""

from __future__ import annotations

from typing import Any

from paramsym.relu.arithmetic import fmpq
from paramsym.relu.errors import ReLUError
from paramsym.relu.network import Layer, Network
from paramsym.relu.rationals import matrix, rows
from paramsym.relu.reading import as_network


class MoveError(ReLUError):
    """A move whose condition does not hold at this network."""


Tables = tuple[Network, list[list[fmpq]], list[fmpq], list[list[fmpq]], list[fmpq]]


def opened(net: Any, layer: int, name: str) -> Tables:
    """The network and the tables (W, b) of the layer and (V, e) of its reader."""
    network = as_network(net, f"relu.moves.{name}(network)")
    if not 1 <= layer <= network.depth:
        raise MoveError(
            f"layer {layer}", f"a hidden layer, 1 to {network.depth}", f"relu.moves.{name}",
            "Hidden layers count from 1.",
        )  # fmt: skip
    inner, outer = network.exact[layer - 1], network.exact[layer]
    return network, rows(inner.weight), list(inner.bias), rows(outer.weight), list(outer.bias)


def closed(net: Network, layer: int, w, b, v, e) -> Network:
    """The network with the changed tables put back."""
    layers = list(net.exact)
    width_in = net.widths[layer - 1]
    layers[layer - 1] = Layer(matrix(w, width_in), list(b))
    layers[layer] = Layer(matrix(v, len(b)), list(e))
    return Network(exact=layers, name=net.name)


def check_unit(net: Network, layer: int, unit: int, name: str) -> None:
    """Raise `MoveError` unless the layer has that unit."""
    if not 0 <= unit < net.widths[layer]:
        raise MoveError(
            f"unit {unit}", f"a unit of layer {layer}, 0 to {net.widths[layer] - 1}",
            f"relu.moves.{name}", "Units count from 0.",
        )  # fmt: skip

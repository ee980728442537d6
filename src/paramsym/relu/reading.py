"""Whatever a user calls a ReLU network, as one: a module, a program, or its layers as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paramsym.relu.network import Network, network_of_pairs


def as_network(
    source: Any, name: str = "network", input_shape: Sequence[int] | None = None
) -> Network:
    """Read a ReLU network.

    Args:
        source: a module or exported program that computes a piecewise linear function of each row
            of a batch (linear layers, convolutions, batch norm in evaluation, pooling, residual
            sums, ReLU, leaky ReLU, clamp, maximum); a list of pairs (W, b) with W an n×d table and
            b of n entries (None for zero), entries being numbers, `Fraction`s or strings; or a list
            of {"W": …, "b": …}.
        name: how errors call it.
        input_shape: of one input of a module, without the batch; by default what its first weight
            matrix reads. Inputs are flattened in C order.

    Raises `ReLUError` for other modules (named, with their place), shapes that do not fit, NaN,
    infinities, and text that is no rational.
    """
    if isinstance(source, Network):
        return source
    if hasattr(source, "state_dict") or hasattr(source, "graph_module"):
        from paramsym.relu.modules import network_of_module  # torch, only where there is a module

        return network_of_module(source, name, input_shape)
    if isinstance(source, dict) and "layers" in source:
        source = source["layers"]
    return network_of_pairs(source, name)

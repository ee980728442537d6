"""Whatever a user calls a ReLU network, as one: a module, a program, or its layers as tables."""

from __future__ import annotations

from typing import Any

from paramsym.relu.network import Network, network_of_pairs


def as_network(source: Any, name: str = "network") -> Network:
    """Read a ReLU network.

    Args:
        source: an `nn.Sequential` (or any module that is a chain) of linear and ReLU modules; a
            list of pairs (W, b) with W an n×d table and b of n entries (None for zero), entries
            being numbers, `Fraction`s or strings; or a list of {"W": …, "b": …}.
        name: how errors call it.

    Raises `ReLUError` for other modules (named, with their place), shapes that do not fit, NaN,
    infinities, and text that is no rational.
    """
    if isinstance(source, Network):
        return source
    if hasattr(source, "state_dict") or hasattr(source, "graph_module"):
        from paramsym.relu.modules import network_of_module  # torch, only where there is a module

        return network_of_module(source, name)
    if isinstance(source, dict) and "layers" in source:
        source = source["layers"]
    return network_of_pairs(source, name)

"""Networks of the class as lists of layers: P_1, σ_1, P_2, …, P_L in turns."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from .monomial import RectifiedMonomial
from .polynomial import Polynomial


class Layers(NamedTuple):
    """A network of the class, taken apart."""

    polynomials: list[Polynomial]
    powers: list[float]  # p of the rectified monomials between them
    names: list[str]  # of the polynomials in the network


def alternating(network: nn.Module, caller: str) -> Layers:
    """The layers of a network P, σ, P, …, σ, P.

    Args:
        network: an `nn.Sequential`.
        caller: of the error message.

    Raises:
        ValueError: another module, or one layer in two places, which no group can move apart.
    """
    if not isinstance(network, nn.Sequential):
        raise ValueError(
            f"{caller}(network={type(network).__name__}): an nn.Sequential of Polynomial and "
            "RectifiedMonomial in turns was expected. Build one with waring.network, or with "
            "waring.from_relu from linear layers."
        )
    named = [*network._modules.items()]  # named_children leaves out what stands twice
    for at, (name, module) in enumerate(named):
        wanted = RectifiedMonomial if at % 2 else Polynomial
        if not isinstance(module, wanted):
            raise ValueError(
                f"{caller}(network=…): module {name!r} is a {type(module).__name__}, where a "
                f"{wanted.__name__} was expected, since the two alternate. Convert linear layers "
                "and activations with waring.from_relu or waring.from_activation."
            )
    modules = [*network]
    polynomials = [m for m in modules if isinstance(m, Polynomial)]
    if len(modules) % 2 == 0 or len({id(p.weight) for p in polynomials}) < len(polynomials):
        raise ValueError(
            f"{caller}(network=…): {len(modules)} modules came, {len(polynomials)} of them "
            f"polynomials, with {len({id(p.weight) for p in polynomials})} tensors of weights; a "
            "network that begins and ends with a Polynomial, each with weights of its own, was "
            "expected. Append a Polynomial of degree 1, or copy the layer that stands twice."
        )
    names = [name for name, m in named if isinstance(m, Polynomial)]
    powers = [m.power for m in modules if isinstance(m, RectifiedMonomial)]
    return Layers(polynomials, powers, names)


def assembled(network: nn.Sequential, polynomials: Sequence[nn.Module]) -> nn.Sequential:
    """The network with other layers in the even places, names and training mode kept."""
    rest = iter(polynomials)
    modules: OrderedDict[str, nn.Module] = OrderedDict()
    for name, module in network._modules.items():
        is_monomial = isinstance(module, RectifiedMonomial)
        modules[name] = RectifiedMonomial(module.power) if is_monomial else next(rest)
    return nn.Sequential(modules).train(network.training)

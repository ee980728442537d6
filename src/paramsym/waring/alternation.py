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


def taken_apart(network: nn.Module) -> Layers | None:
    """The layers of an `nn.Sequential` P, σ, P, …, σ, P; None for any other module."""
    if not isinstance(network, nn.Sequential) or len(network) % 2 == 0:
        return None
    named = [*network._modules.items()]  # named_children leaves out what stands twice
    if not all(isinstance(m, _wanted(at)) for at, (_, m) in enumerate(named)):
        return None
    polynomials = [m for m in network if isinstance(m, Polynomial)]
    powers = [m.power for m in network if isinstance(m, RectifiedMonomial)]
    return Layers(polynomials, powers, [name for name, _ in named[::2]])


def stand_twice(polynomials: Sequence[Polynomial]) -> bool:
    """Whether some layers share their weights."""
    return len({id(p.weight) for p in polynomials}) < len(polynomials)


def _wanted(at: int) -> type[nn.Module]:
    return RectifiedMonomial if at % 2 else Polynomial


def alternating(network: nn.Module, caller: str) -> Layers:
    """The layers of a network P, σ, P, …, σ, P.

    Args:
        network: an `nn.Sequential`.
        caller: of the error message.

    Raises:
        ValueError: another module, or one layer in two places, which no group can move apart.
    """
    layers = taken_apart(network)
    if layers is not None and not stand_twice(layers.polynomials):
        return layers
    if not isinstance(network, nn.Sequential):
        raise ValueError(
            f"{caller}(network={type(network).__name__}): an nn.Sequential of Polynomial and "
            "RectifiedMonomial in turns was expected. Build one with waring.network, or with "
            "waring.from_relu from linear layers."
        )
    for at, (name, module) in enumerate(network._modules.items()):
        if not isinstance(module, _wanted(at)):
            raise ValueError(
                f"{caller}(network=…): module {name!r} is a {type(module).__name__}, where a "
                f"{_wanted(at).__name__} was expected, since the two alternate. Convert linear "
                "layers and activations with waring.from_relu or waring.from_activation."
            )
    polynomials = [m for m in network if isinstance(m, Polynomial)]
    raise ValueError(
        f"{caller}(network=…): {len(network)} modules came, {len(polynomials)} of them "
        f"polynomials, with {len({id(p.weight) for p in polynomials})} tensors of weights; a "
        "network that begins and ends with a Polynomial was expected, each with weights of its "
        "own. Append a Polynomial of degree 1, or copy the layer that stands twice."
    )


def assembled(network: nn.Sequential, polynomials: Sequence[nn.Module]) -> nn.Sequential:
    """The network with other layers in the even places, names and training mode kept."""
    rest = iter(polynomials)
    modules: OrderedDict[str, nn.Module] = OrderedDict()
    for name, module in network._modules.items():
        is_monomial = isinstance(module, RectifiedMonomial)
        modules[name] = RectifiedMonomial(module.power) if is_monomial else next(rest)
    return nn.Sequential(modules).train(network.training)

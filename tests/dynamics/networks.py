"""Networks whose loss is a function of U σ(V) only, and small ones on data."""

from collections.abc import Callable

import torch
from torch import nn

WIDE = torch.float64


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, generator: torch.Generator, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(*shape, generator=generator, dtype=WIDE)


def whitened(
    activation: nn.Module, inputs: int = 3, units: int = 4, outputs: int = 2, seed: int = 0
) -> nn.Sequential:
    """x ↦ U σ(V x) without biases, to be fed the identity."""
    model = nn.Sequential(
        nn.Linear(inputs, units, bias=False), activation, nn.Linear(units, outputs, bias=False)
    ).double()
    return drawn(model, seed, 0.7)


def drawn(model: nn.Module, seed: int, scale: float) -> nn.Module:
    """Normal parameters."""
    generator = seeded(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(generator=generator).mul_(scale)
    return model


def squared_error(targets: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda outputs: (outputs - targets).square().mean()


def on_data(
    model: nn.Module, seed: int = 0, examples: int = 8
) -> tuple[nn.Module, Callable[[torch.Tensor], torch.Tensor], tuple[torch.Tensor]]:
    """The model with normal parameters, a squared error, and inputs of size 3 for targets of 2."""
    generator = seeded(100 + seed)
    x = normal(examples, 3, generator=generator)
    return (
        drawn(model.double(), seed, 0.6),
        squared_error(normal(examples, 2, generator=generator)),
        (x,),
    )

"""Small networks of every kind that the protocol is tried on, with inputs and symmetries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paramsym import ParameterSymmetry, find_symmetry


@dataclass(frozen=True, eq=False)
class Served:
    """A network in float64 with an example input and its symmetry, inputs freed."""

    model: nn.Module
    example: Tensor | dict[str, Tensor]
    symmetry: ParameterSymmetry

    def outputs(self, inputs: Any = None) -> Any:
        given = self.example if inputs is None else inputs
        with torch.no_grad():
            return self.model(**given) if isinstance(given, Mapping) else self.model(given)


def mlp(activation: nn.Module, bias: bool = True) -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 8, bias), activation, nn.Linear(8, 7, bias), type(activation)(),
        nn.Linear(7, 3, bias),
    )  # fmt: skip


class ChannelNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 5, 3)
        self.norm, self.last = nn.BatchNorm2d(5), nn.Linear(5, 4)

    def forward(self, images: Tensor) -> Tensor:
        hidden = F.relu(self.first(images))
        return self.last(F.relu(self.norm(self.second(hidden))).mean((2, 3)))


class Swish(nn.Module):
    """σ in two calls within `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.inner(x)
        return self.outer(z * torch.sigmoid(z))


class OneModuleTwice(nn.Module):
    """An activation that is called in two places, so that hooks of it would turn both."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 7), nn.Linear(7, 3)
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.activation(self.b(self.activation(self.a(x)))))


class Block(nn.Module):
    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 12), nn.Linear(12, width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = batch, length, self.heads, width // self.heads
        q, k, v = (
            part.view(shape).transpose(1, 2) for part in self.qkv(self.before(x)).split(width, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 11, bias=False)

    def forward(self, inputs_embeds: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(inputs_embeds)))


class RootMeanSquare(nn.Module):
    """A transformer's block without attention whose inputs move in the frame of a gain."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(6)
        self.up, self.down, self.head = nn.Linear(6, 9), nn.Linear(9, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.down(F.relu(self.up(self.norm(x))))
        return self.head(x)


@cache
def served(name: str) -> Served:
    """One of `NAMES`, made anew in each process and shared within it."""
    with torch.random.fork_rng():
        torch.manual_seed(len(name))
        model, example, freed = _made(name)
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # gains and biases as after some training
            parameter += 0.05 * torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64
            )
    inputs = example if isinstance(example, dict) else (example,)
    return Served(model, example, find_symmetry(model, inputs, free_inputs=freed))


def _made(name: str) -> tuple[nn.Module, Any, Any]:
    flat = torch.randn(5, 6, dtype=torch.float64)
    activations = {
        "relu": nn.ReLU(), "gelu": nn.GELU(), "tanh": nn.Tanh(), "leaky": nn.LeakyReLU(),
        "relu-in-place": nn.ReLU(inplace=True), "prelu": nn.PReLU(),
    }  # fmt: skip
    if name in activations:
        return mlp(activations[name]), flat, True
    if name == "without-biases":
        return mlp(nn.ReLU(), bias=False), flat, True
    if name == "channels":
        return ChannelNet(), torch.randn(2, 3, 9, 9, dtype=torch.float64), {"images": 1}
    if name == "transformer":
        embedded = torch.randn(2, 5, 8, dtype=torch.float64)
        return Transformer(), {"inputs_embeds": embedded}, True
    models = {"swish": Swish, "one-module-twice": OneModuleTwice, "gain": RootMeanSquare}
    return models[name](), flat, True


NAMES = (
    "relu", "gelu", "tanh", "leaky", "relu-in-place", "prelu", "without-biases", "channels",
    "transformer", "swish", "one-module-twice", "gain",
)  # fmt: skip
# signs of tanh move already; the slope of a PReLU is a parameter, which no mask goes along with
MASKED = tuple(name for name in NAMES if name not in ("tanh", "prelu"))

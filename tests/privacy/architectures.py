"""Random architectures with data: another source of networks than what keys were built with."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

INPUTS, OUTPUTS, SAMPLES, WIDTH = 5, 3, 16, 8
ACTIVATIONS = [
    nn.ReLU(), nn.Tanh(), nn.GELU(), nn.LeakyReLU(0.1), nn.Sigmoid(), nn.SiLU(), nn.Identity(),
    nn.ELU(), nn.PReLU(),
]  # fmt: skip
NORMS: list[Callable[[int], nn.Module]] = [
    nn.LayerNorm,
    nn.RMSNorm,
    lambda n: nn.Identity(),
    lambda n: nn.LayerNorm(n, elementwise_affine=False),
]


@dataclass(frozen=True)
class Drawn:
    """A network of some kind, the shape of one sample, and the feature axis of its input."""

    kind: str
    model: nn.Module
    shape: tuple[int, ...]
    axes: dict[str, int]

    def data(self, seed: int, labels: bool) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(SAMPLES, *self.shape, generator=generator, dtype=torch.float64)
        if labels:
            return x, torch.randint(0, OUTPUTS, (SAMPLES,), generator=generator)
        return x, torch.randn(SAMPLES, OUTPUTS, generator=generator, dtype=torch.float64)


class Residual(nn.Module):
    def __init__(self, hidden: int, norm: nn.Module, activation: nn.Module):
        super().__init__()
        self.norm, self.activation = norm, activation
        self.up, self.down = nn.Linear(WIDTH, hidden), nn.Linear(hidden, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.activation(self.up(self.norm(x))))


class Gated(nn.Module):
    def __init__(self, hidden: int):
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.silu(self.gate(x)) * self.up(x))


class Attention(nn.Module):
    """Causal, with groups of heads that share keys and values."""

    def __init__(self, heads: int, shared: int, norm: nn.Module, size: int = 4):
        super().__init__()
        self.heads, self.shared, self.size, self.norm = heads, shared, size, norm
        self.query = nn.Linear(WIDTH, heads * size)
        self.key, self.value = (nn.Linear(WIDTH, shared * size) for _ in range(2))
        self.out = nn.Linear(heads * size, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        q, k, v = (
            layer(y).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        k, v = (part.repeat_interleave(self.heads // self.shared, 1) for part in (k, v))
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(found.transpose(1, 2).flatten(2))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(INPUTS, 6, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cells(x)[0]


class Last(nn.Module):
    """What a sequence model says of its last position."""

    def __init__(self, *layers: nn.Module):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)[:, -1]


def drawn(seed: int) -> Drawn:
    choose = random.Random(seed)
    torch.manual_seed(seed)
    kind = choose.choice([*_KINDS])
    made = _KINDS[kind](choose)
    return Drawn(kind, made[0].double().train(), *made[1:])


def _perceptron(choose: random.Random) -> tuple:
    sizes = [INPUTS] + [choose.choice([4, 6, 7]) for _ in range(choose.choice([1, 2, 3]))]
    layers: list[nn.Module] = []
    for before, after in zip(sizes, sizes[1:], strict=False):
        activation = copy.deepcopy(choose.choice(ACTIVATIONS))
        layers += [nn.Linear(before, after, bias=choose.random() < 0.8), activation]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], OUTPUTS)), (INPUTS,), {"input": -1}


def _residual(choose: random.Random) -> tuple:
    layers = [
        Residual(choose.choice([6, 9]), choose.choice(NORMS)(WIDTH), choose.choice(ACTIVATIONS))
        for _ in range(2)
    ]
    ends = nn.Linear(INPUTS, WIDTH), nn.Linear(WIDTH, OUTPUTS)
    norm = choose.choice(NORMS)(WIDTH)
    return nn.Sequential(ends[0], *layers, norm, ends[1]), (INPUTS,), {"input": -1}


def _sequence(choose: random.Random) -> tuple:
    norm = choose.choice(NORMS)
    layers: list[nn.Module] = [nn.Linear(INPUTS, WIDTH)]
    for _ in range(2):
        layers.append(Attention(*choose.choice([(2, 2), (4, 2), (3, 1)]), norm(WIDTH)))
        layers.append(choose.choice([Gated(7), Residual(7, norm(WIDTH), nn.GELU())]))
    return Last(*layers, norm(WIDTH), nn.Linear(WIDTH, OUTPUTS)), (6, INPUTS), {"x": -1}


def _recurrent(choose: random.Random) -> tuple:
    return Last(Recurrent(), nn.Linear(6, OUTPUTS)), (5, INPUTS), {"x": -1}


def _convolution(choose: random.Random, normed: bool = False) -> tuple:
    def norm(channels: int) -> nn.Module:
        if not normed:
            return nn.Identity()
        return choose.choice([nn.BatchNorm2d(channels), nn.GroupNorm(2, channels)])

    activation = choose.choice(ACTIVATIONS[:4])
    model = nn.Sequential(
        nn.Conv2d(INPUTS, 6, 3, padding=1), norm(6), activation,
        nn.Conv2d(6, WIDTH, 3, groups=choose.choice([1, 2])), norm(WIDTH), activation,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, OUTPUTS),
    )  # fmt: skip
    return model, (INPUTS, 6, 6), {"input": 1}


def _normed(choose: random.Random) -> tuple:
    return _convolution(choose, normed=True)


_KINDS = {
    "perceptron": _perceptron, "residual": _residual, "sequence": _sequence,
    "recurrent": _recurrent, "convolution": _convolution, "batch norm": _normed,
}  # fmt: skip

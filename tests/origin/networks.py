"""Perceptrons trained for a second on the digits of scikit-learn."""

from __future__ import annotations

from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

State = dict[str, Tensor]
SIZES = (64, 24, 24, 10)


def perceptron(seed: int, sizes: tuple[int, ...] = SIZES) -> nn.Sequential:
    torch.manual_seed(seed)
    pairs = zip(sizes, sizes[1:], strict=False)
    layers = [layer for a, b in pairs for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1]).double()


@cache
def _digits() -> tuple[Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    return torch.from_numpy(x / 16), torch.from_numpy(y).long()


def trained(model: nn.Module, steps: int, seed: int, other: bool = False) -> State:
    """Train a model in place, on other labels if asked for; a copy of its state."""
    x, y = _digits()
    generator = torch.Generator().manual_seed(seed)
    rule = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(steps):
        batch = torch.randint(0, len(x), (100,), generator=generator)
        rule.zero_grad()
        truth = 9 - y[batch] if other else y[batch]
        functional.cross_entropy(model(x[batch]), truth).backward()
        rule.step()
    return state(model)


def state(model: nn.Module) -> State:
    return {n: p.detach().clone() for n, p in model.state_dict().items()}


@cache
def independent(count: int) -> tuple[State, ...]:
    """Networks that were trained from seeds of their own, on the same images."""
    return tuple(trained(perceptron(seed), 300, 100 + seed) for seed in range(count))

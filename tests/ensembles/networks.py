"""Small trained classifiers of scikit-learn's digits, and random networks."""

from __future__ import annotations

from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

CLIP = (0.0, 1.0)
HIDDEN = 16


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Images in [0, 1] as (1797, 64), and their classes."""
    images, classes = load_digits(return_X_y=True)
    return torch.as_tensor(images).double() / 16, torch.as_tensor(classes).long()


@cache
def trained(activation: str = "LeakyReLU") -> nn.Sequential:
    """64-16-10, some 97 % right on what it was trained on."""
    x, y = digits()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, HIDDEN), getattr(nn, activation)(), nn.Linear(HIDDEN, 10)
    ).double()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def convolutional() -> nn.Sequential:
    """Convolution, pooling and two linear layers, for images of 8 × 8."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, HIDDEN),
        nn.LeakyReLU(), nn.Linear(HIDDEN, 10),
    ).double()  # fmt: skip


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def apart(one: Tensor, other: Tensor) -> float:
    """The largest difference, relative to the largest entry."""
    return float(((one - other).abs().max() / other.abs().max()).detach())

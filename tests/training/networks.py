"""Networks that the tests of training rebalance, at points far from balanced."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from paramsym import GroupElement, ParameterSymmetry, act, find_symmetry
from paramsym.geometry.costs import family_shapes, scaled_by, scales_of


class Squared(nn.Module):
    """Squared ReLU, of which a scale before it comes out squared."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x).square()


class Convolutional(nn.Module):
    """Convolutions with batch norms, and a linear layer on their means."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6)
        self.second, self.last = nn.Conv2d(6, 5, 3), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        return self.last(torch.relu(self.second(x)).mean((2, 3)))


class Transformer(nn.Module):
    """One layer of attention and a ReLU feedforward, between layer norms."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(x).mean(1))


def perceptron(activation: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(
        nn.Linear(7, 12), activation(), nn.Linear(12, 9), activation(), nn.Linear(9, 3)
    )


MADE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "relu": (lambda: perceptron(nn.ReLU), (7,)),
    "squared": (lambda: perceptron(Squared), (7,)),
    "linear": (lambda: perceptron(nn.Identity), (7,)),
    "convolutional": (Convolutional, (2, 8, 8)),
    "transformer": (Transformer, (5, 8)),
}


@cache
def made(name: str) -> tuple[nn.Module, ParameterSymmetry]:
    """A network in double precision, and its symmetry as it is trained."""
    build, shape = MADE[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build().double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model, find_symmetry(model, (inputs(shape),), training=True)


def inputs(shape: tuple[int, ...], seed: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(11, *shape, generator=generator, dtype=torch.float64)


class Run:
    """One training on fixed data, from a point far from balanced.

    Args:
        name: one of `MADE`.
        make: makes the optimiser of its parameters.
        scaled: seed of the random scales that it starts from; none with 0.
        dtype: of the numbers.
        named: whether the optimiser knows its parameters by name.
    """

    def __init__(
        self, name: str, make: Callable[[Any], torch.optim.Optimizer], scaled: int = 1,
        dtype: torch.dtype = torch.float64, named: bool = False,
    ) -> None:  # fmt: skip
        model, self.symmetry = made(name)
        self.model = copy.deepcopy(model)
        if scaled:
            self.model.load_state_dict(moved(self.symmetry, self.model.state_dict(), scaled))
        self.model.to(dtype)
        self.x = inputs(MADE[name][1]).to(dtype)
        self.targets = inputs((3,), 6).to(dtype)
        self.optimizer = make(self.model.named_parameters() if named else self.model.parameters())

    def state(self) -> dict[str, Tensor]:
        return {n: p.detach().clone() for n, p in self.model.state_dict().items()}

    def loss(self) -> Tensor:
        return nn.functional.mse_loss(self.model(self.x), self.targets)

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def output(self, training: bool = True) -> Tensor:
        """What the network computes, without a trace of it in the running statistics."""
        twin = copy.deepcopy(self.model).train(training)
        with torch.no_grad():
            return twin(self.x)


def scales(symmetry: ParameterSymmetry) -> list[str]:
    """The spaces with positive scales."""
    return [n for n, s in symmetry.spaces.items() if scales_of(s)]


def rescaling(symmetry: ParameterSymmetry, strength: float, seed: int) -> GroupElement:
    """Random positive scales and nothing else, log-normal."""
    generator = torch.Generator().manual_seed(seed)
    shapes = family_shapes(symmetry, scales(symmetry))
    return scaled_by(
        symmetry,
        {n: strength * torch.randn(s, generator=generator).double() for n, s in shapes.items()},
    )


def moved(symmetry: ParameterSymmetry, state: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    """Another point of the same orbit, by random scales."""
    return act(symmetry, rescaling(symmetry, 0.7, seed), state)

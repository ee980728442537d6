"""The networks of `training.py`, their data, and where their training starts.

Small enough that a run of three hundred steps takes under a second of one thread: the study is
about differences between methods, which need seeds more than size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from alignment_networks import Examples, State, digits, mnist, perceptron
from torch import Tensor, nn

from paramsym import ParameterSymmetry, act, find_symmetry
from paramsym.geometry.costs import scales_of

SPREAD = 1.0  # standard deviation of the logarithms of scales at a rescaled start


@dataclass(frozen=True)
class Case:
    """A network with its data.

    Attributes:
        make: the network at initial values, drawn from torch's own generator.
        train, test: inputs (examples, …) and classes (examples,).
        steps, batch: of every run.
        degree: d of the activation max(z, 0)^d between its layers; None where what stands between
            them is not of this kind, and ENorm has no meaning.
    """

    name: str
    make: Callable[[], nn.Sequential]
    train: Examples
    test: Examples
    steps: int = 300
    batch: int = 64
    degree: int | None = 1

    def network(self, seed: int) -> nn.Sequential:
        """At initial values of this seed; torch's own generator is left as it was."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.make()

    @cached_property
    def symmetry(self) -> ParameterSymmetry:
        """Of the network as it is trained.

        In evaluation a scale before a batch norm is undone by the running mean and the gain. In
        training the norm divides by the deviation of the batch, and the gain alone would remain.
        """
        return find_symmetry(self.network(0), (self.test[0][:4],), training=True)

    @cached_property
    def scales(self) -> list[str]:
        return [n for n, space in self.symmetry.spaces.items() if scales_of(space)]

    def rescaled(self, params: State, seed: int, spread: float = SPREAD) -> State:
        """Equivalent parameters with independent log-normal scales of all hidden units."""
        generator, logs = torch.Generator().manual_seed(seed), {}
        for name in self.scales:
            size = self.symmetry.spaces[name].size
            logs[name] = spread * torch.randn(size, generator=generator, dtype=torch.float64)
        element = self.symmetry.element({n: y.exp() for n, y in logs.items()})
        return act(self.symmetry, element, params)

    def started(self, seed: int, start: str) -> nn.Sequential:
        """The network at the usual initial values or, with start "rescaled", at equivalent ones."""
        model = self.network(seed)
        if start == "rescaled":
            model.load_state_dict(self.rescaled(dict(model.state_dict()), 1000 + seed))
        return model


_DIGITS = 0.23  # mean square of a pixel of the digits


class SquaredReLU(nn.Module):
    """z ↦ max(z, 0)²."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x).square()


def squared(*widths: int) -> nn.Sequential:
    """Linear layers with squared ReLU between them, of about unit variance before each.

    E max(z, 0)⁴ = 3/2 for a standard normal z, hence weights of variance 2/(3n) after the first
    layer. With torch's own initial values, 1/(3n), the signal dies out and SGD hardly moves.
    """
    layers = [SquaredReLU() if isinstance(m, nn.ReLU) else m for m in perceptron(*widths)]
    squares = _DIGITS
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=(layer.in_features * squares) ** -0.5)
            nn.init.zeros_(layer.bias)
            squares = 1.5
    return nn.Sequential(*layers)


def waring() -> nn.Sequential:
    """Sums of powers of affine forms with a rectified square between them."""
    from paramsym.waring import Polynomial, RectifiedMonomial

    return nn.Sequential(
        Polynomial(64, 24, degrees=(1, 2), power=2), RectifiedMonomial(2),
        Polynomial(24, 10, degrees=(1, 2)),
    )  # fmt: skip


def convolutional() -> nn.Sequential:
    """Convolution – batch norm – ReLU twice, a mean over the image, a linear layer."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip


WIDTHS = (64, 48, 48, 10)
NAMES = ("ReLU", "squared ReLU", "Waring", "CNN", "ReLU MNIST")


def case(name: str, data: Path) -> Case:
    """One of `NAMES`; MNIST is the file mnist.npz in the folder of data, in part."""
    if name == "ReLU MNIST":
        task = mnist(data / "mnist.npz", (784, 64, 64, 10))
        x, y, held, truth = (t[:10_000].clone() for t in (*task.train, *task.test))
        return Case(name, lambda: perceptron(784, 64, 64, 10), (x, y), (held[:5000], truth[:5000]))
    task = digits()
    make, degree = {
        "ReLU": (lambda: perceptron(*WIDTHS), 1),
        "squared ReLU": (lambda: squared(*WIDTHS), 2),
        "Waring": (waring, None),
        "CNN": (convolutional, 1),
    }[name]
    return Case(name, make, task.train, task.test, degree=degree)

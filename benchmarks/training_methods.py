"""What `training.py` compares: rebalancing along the orbit, ENorm and path-SGD, each by a hook.

A hook has `before`, called between the gradient and the step of the optimiser, and `after`, called
after it; `Rebalance` follows the optimiser by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from training_networks import Case

from paramsym import Rebalance


class Hook:
    """Does nothing: plain training."""

    def before(self) -> None: ...

    def after(self) -> None: ...


# -- ENorm ---------------------------------------------------------------------------------------


class Exchange(NamedTuple):
    """What enters the units between two layers, and what leaves them: parameters and the axis of
    the units in each."""

    into: list[tuple[Tensor, int]]
    out: list[tuple[Tensor, int]]


def exchanges(model: nn.Sequential) -> list[Exchange]:
    """One for every two consecutive layers; where a batch norm stands between them it is its gain
    and offset that enter the units."""
    found: list[Exchange] = []
    ahead: list[tuple[Tensor, int]] = []
    for layer in model:
        if isinstance(layer, nn.BatchNorm2d):
            ahead = [(layer.weight, 0), (layer.bias, 0)]
        elif isinstance(layer, nn.Linear | nn.Conv2d):
            if ahead:
                found.append(Exchange(ahead, [(layer.weight, 1)]))
            ahead = [(p, 0) for p in (layer.weight, layer.bias) if p is not None]
    return found


@dataclass
class ENorm(Hook):
    """One cycle of coordinate descent on the squared norm after each step.

    Every unit is multiplied by the s that minimises s²a + s^(−2d)b, a and b the squared norms of
    what enters and what leaves it and d the degree of the activation. Biases and the last layer
    take part. Momentum is moved by the dual, as in the paper; of Adam it says nothing, and its
    moments stay as they are.

    Source: Stock, Graham, Gribonval and Jégou, "Equi-normalization of neural networks" (2019).
    """

    pairs: list[Exchange]
    optimiser: torch.optim.Optimizer
    degree: int = 1

    @torch.no_grad()
    def after(self) -> None:
        d = self.degree
        for pair in self.pairs:
            a, b = (torch.stack([_squares(*each) for each in side]).sum(0) for side in pair)
            weighs = (a > 0) & (b > 0)
            s = torch.where(weighs, (d * b / a) ** (1 / (2 + 2 * d)), torch.ones_like(a))
            for side, scale in ((pair.into, s), (pair.out, s**-d)):
                for p, axis in side:
                    shape = [-1 if k == axis else 1 for k in range(p.ndim)]
                    p.mul_(scale.reshape(shape))
                    momentum = self.optimiser.state.get(p, {}).get("momentum_buffer")
                    if momentum is not None:
                        momentum.div_(scale.reshape(shape))


def _squares(p: Tensor, axis: int) -> Tensor:
    return p.square().movedim(axis, 0).reshape(p.shape[axis], -1).sum(1)


# -- path-SGD ------------------------------------------------------------------------------------


@dataclass
class PathSGD(Hook):
    """Gradients of a ReLU perceptron divided by γ, so that a step of SGD is one of path-SGD.

    γ of an edge is the sum over all paths through it of the product of the squares of the other
    weights. The update commutes with rescaling of the units. A bias is an edge from a constant.

    Source: Neyshabur, Salakhutdinov and Srebro, "Path-SGD" (2015), equations 8 to 10, p = 2.
    """

    model: nn.Sequential

    @torch.no_grad()
    def before(self) -> None:
        layers = [m for m in self.model if isinstance(m, nn.Linear)]
        into = [layers[0].weight.new_ones(layers[0].in_features)]
        for layer in layers[:-1]:
            into.append(layer.weight.square() @ into[-1] + layer.bias.square())
        out = layers[-1].weight.new_ones(layers[-1].out_features)
        for layer, sources in zip(reversed(layers), reversed(into), strict=True):
            for p, size in ((layer.weight, torch.outer(out, sources)), (layer.bias, out)):
                if p.grad is not None:  # edges on no path have no gradient either
                    p.grad.div_(torch.where(size > 0, size, torch.ones_like(size)))
            out = layer.weight.square().mT @ out


# -- by name -------------------------------------------------------------------------------------

OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": torch.optim.SGD,
    "momentum": lambda params, lr: torch.optim.SGD(params, lr, momentum=0.9),
    "Adam": torch.optim.Adam,
}
PLAIN, ENORM, PATH = "plain", "ENorm", "path-SGD"
EVERY = {f"every {n}": n for n in (1, 10, 100)}
METHODS = (PLAIN, ENORM, *EVERY, PATH)


def applies(method: str, case: Case, optimiser: str) -> bool:
    """Whether a method is defined: ENorm for powers of ReLU between layers, path-SGD as a step of
    its own and for ReLU perceptrons alone."""
    if method == ENORM:
        return case.degree is not None
    if method == PATH:
        return optimiser == "SGD" and case.name.startswith("ReLU")
    return True


def hook(method: str, case: Case, model: nn.Sequential, optimiser: torch.optim.Optimizer) -> Hook:
    """The hook of a method for one run."""
    if method in EVERY:
        Rebalance(case.symmetry, optimiser, EVERY[method], model=model)
        return Hook()  # it follows the optimiser by itself
    if method == ENORM:
        return ENorm(exchanges(model), optimiser, case.degree or 1)
    return PathSGD(model) if method == PATH else Hook()

"""The action as a multilayer perceptron: (g, θ, X, Y) ↦ θ′."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from .problem import Problem, Samples

HIDDEN = (64, 64, 64)


class ActionNetwork(nn.Module):
    """a_X(g, θ) by an MLP of the entries of g, θ, X and Y, with no axiom built in.

    The function between its layers is smooth, since the terms differentiate the network twice.

    Args:
        problem: what the parameters belong to.
        size: n, of the n × n matrices g.
        generator: of the initial weights, uniform in ±1/√(fan in).
        hidden: widths of the hidden layers.

    Source: "Finding symmetry in neural network parameter spaces", section 5.3: hidden dimensions
    64, 64, 64. The activation and the initial weights are not told there; these are tanh and
    PyTorch's.
    """

    def __init__(
        self,
        problem: Problem,
        size: int,
        generator: torch.Generator,
        hidden: Sequence[int] = HIDDEN,
    ) -> None:
        super().__init__()
        widths = [size**2 + problem.size + problem.data_size, *hidden, problem.size]
        self.layers = nn.ParameterList()  # (fan in + 1, fan out), biases as last rows
        for into, out in pairwise(widths):
            drawn = torch.rand(into + 1, out, generator=generator, dtype=torch.float64)
            self.layers.append(nn.Parameter(((2 * drawn - 1) / into**0.5).float()))

    def forward(self, g: torch.Tensor, theta: torch.Tensor, samples: Samples) -> torch.Tensor:
        """θ′, (B, P), of g, (B, n, n), θ, (B, P), and the data of the samples."""
        # A sum with a bias that has no tangent takes PyTorch's slow forward derivative; a column of
        # ones does not, and the whole step is twice as fast.
        one = theta.new_ones(len(theta), 1)
        carried = torch.cat([g.flatten(1), theta, samples.data(), one], 1)
        *inner, last = self.layers
        for layer in inner:
            carried = torch.cat([torch.tanh(carried @ layer), one], 1)
        return carried @ last

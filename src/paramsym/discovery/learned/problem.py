"""A network whose parameter symmetries are to be learned: its function, its tensors, its samples.

Everything is batched: B samples, each with parameters θ of its own as a vector of P numbers, and
with data of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod

import torch

Params = dict[str, torch.Tensor]
Shape = tuple[int, ...]

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "identity": lambda z: z,
    "relu": torch.relu,
    "leaky_relu": torch.nn.functional.leaky_relu,
    "square": torch.square,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
_DEGREES = {"relu": 1, "leaky_relu": 1, "square": 2}  # σ(αz) = α^c σ(z) for α > 0


@dataclass(frozen=True)
class Samples:
    """Points (θ, X, Y) at which the terms of an objective are averaged.

    Args:
        parameters: θ, (B, P).
        inputs: X, (B, n, k), one datum per column.
        targets: Y, (B, m, k).
    """

    parameters: torch.Tensor
    inputs: torch.Tensor
    targets: torch.Tensor

    def __len__(self) -> int:
        return len(self.parameters)

    def __getitem__(self, rows: torch.Tensor | slice) -> Samples:
        return Samples(self.parameters[rows], self.inputs[rows], self.targets[rows])

    def repeated(self, times: int) -> Samples:
        """The same samples several times over, (times·B, …)."""
        return Samples(*(torch.cat([t] * times) for t in self._parts()))

    def data(self) -> torch.Tensor:
        """X and Y of every sample as one vector, (B, (n + m)k)."""
        return torch.cat([self.inputs.flatten(1), self.targets.flatten(1)], 1)

    def at(self, parameters: torch.Tensor) -> Samples:
        """The same data with other parameters."""
        return Samples(parameters, self.inputs, self.targets)

    def _parts(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.parameters, self.inputs, self.targets


@dataclass(frozen=True)
class Problem:
    """The loss L(θ, X, Y) = ‖F(θ, X) − Y‖², one number per datum, that an action is to leave alone.

    Args:
        shapes: the tensors of θ in their order, with their shapes.
        function: F, from tensors (B, *shape) and inputs (B, n, k) to outputs (B, m, k).
        inputs: (n, k), of X: k data of n numbers.
        outputs: (m, k), of Y.
        known: matrices M, (q, P, P), with symmetries θ ↦ exp(tM)θ of F for all X; none
            where it is None or empty.

    Source: "Finding symmetry in neural network parameter spaces", section 5.3.
    """

    shapes: Mapping[str, Shape]
    function: Callable[[Params, torch.Tensor], torch.Tensor]
    inputs: Shape
    outputs: Shape
    known: torch.Tensor | None = field(default=None, compare=False)

    @property
    def size(self) -> int:
        """P, the number of parameters."""
        return sum(prod(shape) for shape in self.shapes.values())

    @property
    def data_size(self) -> int:
        """How many numbers X and Y of one sample have together."""
        return prod(self.inputs) + prod(self.outputs)

    def parts(self, parameters: torch.Tensor) -> Params:
        """θ by name, (B, *shape) each, from vectors (B, P)."""
        pieces = parameters.split([prod(shape) for shape in self.shapes.values()], 1)
        return {
            name: piece.reshape(-1, *shape)
            for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }

    def flat(self, params: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Vectors (B, P) from tensors (B, *shape)."""
        return torch.cat([params[name].reshape(len(params[name]), -1) for name in self.shapes], 1)

    def outputs_at(self, samples: Samples) -> torch.Tensor:
        """F(θ, X), (B, m, k)."""
        return self.function(self.parts(samples.parameters), samples.inputs)

    def loss(self, samples: Samples) -> torch.Tensor:
        """‖F(θ, x) − y‖² of each datum, (B, k)."""
        return (self.outputs_at(samples) - samples.targets).square().sum(1)

    def draw(self, count: int, generator: torch.Generator, dtype: torch.dtype) -> Samples:
        """Fresh samples, every number of θ, X and Y standard normal."""
        shapes = [(self.size,), self.inputs, self.outputs]
        return Samples(
            *(torch.randn(count, *s, generator=generator, dtype=torch.float64).to(dtype)
              for s in shapes)
        )  # fmt: skip


def layered(widths: Sequence[int], activation: str = "identity", data: int = 1) -> Problem:
    """The network W_L σ(… σ(W₁X)) without biases as a problem, with its known symmetries.

    Between two layers with a linear σ these are gl(h): W ↦ gW, U ↦ Ug⁻¹. With a homogeneous one,
    σ(αz) = α^c σ(z), they are the h rescalings (α, α^{−c}). Otherwise none is known.

    Args:
        widths: n, h₁, …, m.
        activation: the name of σ, one of `ACTIVATIONS`.
        data: k, the number of data per sample.

    Returns:
        The problem; its tensors are called W1, W2, …

    Raises:
        ValueError: fewer than three widths, one that is not positive, or an unknown σ.

    Source: "Finding symmetry in neural network parameter spaces", sections 5.3 and 5.4.
    """
    here = f"layered(widths={list(widths)}, activation={activation!r}, data={data})"
    if len(widths) < 3 or min(widths) < 1 or data < 1:
        raise ValueError(
            f"{here}: at least three positive widths and at least one datum were expected, for a "
            "network with a hidden layer. Pass for example layered([1, 1, 1])."
        )
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"{here}: the activation was expected to be one of {sorted(ACTIVATIONS)}. Pass one of "
            "them, or build a Problem around a function of your own."
        )
    sigma = ACTIVATIONS[activation]
    shapes = {f"W{i + 1}": (out, into) for i, (into, out) in enumerate(pairwise(widths))}

    def function(params: Params, inputs: torch.Tensor) -> torch.Tensor:
        first, *others = (params[name] for name in shapes)
        carried = first @ inputs  # (B, h, k)
        for weight in others:
            carried = weight @ sigma(carried)
        return carried

    problem = Problem(shapes, function, (widths[0], data), (widths[-1], data))
    return Problem(
        shapes, function, problem.inputs, problem.outputs, _known(problem, activation, widths)
    )


def _known(problem: Problem, activation: str, widths: Sequence[int]) -> torch.Tensor:
    """M of each symmetry that a layered network is known for, (q, P, P)."""
    unit = torch.eye(problem.size, dtype=torch.float64)
    found = []
    for layer, width in enumerate(widths[1:-1], 1):
        if activation == "identity":
            pairs = [(i, j, 1.0) for i in range(width) for j in range(width)]
        elif activation in _DEGREES:
            pairs = [(i, i, float(_DEGREES[activation])) for i in range(width)]
        else:
            pairs = []
        found += [_changed(problem, unit, layer, *pair) for pair in pairs]
    return torch.stack(found) if found else unit.new_zeros(0, problem.size, problem.size)


def _changed(
    problem: Problem, unit: torch.Tensor, layer: int, row: int, column: int, degree: float
) -> torch.Tensor:
    """The matrix of W ↦ EW, U ↦ −cUE with E = e_row e_columnᵀ; its columns are moved unit ones."""
    params = problem.parts(unit)
    before, after = params[f"W{layer}"], params[f"W{layer + 1}"]
    moved = {name: torch.zeros_like(tensor) for name, tensor in params.items()}
    moved[f"W{layer}"][:, row, :] = before[:, column, :]
    moved[f"W{layer + 1}"][:, :, column] = -degree * after[:, :, row]
    return problem.flat(moved).T.contiguous()

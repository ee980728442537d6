"""What teleportation ascends: a number at every point of parameter space, with its derivative.

Each costs one pass forwards and derivatives of a derivative in reverse; no Hessian is formed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from paramsym.dynamics.loss import ModelLoss, NotFinite, State

Tensors = Sequence[torch.Tensor]
_ITERATIONS = 20  # of the power method, whose start is the last eigenvector


@dataclass(frozen=True)
class Evaluation:
    """An objective at one point, its derivative by the parameters, and what was met on the way."""

    value: float
    derivative: dict[str, torch.Tensor]
    loss: float
    gradient_norm: float


class Objective:
    """θ ↦ an objective of the loss, over the parameters that are trained.

    Args:
        loss: it is evaluated in its mode and precision; fused attention, which has no second
            derivative, by its plain formula.
        objective: one of `OBJECTIVES`.
        generator: source of the vector from which the power method starts.
    """

    def __init__(self, loss: ModelLoss, objective: str, generator: torch.Generator):
        self.loss, self.generator = loss, generator
        self.names = [n for n, p in loss.own.items() if p.requires_grad]
        self._of = OBJECTIVES[objective]
        self.vector: list[torch.Tensor] = []  # the last eigenvector

    def at(self, state: State) -> Evaluation:
        """The objective at some parameters and buffers.

        Raises:
            NotFinite: the loss or the objective is no finite number, as where gradients vanish.
            ValueError: autograd sees no way to the parameters.
        """
        leaves = {n: state[n].detach().clone().requires_grad_() for n in self.names}
        points = [*leaves.values()]
        with sdpa_kernel(SDPBackend.MATH), self.loss.running():
            value = self.loss.at({**state, **leaves}).value
            self.loss.require_way(value)
            slopes = derivative(value, points)
            objective = self._of(self, slopes, points)
            found = derivative(objective, points, keep=False)
        if not all(bool(x.isfinite().all()) for x in (objective, *found)):
            raise NotFinite(
                f"{self.loss.caller}(loss_fn=…): at a loss of {float(value.detach()):.3g} the "
                "gradient vanishes or overflows, and one with a finite, positive norm was "
                "expected: nothing says where it would be larger. Teleport before training ends."
            )
        square = sum(float(s.detach().abs().square().sum()) for s in slopes)
        return Evaluation(
            float(objective.detach()), dict(zip(self.names, found, strict=True)),
            float(value.detach()), square**0.5,
        )  # fmt: skip

    def steepness(self, slopes: Tensors, points: Tensors) -> torch.Tensor:
        """log ‖∇L‖²."""
        return torch.stack([s.abs().square().sum() for s in slopes]).sum().log()

    def flatness(self, slopes: Tensors, points: Tensors) -> torch.Tensor:
        """−λ, the largest eigenvalue of the Hessian, at an eigenvector that is held.

        The derivative of vᵀHv by the parameters is then that of λ (Hellmann and Feynman). Where the
        eigenvalue of largest modulus is negative, the method goes on with H − λ.
        """
        if not self.vector:
            self.vector = [
                torch.randn(p.shape, generator=self.generator, dtype=torch.float64).to(p)
                for p in points
            ]
        below = 0.0
        for _ in range(2):
            value = self._power(slopes, points, below)
            if value > 0:
                break
            below = value
        turned = derivative(slopes, points, self.vector)
        return -_dot(self.vector, turned)

    def _power(self, slopes: Tensors, points: Tensors, below: float) -> float:
        """The eigenvalue of H − `below` of largest modulus, plus `below`; keeps its vector."""
        value = 0.0
        for _ in range(_ITERATIONS):
            size = float(_dot(self.vector, self.vector).sqrt()) or 1.0
            self.vector = [v / size for v in self.vector]
            turned = [x.detach() for x in derivative(slopes, points, self.vector)]
            value = float(_dot(self.vector, turned))
            self.vector = [x - below * v for x, v in zip(turned, self.vector, strict=True)]
        size = float(_dot(self.vector, self.vector).sqrt()) or 1.0
        self.vector = [v / size for v in self.vector]
        return value


OBJECTIVES: dict[str, Callable[[Objective, Tensors, Tensors], torch.Tensor]] = {
    "gradient": Objective.steepness,
    "sharpness": Objective.flatness,
}


def derivative(
    of: torch.Tensor | Tensors,
    points: Tensors,
    along: Tensors | None = None,
    keep: bool = True,
) -> list[torch.Tensor]:
    """Derivatives of one tensor, or of several contracted with `along`; zero where there is no way.

    They can be differentiated again, unless `keep` is false.
    """
    several = [of] if isinstance(of, torch.Tensor) else [*of]
    pairs = [(o, None if along is None else along[k]) for k, o in enumerate(several)]
    pairs = [(o, a) for o, a in pairs if o.requires_grad]  # a gradient may be a constant
    if not pairs:
        return [torch.zeros_like(p) for p in points]
    outputs, weights = zip(*pairs, strict=True)
    found = torch.autograd.grad(
        outputs, points, None if along is None else weights,
        create_graph=keep, allow_unused=True,
    )  # fmt: skip
    return [torch.zeros_like(p) if x is None else x for x, p in zip(found, points, strict=True)]


def _dot(one: Tensors, other: Tensors) -> torch.Tensor:
    return torch.stack([(x.conj() * y).real.sum() for x, y in zip(one, other, strict=True)]).sum()

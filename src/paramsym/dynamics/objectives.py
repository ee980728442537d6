"""What teleportation ascends: a number at every point of parameter space, with its derivative.

Each costs one pass forwards and derivatives of a derivative in reverse; no Hessian is formed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from paramsym.dynamics.loss import ModelLoss, NotFinite, State

Tensors = Sequence[torch.Tensor]
_ITERATIONS = 20  # products with the Hessian
_ROUNDINGS = 1e3  # what of a direction is no rounding


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
        generator: source of the vectors from which the largest eigenvalue is looked for.
    """

    def __init__(self, loss: ModelLoss, objective: str, generator: torch.Generator):
        self.loss, self.generator = loss, generator
        self.names = [n for n, p in loss.own.items() if p.requires_grad]
        if not self.names:
            raise ValueError(
                f"{loss.caller}(model={type(loss.model).__name__}): all {len(loss.own)} parameters "
                "have requires_grad=False, and some that are trained were expected. Unfreeze what "
                "is to move."
            )
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

        The derivative of vᵀHv by the parameters is then that of λ (Hellmann and Feynman).
        """
        self._lead(slopes, points)
        return -_dot(self.vector, derivative(slopes, points, self.vector))

    def _lead(self, slopes: Tensors, points: Tensors) -> None:
        """Turn the vector towards the largest eigenvalue, from the last one and a random one.

        Locally optimal conjugate gradients: the best of all combinations of the vector, its
        residual and its last change (Knyazev, "Toward the optimal preconditioned eigensolver",
        2001). A product with the Hessian is all that an iteration costs, as in the power method,
        which is slow where eigenvalues crowd or one of them is as large and negative. Without the
        random vector an eigenvalue that another one has overtaken would keep the lead.
        """

        def turned(vector: Tensors) -> list[torch.Tensor]:
            return derivative(slopes, points, vector, keep=False)

        chance = [
            torch.randn(p.shape, generator=self.generator, dtype=torch.float64).to(p)
            for p in points
        ]
        basis = [self.vector, chance] if self.vector else [chance]
        images = [turned(each) for each in basis]
        for _ in range(_ITERATIONS):
            weights, value = _best(basis, images)
            changes = [0.0, *weights[1:]]
            change, its_image = _combined(changes, basis), _combined(changes, images)
            vector, image = _combined(weights, basis), _combined(weights, images)
            residual = _combined([1.0, -value], [image, vector])
            basis = [vector, residual, change]
            images = [image, turned(residual), its_image]
        self.vector = _combined(_best(basis, images)[0], basis)


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
        retain_graph=True, create_graph=keep, allow_unused=True,
    )  # fmt: skip
    return [torch.zeros_like(p) if x is None else x for x, p in zip(found, points, strict=True)]


def _dot(one: Tensors, other: Tensors) -> torch.Tensor:
    return torch.stack([(x.conj() * y).real.sum() for x, y in zip(one, other, strict=True)]).sum()


def _combined(weights: Sequence[float], vectors: Sequence[Tensors]) -> list[torch.Tensor]:
    return [
        torch.stack([w * x for w, x in zip(weights, each, strict=True)]).sum(0)
        for each in zip(*vectors, strict=True)
    ]


def _best(basis: Sequence[Tensors], images: Sequence[Tensors]) -> tuple[list[float], float]:
    """The unit vector in a span whose Rayleigh quotient is largest (Rayleigh and Ritz).

    Directions of the span that are nothing but rounding are left out.
    """
    gram, form = (
        torch.tensor([[float(_dot(x, y)) for y in others] for x in basis], dtype=torch.float64)
        for others in (basis, images)
    )
    if not bool((gram + form).isfinite().all()):
        return [math.nan] * len(basis), math.nan
    sizes = gram.diagonal().sqrt()
    sizes = torch.where(sizes > 0, sizes, 1.0)
    outer = sizes[:, None] * sizes
    lengths, axes = torch.linalg.eigh(gram / outer)
    kept = lengths > _ROUNDINGS * torch.finfo(basis[0][0].dtype).eps
    axes = axes[:, kept] / lengths[kept].sqrt()
    values, turns = torch.linalg.eigh(axes.T @ ((form + form.T) / 2 / outer) @ axes)
    return ((axes @ turns[:, -1]) / sizes).tolist(), float(values[-1])

"""The vector fields of an action, by forward-mode derivatives: what the terms are made of.

The field of h ∈ gl(n) is ξ_h(θ) = D_g a_X|_{I,θ}(h), the velocity of a_X(exp(th), θ) at t = 0.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.autograd import forward_ad
from torch.func import jvp

from .problem import Problem, Samples

# a_X(g, θ), batched: g (B, n, n), θ (B, P), the data of the samples ↦ θ′ (B, P). Rows are
# independent of one another.
BatchedAction = Callable[[torch.Tensor, torch.Tensor, Samples], torch.Tensor]


def matrix_action(g: torch.Tensor, theta: torch.Tensor, samples: Samples) -> torch.Tensor:
    """a(g, θ) = gθ with n = P: exact wherever the generators are known matrices."""
    return (g @ theta[:, :, None])[:, :, 0]


def pushed(
    function: Callable[[torch.Tensor], torch.Tensor], point: torch.Tensor, direction: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """f(p) and Df(p)·v by dual numbers: `torch.func.jvp` without its layers.

    It does not nest, so derivatives of derivatives go through `torch.func`.
    """
    with forward_ad.dual_level():
        value, slope = forward_ad.unpack_dual(function(forward_ad.make_dual(point, direction)))
        return value, torch.zeros_like(value) if slope is None else slope


Push = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def _nested(
    function: Callable[[torch.Tensor], torch.Tensor], point: torch.Tensor, direction: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same where another derivative is taken around it."""
    found = jvp(function, (point,), (direction,))
    return found[0], found[1]


class Fields:
    """ξ_h of k generators at B samples, and their derivatives; the fields are evaluated once.

    Args:
        action: a_X.
        generators: h, (k, n, n).
        problem: what the loss is.
        samples: B of them.
    """

    def __init__(
        self,
        action: BatchedAction,
        generators: torch.Tensor,
        problem: Problem,
        samples: Samples,
    ) -> None:
        self.action, self.generators = action, generators
        self.problem, self.samples = problem, samples
        self.count, self.n = len(generators), generators.shape[-1]
        self.many = samples.repeated(self.count)  # (k·B), generators outside
        at_identity, velocity = self.along(self.many.parameters, self._spread(generators))
        self.at_identity = at_identity[: len(samples)]  # a(I, θ), (B, P)
        self.velocity = velocity.view(self.count, len(samples), -1)  # (k, B, P)

    def along(
        self,
        theta: torch.Tensor,
        h: torch.Tensor,
        samples: Samples | None = None,
        push: Push = pushed,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """a(I, θ) and ξ_h(θ), one h per row."""
        data = self.many if samples is None else samples
        unit = torch.eye(self.n, dtype=theta.dtype).repeat(len(h), 1, 1)
        return push(lambda g: self.action(g, theta, data), unit, h)

    def loss_slope(self) -> torch.Tensor:
        """D_θL(ξ_h), (k, B, data)."""
        theta, direction = self.many.parameters, self.velocity.flatten(0, 1)
        outputs, slope = pushed(
            lambda p: self.problem.outputs_at(self.many.at(p)), theta, direction
        )
        return 2 * ((outputs - self.many.targets) * slope).sum(1).view(
            self.count, len(self.samples), -1)  # fmt: skip

    def derivative(self) -> torch.Tensor:
        """Dξ_j·ξ_i at [i, j], (k, k, B, P): how the field of h_j changes along that of h_i."""
        k, size = self.count, len(self.samples)
        data = self.samples.repeated(k * k)
        direction = self.velocity.repeat_interleave(k, 0).flatten(0, 1)  # i outside
        h = self._spread(self.generators.repeat(k, 1, 1))
        _, changed = _nested(
            lambda p: self.along(p, h, data, _nested)[1], data.parameters, direction
        )
        return changed.view(k, k, size, -1)

    def of_matrices(self, matrices: torch.Tensor) -> torch.Tensor:
        """ξ of other matrices, (q, n, n), as (q, B, P)."""
        data = self.samples.repeated(len(matrices))
        _, found = self.along(data.parameters, self._spread(matrices), data)
        return found.view(len(matrices), len(self.samples), -1)

    def second(self) -> torch.Tensor:
        """D²_g a(h_j, h_i) at [i, j], (k, k, B, P), at the identity."""
        k, size = self.count, len(self.samples)
        data = self.samples.repeated(k * k)
        first = self._spread(self.generators.repeat_interleave(k, 0))
        other = self._spread(self.generators.repeat(k, 1, 1))
        unit = torch.eye(self.n, dtype=first.dtype).repeat(len(first), 1, 1)

        def slope(g: torch.Tensor) -> torch.Tensor:
            return _nested(lambda q: self.action(q, data.parameters, data), g, other)[1]

        return _nested(slope, unit, first)[1].view(k, k, size, -1)

    def brackets(self) -> torch.Tensor:
        """[h_i, h_j] at [i, j], (k, k, n, n)."""
        left, right = self.generators[:, None], self.generators[None]
        return left @ right - right @ left

    def _spread(self, matrices: torch.Tensor) -> torch.Tensor:
        """Each matrix once per sample, (q·B, n, n)."""
        return matrices.repeat_interleave(len(self.samples), 0)

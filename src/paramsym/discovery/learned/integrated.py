"""The alternative with finite group elements: exponentials in place of derivatives."""

from __future__ import annotations

import torch

from .fields import BatchedAction
from .problem import Problem, Samples


def _elements(generators: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
    """exp(t h), one t per sample, (k·B, n, n)."""
    return torch.linalg.matrix_exp(generators[:, None] * times[None, :, None, None]).flatten(0, 1)


def integrated(
    action: BatchedAction,
    generators: torch.Tensor,
    problem: Problem,
    samples: Samples,
    times: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """Invariance and associativity at exp(th), and the identity.

    - invariance: Σ_h E ‖L(a_X(exp(th), θ), X) − L(θ, X)‖
    - identity: E ‖a_X(I, θ) − θ‖
    - associativity: Σ_{h₁,h₂} E ‖a_X(exp h₂, a_X(exp h₁, θ)) − a_X(exp(h₂)exp(h₁), θ)‖

    All three are zero on every symmetry.

    Args:
        action: a_X.
        generators: h, (k, n, n).
        problem: what the loss is.
        samples: B of them.
        times: t, (B,); the paper does not say of which distribution.

    Source: "Finding symmetry in neural network parameter spaces", A.3. There the data of the outer
    action is written exp(h₁)X, which has no meaning where g acts on parameters; X is taken.
    """
    k, size, n = len(generators), len(samples), generators.shape[-1]
    many = samples.repeated(k)
    moved = action(_elements(generators, times), many.parameters, many)
    changed = (problem.loss(many.at(moved)) - problem.loss(many)).norm(dim=-1)
    unit = torch.eye(n, dtype=generators.dtype).expand(size, n, n)
    start = action(unit, samples.parameters, samples)
    elements = torch.linalg.matrix_exp(generators)
    first = elements.repeat_interleave(size, 0)
    once = action(first, many.parameters, many)  # (k·B, P), the h₁
    data = samples.repeated(k * k)
    second = elements.repeat(k, 1, 1).repeat_interleave(size, 0)  # h₂ within each h₁
    twice = action(second, once.view(k, 1, size, -1).expand(k, k, size, -1).reshape(
        k * k * size, -1), data)  # fmt: skip
    inner = elements.repeat_interleave(k, 0).repeat_interleave(size, 0)
    at_once = action(second @ inner, data.parameters, data)
    return {
        "invariance": changed.view(k, size).mean(1).sum(),
        "identity": (start - samples.parameters).norm(dim=-1).mean(),
        "associativity": (twice - at_once).norm(dim=-1).view(k * k, size).mean(1).sum(),
    }

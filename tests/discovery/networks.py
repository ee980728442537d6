"""Networks whose linear symmetries are known, and what they are counted by."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from paramsym.discovery import LinearSymmetries
from paramsym.discovery.linear.constraints import Constraints
from paramsym.discovery.linear.linear_symmetries import LEVELS
from paramsym.discovery.linear.sampling import Sampler


class Apply(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def perceptron(
    sizes: tuple[int, int, int], function: Callable[[Tensor], Tensor], bias: bool = False
) -> nn.Sequential:
    """Two linear maps with a function between."""
    first, hidden, last = sizes
    return nn.Sequential(
        nn.Linear(first, hidden, bias=bias), Apply(function), nn.Linear(hidden, last, bias=bias)
    )


class Branches(nn.Module):
    """W₂σ(W₁x) + V₂σ(V₁x)."""

    def __init__(self, widths: tuple[int, int], function: Callable[[Tensor], Tensor]):
        super().__init__()
        one, other = widths
        self.w1, self.w2 = nn.Linear(3, one, bias=False), nn.Linear(one, 3, bias=False)
        self.v1, self.v2 = nn.Linear(3, other, bias=False), nn.Linear(other, 3, bias=False)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(self.function(self.w1(x))) + self.v2(self.function(self.v1(x)))


class Tokens(nn.Module):
    """An embedding, read by a linear map, times a number by keyword; a dict comes back."""

    def __init__(self, padding: int | None = None):
        super().__init__()
        self.table = nn.Embedding(5, 3, padding_idx=padding)
        self.map = nn.Linear(3, 2, bias=False)

    def forward(self, ids: Tensor, *, scale: Tensor) -> dict[str, Tensor]:
        return {"logits": self.map(self.table(ids)) * scale}


class Attention(nn.Module):
    """One head; the bias of the keys adds the same to all scores of a query."""

    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(3, 2, bias=False), nn.Linear(3, 2)
        self.v, self.o = nn.Linear(3, 2, bias=False), nn.Linear(2, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        scores = (self.q(x) @ self.k(x).mT).softmax(-1)
        return self.o(scores @ self.v(x))


def identity(x: Tensor) -> Tensor:
    return x


def leaky(x: Tensor) -> Tensor:
    return nn.functional.leaky_relu(x, 0.1)


def example(width: int) -> tuple[Tensor]:
    """One input, of which the shape alone counts."""
    return (torch.linspace(-1, 1, width)[None],)


def sampled(model: nn.Module, level: str, seed: int = 1) -> Constraints:
    """Constraints of a level, none of which is drawn yet."""
    generator = torch.Generator().manual_seed(seed)
    width = next(p for p in model.parameters()).shape[1]
    sampler = Sampler(model, example(width), None, False, generator, torch.float64, True)
    sampler.measure()
    return Constraints(sampler, LEVELS[level](sampler.shapes, False), generator)


def dense(found: LinearSymmetries) -> Tensor:
    """Generators as rows of flattened matrices, (generators, P²)."""
    return torch.stack([g.dense(found.shapes)[0].flatten() for g in found.generators])


def require_finite_symmetries(model: nn.Module, found: LinearSymmetries) -> None:
    """exp(M) θ computes the same function, for random combinations of the generators."""
    generator = torch.Generator().manual_seed(5)
    params = {
        n: torch.randn(p.shape, generator=generator, dtype=torch.float64)
        for n, p in model.named_parameters()
    }
    theta = torch.cat([params[n].flatten() for n in found.shapes])
    weights = torch.randn(found.dimension, generator=generator, dtype=torch.float64)
    field = sum(
        w * g.dense(found.shapes)[0] for w, g in zip(weights, found.generators, strict=True)
    )
    assert isinstance(field, Tensor)
    moved = torch.linalg.matrix_exp(field / field.norm()) @ theta
    parts = moved.split([params[n].numel() for n in found.shapes])
    others = {n: part.reshape(params[n].shape) for n, part in zip(found.shapes, parts, strict=True)}
    x = torch.randn(20, next(iter(params.values())).shape[1], generator=generator).double()
    before, after = (functional_call(model.double(), {**params, **p}, (x,)) for p in ({}, others))
    assert float((moved - theta).norm() / theta.norm()) > 0.01
    assert float((after - before).abs().max() / before.abs().max()) < 1e-12

"""Random networks of the class, and slow ways to say what they compute."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor, nn

from paramsym.waring import Polynomial, RectifiedMonomial
from paramsym.waring.terms import Kind

POWERS = (0.5, 1, 1.5, 2)


def generator_of(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def whole(generator: torch.Generator, low: int, high: int) -> int:
    """A whole number from low to high, both included."""
    return int(torch.randint(low, high + 1, (), generator=generator))


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def layer_of(
    inner: int, kinds: list[list[Kind]], generator: torch.Generator, power: float | None = None
) -> Polynomial:
    """A layer with these degrees and signs by output, at generic weights in float64."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = Polynomial(
            inner,
            len(kinds),
            [[d for d, _ in row] for row in kinds],
            [[s for _, s in row] for row in kinds],
            power=power,
            generator=generator,
            dtype=torch.float64,
        )
    terms = len(layer.weight)
    layer.weight = nn.Parameter(normal(generator, terms, inner) / math.sqrt(inner))
    layer.bias = nn.Parameter(0.5 * normal(generator, terms))
    return layer


def network_of(
    inner: int, kinds: list[list[list[Kind]]], powers: list[float], generator: torch.Generator
) -> nn.Sequential:
    """P_1, σ_1, …, P_L with these degrees and signs by layer and output."""
    modules: list[nn.Module] = []
    for own, power in zip(kinds, [*powers, None], strict=True):
        modules.append(layer_of(inner, own, generator, power))
        if power is not None:
            modules.append(RectifiedMonomial(power))
        inner = len(own)
    return nn.Sequential(*modules)


def random_profile(
    generator: torch.Generator, terms: int = 3, repeat_squares: bool = True
) -> list[Kind]:
    """Degrees up to 4 and signs of one output, ascending."""
    while True:
        profile = []
        for _ in range(whole(generator, 1, terms)):
            degree = whole(generator, 1, 4)
            sign = 1 if degree % 2 else 2 * whole(generator, 0, 1) - 1
            profile.append((degree, sign))
        squares = [kind for kind in profile if kind[0] == 2]
        if repeat_squares or len({*squares}) == len(squares):
            return sorted(profile)


def random_network(seed: int, layers: int = 0, terms: int = 3) -> nn.Sequential:
    """Two or three layers, up to four units wide, each output with degrees of its own."""
    generator = generator_of(seed)
    layers = layers or whole(generator, 2, 3)
    kinds = []
    for _ in range(layers):
        width = whole(generator, 1, 4)
        kinds.append([random_profile(generator, terms) for _ in range(width)])
    powers = [POWERS[whole(generator, 0, len(POWERS) - 1)] for _ in range(layers - 1)]
    return network_of(whole(generator, 1, 4), kinds, powers, generator)


def polynomials(network: nn.Sequential) -> list[Polynomial]:
    return [m for m in network if isinstance(m, Polynomial)]


def powers(network: nn.Sequential) -> list[float]:
    return [m.power for m in network if isinstance(m, RectifiedMonomial)]


def bias_of(layer: nn.Linear | Polynomial) -> nn.Parameter:
    bias = layer.bias
    assert isinstance(bias, nn.Parameter)
    return bias


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """The largest difference, in units of the largest number of its column."""
    found, wanted = found.detach(), wanted.detach()
    scale = wanted.abs().amax(0).clamp(min=1e-30)
    return float(((found - wanted).abs() / scale).max())


def fiber_dimension(kinds: list[Kind], weight: Tensor, bias: Tensor) -> int:
    """How many ways, in dimensions, one output has to be written: the nullity of (a, b) ↦ the
    coefficients of Σ s (aᵀx + b)^d, which are found by interpolation at generic points."""
    inner = weight.shape[1]
    degree = max(d for d, _ in kinds)
    points = 2 * math.comb(inner + degree, degree) + 5
    x = normal(generator_of(0), points, inner)

    def values(weight: Tensor, bias: Tensor) -> Tensor:
        forms = x @ weight.T + bias
        return sum(s * forms[:, t] ** d for t, (d, s) in enumerate(kinds))  # pyright: ignore

    parts = torch.func.jacrev(values, (0, 1))(weight, bias)
    jacobian = torch.cat([part.reshape(points, -1) for part in parts], 1)
    jacobian = jacobian / jacobian.norm(dim=0)
    sizes = torch.linalg.svdvals(jacobian)
    assert not bool(((sizes > 1e-11) & (sizes < 1e-7)).any()), "no gap: other weights are needed"
    return jacobian.shape[1] - int((sizes > 1e-9).sum())

"""Networks of the class in three sizes, their weights by formula, and their cost written out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from paramsym.waring import Polynomial, RectifiedMonomial, Term

Lists = list[list[int]]
# by layer the degrees by output, by hidden interface the power
SIZES: dict[str, tuple[int, list[Lists], list[float]]] = {
    "5-4-3": (5, [[[1, 2, 3]] * 4, [[1, 3]] * 3], [0.7]),
    "8-11-12-4": (
        8,
        [[[1, 2]] * 6 + [[3, 3, 5]] * 5, [[1, 4]] * 7 + [[3, 2, 2]] * 5, [[1]] * 2 + [[3, 2]] * 2],
        [0.7, 1.5],
    ),
    "16-32-32-32-8": (
        16,
        [[[1, 2, 3, 4, 5]] * 32, [[1, 3]] * 20 + [[2, 3]] * 12, [[1, 2]] * 32, [[1]] * 8],
        [1.5, 2.0, 0.7],
    ),
}


def built(inner: int, degrees: Sequence[Lists], powers: Sequence[float]) -> nn.Sequential:
    """A network whose weights are sines of sines, the rows of sizes from 1/5 to 5 times the mean:
    the same numbers on every machine, and far from balanced."""
    modules: list[nn.Module] = []
    for at, rows in enumerate(degrees):
        layer = Polynomial(inner, len(rows), rows, power=1.0, dtype=torch.float64)
        for k, terms in enumerate(layer.terms()):
            for t, term in enumerate(terms):
                size = torch.sin(torch.tensor(7.0 * at + 3.0 * k + t, dtype=torch.float64))
                j = torch.arange(inner, dtype=torch.float64)
                own = (1.6 * size).exp() / (inner * term.degree) ** 0.5
                term.weight.copy_(own * torch.sin(1.0 + 11.0 * at + 5.0 * k + 2.0 * t + 1.7 * j))
                term.bias.copy_(own * torch.cos(size + 4.0 * k + 6.0 * t))
        modules.append(layer)
        modules += [RectifiedMonomial(powers[at])] if at < len(powers) else []
        inner = len(rows)
    return nn.Sequential(*modules)


def of_size(name: str) -> nn.Sequential:
    return built(*SIZES[name])


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in model.state_dict().items()}


def layers_of(model: nn.Sequential) -> tuple[list[Polynomial], list[float]]:
    return (
        [m for m in model if isinstance(m, Polynomial)],
        [float(m.power) for m in model if isinstance(m, RectifiedMonomial)],
    )


def rescaled(
    model: nn.Sequential, scales: Sequence[Tensor], undone: Sequence[float] | None = None
) -> nn.Sequential:
    """Every term moved on its own: λ_{l,k}^{1/d} (Λ_{l−1}^{−p} a, b). `undone` replaces p, for a
    network that is then another one."""
    layers, powers = layers_of(model)
    inverse = [-p for p in (undone or powers)]
    modules: list[nn.Module] = []
    for at, layer in enumerate(layers):
        made = []
        for k, terms in enumerate(layer.terms()):
            made.append([])
            for term in terms:
                own = float(scales[at][k]) ** (1 / term.degree) if at < len(scales) else 1.0
                weight, bias = own * term.weight, own * term.bias
                if at:
                    weight = weight * scales[at - 1] ** inverse[at - 1]
                made[k].append(Term(term.degree, term.sign, weight, bias))
        modules.append(Polynomial.from_terms(made))
        modules += [RectifiedMonomial(powers[at])] if at < len(powers) else []
    return nn.Sequential(*modules)


def permuted(model: nn.Sequential, orders: Sequence[Sequence[int]]) -> nn.Sequential:
    """Hidden units of interface l in another order, their degrees with them."""
    layers, powers = layers_of(model)
    modules: list[nn.Module] = []
    for at, layer in enumerate(layers):
        terms = layer.terms()
        if at < len(orders):
            terms = [terms[k] for k in orders[at]]
        if at:
            inner = torch.tensor(orders[at - 1])
            terms = [[t._replace(weight=t.weight[inner]) for t in row] for row in terms]
        modules.append(Polynomial.from_terms(terms))
        modules += [RectifiedMonomial(powers[at])] if at < len(powers) else []
    return nn.Sequential(*modules)


def norm_of(model: nn.Module, exponent: float) -> float:
    return sum(float((p.detach().abs() ** exponent).sum()) for p in model.parameters())


def scales_between(model: nn.Sequential, moved: dict[str, Tensor]) -> list[Tensor]:
    """λ by hidden interface, read off the biases: b′ = ± λ^{1/d} b."""
    found = []
    for name, layer in [*model.named_children()][:-2:2]:
        assert isinstance(layer, Polynomial) and layer.bias is not None
        ratio = (moved[f"{name}.bias"] / layer.bias.detach()).abs()
        found.append(torch.stack([ratio[layer.rows(k)[0]] ** row[0]
                                  for k, row in enumerate(layer.degrees)]))  # fmt: skip
    return found

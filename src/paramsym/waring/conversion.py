"""Multilayer perceptrons into the class, and networks of the class into linear layers and powers.

A rectifier is the rectified monomial of p = 1, and a linear layer the polynomial layer of degree 1.
Polynomial activations q have no rectifier: z = max(z, 0) − max(−z, 0) brings them in.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor, nn

from .alternation import alternating
from .monomial import RectifiedMonomial
from .perceptron import Stage, require_coefficients, require_equal, stages
from .polynomial import Polynomial
from .terms import Term


class Powers(nn.Module):
    """Entrywise powers z_i^{d_i}, one whole exponent for each unit.

    Args:
        exponents: d, whole numbers ≥ 1, one for each entry of the last axis.
    """

    def __init__(self, exponents: Sequence[int]) -> None:
        super().__init__()
        self.exponents = tuple(exponents)

    def forward(self, z: Tensor) -> Tensor:
        """The powers, of the shape of z."""
        runs = _runs(self.exponents)
        parts = z.split([count for _, count in runs], -1)
        powers = [part**d for part, (d, _) in zip(parts, runs, strict=True)]
        return torch.cat(powers, -1)

    def extra_repr(self) -> str:
        """How many units have which exponent."""
        return " + ".join(f"{count} × z^{d}" for d, count in _runs(self.exponents))


def from_relu(model: nn.Sequential, power: float | None = None) -> nn.Sequential:
    r"""A ReLU or squared-ReLU network as a network of the class, exactly.

    Each `nn.Linear` becomes a `Polynomial` of degree 1 whose weight and bias have the same shapes,
    numbers and names, each activation max(z, 0)^p a `RectifiedMonomial`: state dicts, and the state
    of optimisers, fit as they are.

    Args:
        model: `nn.Linear` and activations in turns, linear layers first and last. Activations are
            `nn.ReLU`, `RectifiedMonomial`, or with `power` any module that computes max(z, 0)^p
            (a squared ReLU is a class of its own in every code base).
        power: p of activations of other classes; each is compared with max(z, 0)^p on numbers.

    Raises:
        ValueError: another layer or activation, or one that does not compute max(z, 0)^p.

    Source: "On a group of invariances in a class of functions", section I: the class contains them.
    """
    modules: OrderedDict[str, nn.Module] = OrderedDict()
    for stage in stages(model, "from_relu"):
        exponent = None if stage.activation is None else _exponent(stage, power)
        modules[stage.name] = _linear(stage.linear, exponent)
        if exponent is not None:
            modules[stage.activation_name] = RectifiedMonomial(exponent)
    return nn.Sequential(modules).train(model.training)


def from_activation(model: nn.Sequential, coefficients: Sequence[float]) -> nn.Sequential:
    r"""A network with the polynomial activation q(z) = Σ_j c_j z^j in the class, exactly.

    Each unit z becomes two, e⁺ = max(z, 0) and e⁻ = max(−z, 0) with p = 1. The layer that follows
    reads z = e⁺ − e⁻: for each weight v of a unit and each j ≥ 2 with c_j ≠ 0 it has a term

        v c_j (e⁺ − e⁻)^j = ± (|v c_j|^{1/j} e⁺ − |v c_j|^{1/j} e⁻)^j,

    where an odd power takes its sign from the form; all of degree 1 and the constants are one term.

    A layer with m inputs and n outputs has n (m · #{j ≥ 2: c_j ≠ 0} + 1) terms, and hidden ones
    twice as many: this is to embed networks, not to train large ones.

    Args:
        model: `nn.Linear` and activations in turns, linear layers first and last.
        coefficients: c_0, c_1, …; each activation is compared with q on numbers.

    Raises:
        ValueError: another layer, an activation that is not q, or coefficients that are no numbers.

    Source: "On a group of invariances in a class of functions", section I: powers of affine forms.
    """
    c = require_coefficients(coefficients)
    modules: OrderedDict[str, nn.Module] = OrderedDict()
    for at, stage in enumerate(stages(model, "from_activation")):
        weight, bias = stage.linear.weight.detach(), stage.linear.bias
        bias = weight.new_zeros(len(weight)) if bias is None else bias.detach()
        terms = [
            _reading(v, b, c) if at else [Term(1, 1, v, b)]
            for v, b in zip(weight, bias, strict=True)
        ]
        if stage.activation is None:
            modules[stage.name] = Polynomial.from_terms(terms)
            continue
        require_equal(stage, lambda z: _value(c, z), f"Σ c_j z^j with c = {c}", "from_activation")
        both = terms + [[_negated(term) for term in row] for row in terms]
        modules[stage.name] = Polynomial.from_terms(both, power=1)
        modules[stage.activation_name] = RectifiedMonomial(1)
    return nn.Sequential(modules).train(model.training)


def to_mlp(network: nn.Sequential) -> nn.Sequential:
    """A network of the class as linear layers and entrywise powers, exactly.

    Each polynomial layer becomes `nn.Linear` with the forms of its terms, `Powers`, and an
    `nn.Linear` of fixed weights 0, 1 and −1 that sums them; p follows as `nn.ReLU` for p = 1, and
    else as `RectifiedMonomial`. A layer with one term of degree 1 for each output becomes
    `nn.Linear` alone.

    Args:
        network: Polynomial, RectifiedMonomial, …, Polynomial; it stays as it is.

    Returns:
        A network of its own parameters; those of the sums do not require gradients.

    Raises:
        ValueError: modules that do not alternate.
    """
    layers = alternating(network, "to_mlp")
    modules: list[nn.Module] = []
    for layer, power in zip(layers.polynomials, [*layers.powers, None], strict=True):
        if layer.degrees == [[1]] * layer.out_features:
            modules.append(_summed(layer))
        else:
            exponents = [degree for _, degree, _ in _kinds_by_row(layer)]
            modules += [_dense(layer.weight, layer.bias), Powers(exponents), _sums(layer)]
        modules += _activation(power)
    return nn.Sequential(*modules).train(network.training)


def to_relu(network: nn.Sequential) -> nn.Sequential:
    """A network of the class whose degrees are all 1, as linear layers and rectifiers.

    It undoes `from_relu`; several terms of one output are added up.

    Args:
        network: Polynomial, RectifiedMonomial, …, Polynomial; it stays as it is.

    Raises:
        ValueError: a term of another degree, or modules that do not alternate.
    """
    layers = alternating(network, "to_relu")
    modules: list[nn.Module] = []
    for name, layer, power in zip(
        layers.names, layers.polynomials, [*layers.powers, None], strict=True
    ):
        degree = max(d for row in layer.degrees for d in row)
        if degree > 1:
            raise ValueError(
                f"to_relu(network=…): layer {name!r} has a term of degree {degree}; degree 1 was "
                "expected throughout, since a linear layer has no powers. waring.to_mlp writes "
                "powers as activations."
            )
        modules += [_summed(layer), *_activation(power)]
    return nn.Sequential(*modules).train(network.training)


def _exponent(stage: Stage, power: float | None) -> float:
    """p of an activation max(z, 0)^p."""
    activation = stage.activation
    if isinstance(activation, RectifiedMonomial):
        return activation.power
    if type(activation) is nn.ReLU:
        return 1
    if power is None:
        raise ValueError(
            f"from_relu(model=…): module {stage.activation_name!r} is a "
            f"{type(activation).__name__}; nn.ReLU or RectifiedMonomial was expected. If it "
            "computes max(z, 0)^p, pass power=p (2 for a squared ReLU); polynomials go through "
            "waring.from_activation."
        )
    found = RectifiedMonomial(power)
    require_equal(stage, found, f"max(z, 0)^{power}", "from_relu")
    return found.power


def _linear(linear: nn.Linear, power: float | None) -> Polynomial:
    """The same layer as a polynomial of degree 1, its parameters copied."""
    weight = linear.weight.detach()
    layer = Polynomial(
        linear.in_features, linear.out_features, [1], power=power,
        bias=linear.bias is not None, device="meta", dtype=weight.dtype,
    )  # fmt: skip
    layer.weight = nn.Parameter(weight.clone(), linear.weight.requires_grad)
    if linear.bias is not None:
        layer.bias = nn.Parameter(linear.bias.detach().clone(), linear.bias.requires_grad)
    return layer


def _reading(weight: Tensor, bias: Tensor, c: Sequence[float]) -> list[Term]:
    """Σ_i v_i q(e⁺_i − e⁻_i) + b as terms in (e⁺, e⁻)."""
    linear = (c[1] if len(c) > 1 else 0.0) * weight
    terms = [Term(1, 1, torch.cat([linear, -linear]), bias + c[0] * weight.sum())]
    zero = weight.new_zeros(())
    for degree, factor in enumerate(c):
        if degree < 2 or not factor:
            continue
        sizes = (factor * weight).abs() ** (1 / degree)
        signs = torch.where(factor * weight < 0, -1, 1)
        inner = torch.diag(sizes * signs if degree % 2 else sizes)
        rows = torch.cat([inner, -inner], 1)  # (units, 2 · units)
        outer = [1] * len(weight) if degree % 2 else signs.tolist()
        terms += [Term(degree, sign, row, zero) for sign, row in zip(outer, rows, strict=True)]
    return terms


def _negated(term: Term) -> Term:
    """The term times −1."""
    if term.degree % 2:
        return term._replace(weight=-term.weight, bias=-term.bias)
    return term._replace(sign=-term.sign)


def _value(c: Sequence[float], z: Tensor) -> Tensor:
    """Σ_j c_j z^j."""
    total = torch.full_like(z, c[-1])
    for factor in c[-2::-1]:
        total = total * z + factor
    return total


def _kinds_by_row(layer: Polynomial) -> list[tuple[int, int, int]]:
    """By row of the weight: its output, degree and sign."""
    found = [(0, 0, 0)] * len(layer.weight)
    for k, kinds in enumerate(layer.kinds):
        for (degree, sign), row in zip(kinds, layer.rows(k), strict=True):
            found[row] = (k, degree, sign)
    return found


def _dense(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """`nn.Linear` with copies of these numbers."""
    outer, inner = weight.shape
    linear = nn.Linear(inner, outer, bias is not None, device="meta", dtype=weight.dtype)
    linear.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach().clone())
    return linear


def _sums(layer: Polynomial) -> nn.Linear:
    """The fixed matrix of 0, 1 and −1 that adds the terms of each output."""
    weight = layer.weight.new_zeros(layer.out_features, len(layer.weight))
    for row, (k, _, sign) in enumerate(_kinds_by_row(layer)):
        weight[k, row] = sign
    return _dense(weight, None).requires_grad_(False)


def _summed(layer: Polynomial) -> nn.Linear:
    """A layer of degree 1 as one matrix."""
    sums = _sums(layer).weight
    return _dense(sums @ layer.weight, None if layer.bias is None else sums @ layer.bias)


def _activation(power: float | None) -> list[nn.Module]:
    if power is None:
        return []
    return [nn.ReLU() if power == 1 else RectifiedMonomial(power)]


def _runs(exponents: Sequence[int]) -> list[tuple[int, int]]:
    """(exponent, how many in a row)."""
    return [(d, len([*same])) for d, same in groupby(exponents)]

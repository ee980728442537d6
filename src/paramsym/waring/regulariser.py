r"""The cost of a network of the class along its positive scales, in closed form.

Let λ_l > 0 scale the outputs of layer l, Λ_l = diag(λ_l), and let layer l + 1 undo it. Term t of
output k of layer l then has the form

    λ_{l,k}^{1/d_kt} (Λ_{l−1}^{−p_{l−1}} a_kt, b_kt),

and the sum of the e-th powers of its absolute values, with λ_0 = λ_L = 1, is

    C(λ) = Σ_l Σ_{k,t} λ_{l,k}^{e/d_kt} (Σ_j |a_ktj|^e λ_{l−1,j}^{−e p_{l−1}} + |b_kt|^e).

e = 2 is the Frobenius form, e = 1 the L1 form. Every summand is a positive number times a product
of powers, so that C is convex in y = log λ; its minimum is a geometric program. `paramsym.balance`
solves it from the symmetry that was derived from the operators; here it stands written out, for
those who want the number, and as the twin to test it by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from paramsym.geometry.balance import OBJECTIVES

from .alternation import Layers, stand_twice, taken_apart
from .polynomial import Polynomial


@dataclass(frozen=True, eq=False)
class _Layer:
    """One polynomial layer, its terms as rows: |a|^e, |b|^e, and which output and degree."""

    weight: Tensor  # (rows, in)
    bias: Tensor  # (rows,)
    output: Tensor  # (rows,)
    degree: Tensor  # (rows,)


@dataclass(frozen=True, eq=False)  # tensors have no single truth value
class Regulariser:
    r"""The norm of a network along its positive scales, in closed form, convex in their logarithms:

        C(λ) = Σ_l Σ_{k,t} λ_{l,k}^{e/d} (Σ_j |a_j|^e λ_{l−1,j}^{−e p_{l−1}} + |b|^e)

    with λ_0 = λ_L = 1. It holds powers of the weights as they were when `regulariser` was called,
    in double precision.

    Attributes:
        exponent: e, 2 for "l2" and 1 for "l1".
        widths: of the hidden interfaces: λ_l has widths[l − 1] entries.
        powers: p of the rectified monomial at each hidden interface.
    """

    exponent: float
    widths: tuple[int, ...]
    powers: tuple[float, ...]
    _layers: tuple[_Layer, ...] = field(repr=False)

    def __call__(self, scales: Sequence[Tensor]) -> Tensor:
        """C(λ), differentiable.

        Args:
            scales: λ > 0, one tensor (width,) for each hidden interface; with ones it is the cost
                of the weights as they are.

        Raises:
            ValueError: another number of tensors, other shapes, or scales that are not positive.
        """
        for at, scale in enumerate(scales):
            if not (scale > 0).all():
                raise ValueError(
                    f"Regulariser(scales): the scales of hidden interface {at} go down to "
                    f"{float(scale.min()):.3g}; positive ones were expected, since the rectifier "
                    "commutes with no others. Pass their logarithms to along_logs if that is what "
                    "you have."
                )
        return self.along_logs([scale.log() for scale in scales])

    def along_logs(self, logs: Sequence[Tensor]) -> Tensor:
        """C at λ = exp(y), convex in y and differentiable; y by hidden interface, as for λ."""
        logs = self._checked(logs)
        total = torch.zeros((), dtype=torch.float64)
        for at, layer in enumerate(self._layers):
            size = self._entering(at, logs)
            total = total + (self._leaving(at, logs) * (layer.weight @ size + layer.bias)).sum()
        return total

    def gradient(self, logs: Sequence[Tensor]) -> list[Tensor]:
        r"""∂C/∂y by hidden interface: e times what its terms weigh over d, less e p times what
        leaves it; zero where C is least."""
        logs = self._checked(logs)
        slopes = [torch.zeros_like(y) for y in logs]
        for at, layer in enumerate(self._layers):
            size, factor = self._entering(at, logs), self._leaving(at, logs)
            if at < len(slopes):
                terms = factor * (layer.weight @ size + layer.bias) / layer.degree
                slopes[at].index_add_(0, layer.output, self.exponent * terms)
            if at:
                leaving = size * (layer.weight.T @ factor)
                slopes[at - 1] -= self.exponent * self.powers[at - 1] * leaving
        return slopes

    def _entering(self, at: int, logs: list[Tensor]) -> Tensor:
        """λ_{l−1}^{−e p_{l−1}} by input."""
        if not at:
            return torch.ones(self._layers[0].weight.shape[1], dtype=torch.float64)
        return torch.exp(-self.exponent * self.powers[at - 1] * logs[at - 1])

    def _leaving(self, at: int, logs: list[Tensor]) -> Tensor:
        """λ_{l,k}^{e/d_kt} by term."""
        layer = self._layers[at]
        if at == len(logs):
            return torch.ones_like(layer.bias)
        return torch.exp(self.exponent * logs[at][layer.output] / layer.degree)

    def _checked(self, logs: Sequence[Tensor]) -> list[Tensor]:
        shapes = [tuple(y.shape) for y in logs]
        if shapes != [(width,) for width in self.widths]:
            raise ValueError(
                f"Regulariser: tensors of shapes {shapes} came; one for each hidden interface was "
                f"expected, of {[*self.widths]} entries. The input and the output have no scales."
            )
        return [y.to("cpu", torch.float64) for y in logs]


def regulariser(network: nn.Sequential, objective: str = "l2") -> Regulariser:
    r"""The norm of an alternating network along its positive scales, in closed form.

    Its least value is what `balance(find_symmetry(network, …), params, objective)` reaches, where
    the scales are all that changes the norm: permutations, signs, and under "l2" rotations among
    repeated squares leave it alone, and under "l1" `balance` holds these rotations. With
    shifts=True `balance` may go below it where a shift is found, as between two terms of degree 1
    of one output. A unit whose weights on one side are all zero has no best scale.

    Args:
        network: `Polynomial`, `RectifiedMonomial`, …, `Polynomial`, as `waring.network` makes it.
        objective: "l2", Σ |w|², or "l1", Σ |w|.

    Raises:
        ValueError: an unknown objective; modules of other kinds or in another order; layers whose
            sizes do not fit; one layer in two places; weights that are not finite.

    Source: "On a group of invariances in a class of functions", section III.
    """
    if objective not in OBJECTIVES:
        raise ValueError(
            f"regulariser(objective={objective!r}): it is none of {[*OBJECTIVES]}. The sum of "
            "squares ('l2') or of absolute values ('l1') was expected. Pass one of the two."
        )
    layers, powers, _ = _alternating(network)
    exponent = OBJECTIVES[objective]
    widths = tuple(layer.out_features for layer in layers[:-1])
    rows = tuple(_rows(at, layer, exponent) for at, layer in enumerate(layers))
    return Regulariser(exponent, widths, tuple(map(float, powers)), rows)


def _alternating(network: nn.Sequential) -> Layers:
    """The layers and the powers between them."""
    layers = taken_apart(network)
    if layers is None:
        modules = [*network] if isinstance(network, nn.Sequential) else [network]
        raise ValueError(
            f"regulariser: a network of {[type(m).__name__ for m in modules]} came; Polynomial, "
            "RectifiedMonomial, …, Polynomial in an nn.Sequential was expected. For other networks "
            "call paramsym.balance, which reads the scales off any symmetry."
        )
    _require_fitting(layers.polynomials)
    return layers


def _require_fitting(layers: list[Polynomial]) -> None:
    if stand_twice(layers):
        raise ValueError(
            "regulariser: one layer stands in two places of the network; layers of their own were "
            "expected, since each would be scaled in two ways. Call paramsym.balance, which moves "
            "tied weights together."
        )
    for at, (first, second) in enumerate(zip(layers, layers[1:], strict=False)):
        if first.out_features != second.in_features:
            raise ValueError(
                f"regulariser: polynomial layer {at} has {first.out_features} outputs and layer "
                f"{at + 1} {second.in_features} inputs; the same number was expected. Make the "
                "network with waring.network, or correct the sizes."
            )


def _rows(at: int, layer: Polynomial, exponent: float) -> _Layer:
    """The sums of a layer's weights, row by row."""
    weight = layer.weight.detach().to("cpu", torch.float64)
    bias = weight.new_zeros(len(weight))
    if layer.bias is not None:
        bias = layer.bias.detach().to("cpu", torch.float64)
    if not (weight.isfinite().all() and bias.isfinite().all()):
        raise ValueError(
            f"regulariser: polynomial layer {at} has weights that are not finite; finite numbers "
            "were expected. Go back to the weights before they overflowed."
        )
    output, degree = torch.zeros(len(weight), dtype=torch.long), weight.new_zeros(len(weight))
    for k, kinds in enumerate(layer.kinds):
        for row, (own, _) in zip(layer.rows(k), kinds, strict=True):
            output[row], degree[row] = k, own
    return _Layer(weight.abs() ** exponent, bias.abs() ** exponent, output, degree)

r"""The closed group of a network of the class: what leaves f = P_L ∘ σ_{L−1} ∘ … ∘ P_1 in place.

With M_l = Π_l Λ_l behind P_l, the equivariance σ_l(Π_l Λ_l z) = Π_l Λ_l^{p_l} σ_l(z) makes it
N_l = Π_l Λ_l^{p_l} in front of P_{l+1}, which undoes it:

    P'_l = M_l ∘ P_l ∘ N_{l−1}⁻¹,    N_0 = T,  M_L = 1.

On the forms of the terms: behind, λ (aᵀx + b)^d = ((λ^{1/d} a)ᵀx + λ^{1/d} b)^d; in front,
aᵀ(N⁻¹x) = (N⁻ᵀa)ᵀx. Degrees and signs go where their term goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .alternation import alternating, assembled
from .polynomial import Polynomial
from .terms import Term

Order = Sequence[int] | Tensor
Numbers = Sequence[float] | Tensor
ByOutput = Mapping[int, Order]


def reparametrised(
    network: nn.Sequential,
    *,
    inputs: Tensor | None = None,
    permutations: Sequence[Order | None] | None = None,
    scales: Sequence[Numbers | None] | None = None,
    term_orders: Sequence[ByOutput | None] | None = None,
    signs: Sequence[ByOutput | None] | None = None,
) -> nn.Sequential:
    r"""The network moved by an element of its closed group: f'(Tx) = f(x).

    At hidden interface l, between P_l and P_{l+1}, M = ΠΛ acts on the outputs of P_l: Λ first,
    then Π, so that

        (M z)[i] = λ[order[i]] · z[order[i]],

    where both λ and the order are numbered as in the given network. (`symmetry.element` permutes
    first: its scales are numbered by the new places.) P_{l+1} then reads N⁻¹ with N = ΠΛ^p. Before
    that, the terms of output k of layer l are rearranged, new term t being old term order[t], and
    the form of new term t takes the sign signs[t]; both are numbered by the given network's outputs
    as well. What is left out is the identity.

    Outputs may change places with outputs of other degrees: the degrees of the layer, which are no
    parameters, are permuted with them. All else keeps the module's structure.

    Args:
        network: Polynomial, RectifiedMonomial, …, Polynomial; it stays as it is.
        inputs: T, an invertible matrix (in, in): the result takes Tx for x.
        permutations: for each of the L − 1 hidden interfaces an order of the units, or None.
        scales: for each of them positive numbers λ, one for each unit, or None.
        term_orders: for each of the L layers, orders by output, or None; terms change places with
            terms of their degree and sign.
        signs: for each of the L layers, by output, ±1 for each term, or None; −1 at terms of even
            degree only.

    Returns:
        A network of its own parameters, with the names of modules and the dtype of the given one.

    Raises:
        ValueError: T is singular to rounding or no square matrix of this size, a scale is not
            positive and finite, an order is none, a sign is not free, lists of other lengths, or
            modules that do not alternate.

    Source: "On a group of invariances in a class of functions", section II.
    """
    layers = alternating(network, "reparametrised")
    hidden = len(layers.powers)
    orders = _by_place(permutations, hidden, "permutations", "hidden interfaces")
    sizes = _by_place(scales, hidden, "scales", "hidden interfaces")
    rearranged = _by_place(term_orders, hidden + 1, "term_orders", "polynomial layers")
    flipped = _by_place(signs, hidden + 1, "signs", "polynomial layers")
    first = layers.polynomials[0]
    moves = [
        _Interface.parsed(layer.out_features, orders[at], sizes[at], at)
        for at, layer in enumerate(layers.polynomials[:-1])
    ]
    change = None if inputs is None else _invertible(inputs, first.in_features)
    polynomials = []
    for at, layer in enumerate(layers.polynomials):
        terms = layer.terms()
        _rearrange(terms, rearranged[at] or {}, at)
        _flip(terms, flipped[at] or {}, at)
        if at < hidden:
            terms = moves[at].behind(terms)
        if at:
            terms = moves[at - 1].before(terms, layers.powers[at - 1])
        elif change is not None:
            terms = _precomposed(terms, change)
        polynomials.append(_like(layer, terms))
    _require_finite(polynomials, layers.names)
    return assembled(network, polynomials)


class _Interface(NamedTuple):
    """M = ΠΛ at a hidden interface; both are numbered by the old units."""

    order: list[int]
    scales: Tensor  # float64

    @classmethod
    def parsed(cls, units: int, order: Order | None, scales: Numbers | None, at: int) -> _Interface:
        places = [*range(units)] if order is None else _order(order, units, f"permutations[{at}]")
        return cls(places, _positive(scales, units, f"scales[{at}]"))

    def behind(self, terms: list[list[Term]]) -> list[list[Term]]:
        """M ∘ P: the outputs scaled, then permuted."""
        scaled = [
            [_times(term, float(size) ** (1 / term.degree)) for term in row]
            for row, size in zip(terms, self.scales, strict=True)
        ]
        return [scaled[k] for k in self.order]

    def before(self, terms: list[list[Term]], power: float) -> list[list[Term]]:
        """P ∘ N⁻¹ with N = ΠΛ^p."""
        inverse = (self.scales**-power)[self.order]
        return [
            [
                term._replace(weight=term.weight[self.order] * inverse.to(term.weight))
                for term in row
            ]
            for row in terms
        ]


def _times(term: Term, factor: float) -> Term:
    return term._replace(weight=factor * term.weight, bias=factor * term.bias)


def _precomposed(terms: list[list[Term]], change: Tensor) -> list[list[Term]]:
    """P ∘ T⁻¹: every form a becomes T⁻ᵀa."""
    flat = torch.stack([term.weight for row in terms for term in row]).to(change.dtype)
    moved = torch.linalg.solve(change.T.to(flat.device), flat.T).T
    rest = iter(moved)
    return [[term._replace(weight=next(rest).to(term.weight)) for term in row] for row in terms]


def _like(layer: Polynomial, terms: list[list[Term]]) -> Polynomial:
    """A layer of other terms, with the power of this one, and its bias or none."""
    found = Polynomial.from_terms(terms, layer.power)
    found.weight.requires_grad_(layer.weight.requires_grad)
    if layer.bias is None:
        found.bias = None
    elif found.bias is not None:
        found.bias.requires_grad_(layer.bias.requires_grad)
    return found


def _rearrange(terms: list[list[Term]], orders: ByOutput, at: int) -> None:
    """New term t is old term order[t]."""
    for k, given in orders.items():
        row = _terms_of(terms, k, f"term_orders[{at}]")
        order = _order(given, len(row), f"term_orders[{at}][{k}]")
        for t, source in enumerate(order):
            kinds = [(row[i].degree, row[i].sign) for i in (t, source)]
            if kinds[0] != kinds[1]:
                raise ValueError(
                    f"reparametrised(term_orders=…): in layer {at}, output {k}, term {source} of "
                    f"degree and sign {kinds[1]} came to place {t}, which has {kinds[0]}; places "
                    "of the same degree and sign were expected. Permute within those."
                )
        terms[k] = [row[source] for source in order]


def _flip(terms: list[list[Term]], signs: ByOutput, at: int) -> None:
    """The forms of even degree times ±1."""
    for k, given in signs.items():
        row, marks = _terms_of(terms, k, f"signs[{at}]"), [float(s) for s in given]
        if len(marks) != len(row) or any(mark not in (1.0, -1.0) for mark in marks):
            raise ValueError(
                f"reparametrised(signs[{at}][{k}]={marks}): 1 or -1 for each of {len(row)} terms "
                "was expected. List a sign for every term of the output."
            )
        odd = [t for t, mark in enumerate(marks) if mark < 0 and row[t].degree % 2]
        if odd:
            raise ValueError(
                f"reparametrised(signs[{at}][{k}]={marks}): terms {odd} have the odd degrees "
                f"{[row[t].degree for t in odd]}, and even ones were expected, since the sign of "
                "an odd power is that of its form. Flip terms of even degree only."
            )
        terms[k] = [_times(term, mark) for term, mark in zip(row, marks, strict=True)]


def _terms_of(terms: list[list[Term]], output: int, argument: str) -> list[Term]:
    if output not in range(len(terms)):
        raise ValueError(
            f"reparametrised({argument}): output {output!r} was named; a number from 0 to "
            f"{len(terms) - 1} was expected, as the layer has {len(terms)} outputs. Number them "
            "as in the given network."
        )
    return terms[output]


def _by_place(given: Sequence | None, count: int, argument: str, places: str) -> list:
    """One entry for each place, None where nothing moves."""
    if given is None:
        return [None] * count
    if len(given) != count:
        raise ValueError(
            f"reparametrised({argument}=…): {len(given)} entries came for {count} {places}; one "
            "for each was expected. Pass None where nothing is to move."
        )
    return [*given]


def _order(given: Order, size: int, argument: str) -> list[int]:
    order = [float(k) for k in given]
    if sorted(order) != [*range(size)]:
        raise ValueError(
            f"reparametrised({argument}={[*given][:8]}…): {len(order)} entries that are no order "
            f"of {size} came; each of 0, …, {size - 1} once was expected. Entry i says which old "
            "one comes to place i; torch.randperm draws one."
        )
    return [int(k) for k in order]


def _positive(given: Numbers | None, size: int, argument: str) -> Tensor:
    if given is None:
        return torch.ones(size, dtype=torch.float64)
    scales = _tensor(given).detach().cpu()
    fits = scales.shape == (size,) and not scales.is_complex()
    if not fits or not bool((scales.isfinite() & (scales > 0)).all()):
        raise ValueError(
            f"reparametrised({argument}=…): numbers of shape {tuple(scales.shape)} came, "
            f"{_first(scales) if fits else 'another than expected'}; {size} positive finite "
            "numbers were expected, since a rectifier passes no others. Pass one λ > 0 for each "
            "unit."
        )
    return scales.double()


def _tensor(given: Tensor | Sequence) -> Tensor:
    return given if isinstance(given, Tensor) else torch.tensor(given, dtype=torch.float64)


def _first(scales: Tensor) -> str:
    bad = int((~(scales.isfinite() & (scales > 0))).nonzero()[0])
    return f"{float(scales[bad])} for unit {bad} among them"


def _invertible(given: Tensor, size: int) -> Tensor:
    change = _tensor(given).detach()
    if change.shape != (size, size) or change.is_complex():
        raise ValueError(
            f"reparametrised(inputs=…): {change.dtype} of shape {tuple(change.shape)} came; a real "
            f"matrix T of shape ({size}, {size}) was expected, for {size} inputs. The result "
            "takes Tx for x."
        )
    change = change.double()
    values = torch.linalg.svdvals(change) if bool(change.isfinite().all()) else torch.zeros(1)
    if not float(values[-1]) > size * torch.finfo(change.dtype).eps * float(values[0]):
        raise ValueError(
            f"reparametrised(inputs=…): T has singular values from {float(values[-1]):.3g} to "
            f"{float(values[0]):.3g}, or entries that are not finite; an invertible matrix was "
            "expected, since the forms of the first layer take T⁻ᵀ. Draw another, for example an "
            "orthogonal one."
        )
    return change


def _require_finite(polynomials: Sequence[Polynomial], names: Sequence[str]) -> None:
    for name, layer in zip(names, polynomials, strict=True):
        biases = layer.weight if layer.bias is None else layer.bias
        if not bool(layer.weight.isfinite().all() & biases.isfinite().all()):
            raise ValueError(
                f"reparametrised(…): the moved weights of layer {name!r} are not finite in "
                f"{layer.weight.dtype}; finite ones were expected. Scales enter as λ^(1/d) and "
                "λ^(-p): take less extreme ones, or a wider dtype."
            )

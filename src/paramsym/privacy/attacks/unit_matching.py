"""Units of one network among those of another on or near its orbit, with all interfaces unknown.

Where both ends of a network are freed, no tensor has all but one of its axes known. But what a unit
carries along one axis has inner products with what others carry that no isometry of the other axes
changes, and a span that no invertible map of them changes: with the tensor unfolded along the axis
of a space, W̃ = A W Bᵀ,

    A in a signed order,  B orthogonal     W̃W̃ᵀ = A (WWᵀ) Aᵀ
                          B invertible     W̃W̃⁺ = A (WW⁺) Aᵀ
                          B known          W̃ = A W

and the order is a quadratic assignment (`quadratic_matching`), space by space. Then each space in
turn, orders and matrices alike, is solved for with all others known: an assignment, a Procrustes
problem, or least squares. On one orbit all of this is exact; near it, it is a local optimum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from paramsym.algebra import AbstractMonomial, Element, GeneralLinear, Group, Orthogonal
from paramsym.privacy.attacks.quadratic_matching import (
    PairStatistics,
    SignedOrder,
    assigned,
    matched,
    matched_without_signs,
)
from paramsym.structure.action import act
from paramsym.structure.axes import Carried, spaces_of
from paramsym.structure.element import GroupElement
from paramsym.structure.symmetry import ParameterSymmetry

Params = Mapping[str, Tensor]

_FLAT = 1e-10  # singular values below it, relative to the largest, are rounding
_RESTARTS = 20


@dataclass(frozen=True)
class Carrier:
    """One axis of a tensor that carries one space and nothing else."""

    tensor: str
    axis: int
    dual: bool

    def unfolded(self, params: Params) -> Tensor:
        """The tensor as a matrix with one row per unit, in float64."""
        units = params[self.tensor].detach().double().movedim(self.axis, 0)
        return units.reshape(len(units), -1)


def carriers_of(symmetry: ParameterSymmetry, space: str) -> list[Carrier]:
    """The axes that carry a space by itself, once in their tensor, covariant or dual."""
    found = []
    for name in symmetry.parameters_of(space):
        axes = symmetry.signature[name]
        if sum(space in spaces_of(axis) for axis in axes) > 1 or name in symmetry.dead:
            continue
        for k, axis in enumerate(axes):
            if isinstance(axis, Carried) and not axis.frame and len(axis.factors) == 1:
                ((carried, power),) = axis.factors
                if carried == space and abs(power) == 1:
                    found.append(Carrier(name, k, power < 0))
    return found


def matches_units(symmetry: ParameterSymmetry) -> bool:
    """Whether `match_units` reads every space: no copies, no scales, no frames."""
    spaces = [*symmetry.spaces.values()]
    return bool(spaces) and all(
        not space.over and _readable(space.group) and carriers_of(symmetry, space.name)
        for space in spaces
    )


def match_units(
    symmetry: ParameterSymmetry,
    known: Params,
    sent: Params,
    generator: torch.Generator,
    sweeps: int = 5,
) -> GroupElement:
    """The element g with sent ≈ g · known.

    Args:
        symmetry: of both, with spaces that `matches_units` accepts.
        known: a state dict.
        sent: one on its orbit, or near it.
        generator: draws where searches for orders start again.
        sweeps: how often all spaces are solved for, each with the others known.

    Returns:
        An element of the symmetry; of spaces that are not determined, any value that fits.
    """
    values: dict[str, Element] = {}
    spaces = symmetry.spaces
    for name, space in spaces.items():
        if isinstance(space.group, AbstractMonomial):
            alone = _from_invariants(symmetry, name, known, sent, generator)
            values[name] = _facing(symmetry, name, alone, values, known, sent)
    linear = [name for name in spaces if name not in values]
    for _ in range(sweeps):
        for name in (*linear, *(n for n in spaces if n not in linear)):
            values[name] = _from_others(symmetry, name, values, known, sent)
    return _element(symmetry, values)


def solve_for(
    symmetry: ParameterSymmetry,
    names: list[str],
    values: Mapping[str, Element],
    known: Params,
    sent: Params,
) -> GroupElement:
    """The element with these values, and in some spaces what fits best beside them."""
    solved = {n: value for n, value in values.items() if n not in names}
    for name in names:
        solved[name] = _from_others(symmetry, name, solved, known, sent)
    return _element(symmetry, solved)


def distance(
    symmetry: ParameterSymmetry, element: GroupElement, known: Params, sent: Params
) -> float:
    """‖g·known − sent‖ / ‖sent‖ over all tensors that the symmetry moves."""
    moved = act(symmetry, element, known)
    names = [n for n in symmetry.signature if sent[n].is_floating_point()]
    apart = sum(float((moved[n] - sent[n]).double().square().sum()) for n in names)
    size = sum(float(sent[n].double().square().sum()) for n in names)
    return (apart / (size or 1.0)) ** 0.5


def _readable(group: Group) -> bool:
    monomial = isinstance(group, AbstractMonomial) and not group.scales
    return monomial or isinstance(group, Orthogonal | GeneralLinear)


def _element(symmetry: ParameterSymmetry, values: Mapping[str, Element]) -> GroupElement:
    return GroupElement(symmetry, (dict(values),) if values else ())


# -- orders from invariants ------------------------------------------------------------------------


def _from_invariants(
    symmetry: ParameterSymmetry,
    name: str,
    known: Params,
    sent: Params,
    generator: torch.Generator,
) -> Element:
    """The order of units of one space, from what nothing else that moves can change."""
    space = symmetry.spaces[name]
    costs = torch.zeros(2, space.size, space.size, dtype=torch.float64)
    statistics = []
    for carrier in carriers_of(symmetry, name):
        one, other = carrier.unfolded(known), carrier.unfolded(sent)
        beside = {s for axis in symmetry.signature[carrier.tensor] for s in spaces_of(axis)} - {
            name
        }
        if beside:
            groups = [symmetry.spaces[s].group for s in beside]
            stretched = any(isinstance(group, GeneralLinear) for group in groups)
            pair = [_invariant(x, stretched) for x in (one, other)]
            statistics.append(PairStatistics(pair[0], pair[1]))
            profiles = [gram.abs().sort(-1).values for gram in pair]
            costs += torch.cdist(profiles[1], profiles[0]).square()
        else:
            size = one.square().mean().clamp(min=1e-300) * one.shape[1]
            costs[0] += torch.cdist(other, one).square() / size
            costs[1] += torch.cdist(-other, one).square() / size
    costs = _allowed(space.group, costs)
    search = matched_without_signs if len(costs) == 2 and statistics else matched
    return _as_element(space.group, search(costs, statistics, generator, _RESTARTS).found)


def _facing(
    symmetry: ParameterSymmetry,
    name: str,
    value: Element,
    values: Mapping[str, Element],
    known: Params,
    sent: Params,
) -> Element:
    """A signed order, or its negative, whichever agrees with the spaces that were read before.

    Inner products tell signs up to one for the whole space.
    """
    if value.diagonal is None:
        return value
    settled = {**values, name: value}
    moved = act(symmetry, _element(symmetry, settled), known)
    agreement = 0.0
    for tensor in symmetry.parameters_of(name):
        if all(s in settled for axis in symmetry.signature[tensor] for s in spaces_of(axis)):
            one, other = (side[tensor].double() for side in (moved, sent))
            agreement += float((one * other).sum() / (one.norm() * other.norm()).clamp(min=1e-300))
    return value if agreement >= 0 else value._replace(diagonal=-value.diagonal)


def _invariant(matrix: Tensor, stretched: bool) -> Tensor:
    """WWᵀ or WW⁺, of Frobenius norm √n."""
    if stretched:
        left, sizes, _ = torch.linalg.svd(matrix, full_matrices=False)
        matrix = left[:, sizes > _FLAT * sizes.max()]
    gram = matrix @ matrix.T
    return gram * (len(gram) ** 0.5 / gram.norm().clamp(min=1e-300))


# -- one space beside all others -------------------------------------------------------------------


def _from_others(
    symmetry: ParameterSymmetry,
    name: str,
    values: Mapping[str, Element],
    known: Params,
    sent: Params,
) -> Element:
    """The value of one space that fits best where all others are known."""
    others = {n: value for n, value in values.items() if n != name}
    moved = act(symmetry, _element(symmetry, others), known)
    carriers = carriers_of(symmetry, name)
    group = symmetry.spaces[name].group
    if isinstance(group, GeneralLinear):
        dual = carriers[0].dual  # of one kind: least squares for A, or for its inverse transpose
        own = [c for c in carriers if c.dual == dual]
        one, other = (torch.cat([c.unfolded(side) for c in own], 1) for side in (moved, sent))
        matrix = _carrying(one, other)
        return Element(matrix=torch.linalg.inv(matrix).T.contiguous() if dual else matrix)
    cross = sum(_pairs(carriers, moved, sent), torch.zeros((), dtype=torch.float64))
    if isinstance(group, AbstractMonomial):
        return _as_element(group, assigned(_allowed(group, torch.stack([-cross, cross]))))
    left, _, right = torch.linalg.svd(cross)
    return Element(matrix=left @ right)


def _carrying(one: Tensor, other: Tensor) -> Tensor:
    """An invertible M of least squares ‖M one − other‖; what no column of `one` tells is free."""
    left, sizes, right = torch.linalg.svd(one)
    target = torch.linalg.svd(other).U
    told = int((sizes > _FLAT * sizes.max()).sum())
    found = other @ right[:told].T / sizes[:told] @ left[:, :told].T
    return found + target[:, told:] @ left[:, told:].T


def _pairs(carriers: list[Carrier], moved: Params, sent: Params) -> Iterator[Tensor]:
    """⟨sent unit i, moved unit j⟩, each tensor at the scale of one."""
    for carrier in carriers:
        one, other = carrier.unfolded(moved), carrier.unfolded(sent)
        yield other @ one.T / (one.norm() * other.norm()).clamp(min=1e-300)


def _allowed(group: Group, costs: Tensor) -> Tensor:
    """Costs of what a group allows: signs only where it has them, the identity where no orders."""
    assert isinstance(group, AbstractMonomial)
    if not group.permutes:
        away = ~torch.eye(costs.shape[-1], dtype=torch.bool)
        costs = costs + away * 1e6 * (1.0 + costs.abs().max())
    return costs if group.signs else costs[:1]


def _as_element(group: Group, found: SignedOrder) -> Element:
    assert isinstance(group, AbstractMonomial)
    return Element(
        order=found.order if group.permutes else None,
        diagonal=found.signs if group.signs else None,
    )

"""The cost of parameters along the scales of their symmetry, aggregated once from the weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from paramsym.algebra import AbstractMonomial, ComplexScaling
from paramsym.geometry.posynomial import Factor, Posynomial, Term
from paramsym.structure.data import batch_of
from paramsym.structure.element import GroupElement
from paramsym.structure.origin import added
from paramsym.structure.space import Space
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.walk import Leg


def scales_of(space: Space) -> int:
    """How many positive scales one copy of a space has; those of complex kinds are moduli."""
    if isinstance(space.group, ComplexScaling):
        return space.size // 2
    return space.size if isinstance(space.group, AbstractMonomial) and space.group.scales else 0


def cost_along_scales(
    symmetry: ParameterSymmetry,
    params: Mapping[str, Tensor],
    spaces: Collection[str],
    power: float,
) -> Posynomial:
    """Σ |w|^p over all parameters, as a function of the logarithms of the scales of some spaces.

    Args:
        symmetry: whose spaces they are.
        params: the complete state dict, read once. Buffers cost nothing, tied tensors count once,
            and a gain that is stored as γ − 1 counts as γ.
        spaces: names of spaces with scales.
        power: p > 0.
    """
    shapes = {
        n: (*batch_of(symmetry, symmetry.spaces[n]), scales_of(symmetry.spaces[n])) for n in spaces
    }
    terms, constant = [], 0.0
    for name, blocks in symmetry.blocks.items():
        if name in symmetry.buffers or name in symmetry.ties or not _counts(params[name]):
            continue
        tensor = added(params[name].detach(), symmetry.offsets.get(name, 0.0))
        for block in blocks:
            legs = [leg for leg in block.legs if leg.space in shapes and leg.power]
            term = _term(symmetry, block.view(tensor), legs, power)
            if term.factors:
                terms.append(term)
            else:
                constant += float(term.mass.sum())
    return Posynomial(shapes, terms, constant)


def scaled_by(symmetry: ParameterSymmetry, logs: Mapping[str, Tensor]) -> GroupElement:
    """The element with given logarithms of scales, by space; those of complex kinds are moduli."""
    values = {}
    for name, y in logs.items():
        moduli = isinstance(symmetry.spaces[name].group, ComplexScaling)
        values[name] = y.to(torch.complex128) if moduli else y
    return symmetry.velocity(values).exp()


def balanced_scales(
    cost: Posynomial, bounded: Tensor | None = None
) -> tuple[Tensor, dict[str, str]]:
    """Scales that have a best value, and why the others of each family have none.

    A scale with weights on one side only would go to zero or to infinity; so would several
    together that are held from one side alone (`Posynomial.reached`). Between bounds there always
    is a best value.

    Args:
        cost: the cost along all of them.
        bounded: which have bounds, of shape (size,); none without it.

    Returns:
        1 for scales with a best value and 0 for others, of shape (size,); reasons by family.
    """
    zero, free, why = torch.zeros(cost.size, dtype=torch.float64), {}, {}
    inside = cost.split(zero > 0 if bounded is None else bounded)
    for family in cost.shapes:
        up, down, _ = cost.pulls(family, zero)
        held = inside[family]
        free[family] = (held | (up > 0) & (down > 0)).double()
        if lost := int((~held & ((up > 0) != (down > 0))).sum()):
            why[family] = f"{lost} of {up.numel()} scales have weights on one side only{_END}"
    found = cost.joined(free)
    loose = found if bounded is None else found * ~bounded
    astray = (cost.reached(loose, 1) != cost.reached(loose, -1)).double()
    for family, part in cost.split(astray).items():
        if lost := int(part.sum()):
            count = part.numel()
            why[family] = f"{lost} of {count} scales lead to one another alone on one side{_END}"
    return found - astray, why


_END = ", and would go to zero or to infinity"


def _counts(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _term(symmetry: ParameterSymmetry, x: Tensor, legs: list[Leg], power: float) -> Term:
    """One block with all axes summed that no scale stands on."""
    kept = sorted({axis for leg in legs for axis in (*leg.copies, leg.axis)})
    summed = [axis for axis in range(x.ndim) if axis not in kept]
    wide = x if x.dtype in (torch.float64, torch.complex128) else _widened(x, bool(summed))
    size = wide.abs()
    mass = size.square() if power == 2 else size if power == 1 else size**power
    if summed:
        mass = mass.sum(summed)
    factors = []
    for leg in legs:
        at = kept.index(leg.axis)
        if isinstance(symmetry.spaces[leg.space].group, ComplexScaling):
            mass = mass.unflatten(at, (2, -1)).sum(at)
        axes = (*(kept.index(c) for c in leg.copies), at)
        factors.append(Factor(leg.space, axes, float(leg.power) * power))
    return Term(mass, tuple(factors))


def _widened(x: Tensor, summed: bool) -> Tensor:
    """In double precision what is going to shrink; a mass as large as the weights in single."""
    if x.is_complex():
        return x.to(torch.complex128)
    return x.double() if summed or x.ndim < 2 else x.float()

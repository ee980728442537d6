"""The cost of parameters along the scales of their symmetry, aggregated once from the weights."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from paramsym.algebra import AbstractMonomial, ComplexScaling, Tangent
from paramsym.geometry.masses import power_sum
from paramsym.geometry.newton import comes_to_rest
from paramsym.geometry.posynomial import Posynomial
from paramsym.geometry.terms import Factor, Term
from paramsym.structure.data import batch_of
from paramsym.structure.element import GroupElement
from paramsym.structure.origin import Origin, added
from paramsym.structure.space import Space
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.walk import Block

Shape = tuple[int, ...]
LARGE = 1 << 21  # numbers that are read from the weights again, and not kept in double precision


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
    terms, constant = terms_along_scales(symmetry, params, symmetry.blocks, spaces, power)
    return Posynomial(family_shapes(symmetry, spaces), terms, constant)


def family_shapes(symmetry: ParameterSymmetry, spaces: Collection[str]) -> dict[str, Shape]:
    """The shape of the scales of each space."""
    found = {name: symmetry.spaces[name] for name in spaces}
    return {n: (*batch_of(symmetry, space), scales_of(space)) for n, space in found.items()}


def terms_along_scales(
    symmetry: ParameterSymmetry,
    params: Mapping[str, Tensor],
    names: Collection[str],
    spaces: Collection[str],
    power: float,
) -> tuple[list[Term], float]:
    """What some of the parameters add to `cost_along_scales`: terms and a constant."""
    return terms_read(readers_of(symmetry, names, spaces, power), params)


@dataclass(frozen=True)
class Reader:
    """A block of a parameter, ready to be read as a term: all of it that depends on no number.

    Attributes:
        block: the window on the tensor.
        factors: the scales that multiply the term.
        summed: the axes of the block that no scale stands on.
        pairs: axes of what is left that hold both coordinates of complex numbers, one half each.
        power: p.
    """

    block: Block
    factors: tuple[Factor, ...]
    summed: tuple[int, ...]
    pairs: tuple[int, ...]
    power: float

    def read(self, tensor: Tensor) -> Term:
        """The term at a tensor."""
        x = self.block.view(tensor)
        if not (self.summed or self.pairs or x.is_complex()) and x.numel() > LARGE:
            return Term(x, self.factors, self.power)
        mass = power_sum(x, self.power, self.summed)
        for at in self.pairs:
            mass = mass.unflatten(at, (2, -1)).sum(at)
        return Term(mass, self.factors)


@dataclass(frozen=True)
class Readers:
    """The blocks of one parameter, and the constant that is added to it before it is read."""

    parameter: str
    origin: Origin
    blocks: tuple[Reader, ...]


def readers_of(
    symmetry: ParameterSymmetry, names: Collection[str], spaces: Collection[str], power: float
) -> list[Readers]:
    """The readers of what some of the parameters add to `cost_along_scales`, without numbers."""
    found = []
    for name in names:
        if name not in symmetry.buffers and name not in symmetry.ties:
            made = tuple(_reader(symmetry, b, spaces, power) for b in symmetry.blocks[name])
            found.append(Readers(name, symmetry.offsets.get(name, 0.0), made))
    return found


def terms_read(
    readers: Iterable[Readers], params: Mapping[str, Tensor]
) -> tuple[list[Term], float]:
    """The terms of a cost and its constant at the numbers of a state dict."""
    terms, constant = [], 0.0
    for own in readers:
        given = params[own.parameter]
        if not counts(given):
            continue
        tensor = added(given.detach().cpu(), own.origin)
        for reader in own.blocks:
            term = reader.read(tensor)
            if term.factors:
                terms.append(term)
            else:
                constant += float(term.mass)
    return terms, constant


def scaled_by(symmetry: ParameterSymmetry, logs: Mapping[str, Tensor]) -> GroupElement:
    """The element with given logarithms of scales, by space; those of complex kinds are moduli."""
    values = {}
    for name, y in logs.items():
        moduli = isinstance(symmetry.spaces[name].group, ComplexScaling)
        values[name] = y.to(torch.complex128) if moduli else y
    groups = {name: symmetry.spaces[name].group for name in values}
    scales = {name: groups[name].exp(Tangent(diagonal=y)) for name, y in values.items()}
    return GroupElement(symmetry, (scales,) if scales else ())


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
    up, down, why = cost.here.up > 0, cost.here.down > 0, {}
    inside = torch.zeros_like(up) if bounded is None else bounded
    found = ((up & down) | inside).double()
    loose = found * ~inside
    astray = (cost.reached(loose, 1) != cost.reached(loose, -1)).double()
    if bool(astray.any()) and comes_to_rest(cost.here, found):
        astray = torch.zeros_like(astray)  # powers may hold what a graph of sides cannot tell
    for lost, what in (
        ((up != down) & ~inside, "have weights on one side only"),
        (astray > 0, "lead to one another alone on one side"),
    ):
        for family, part in cost.split(lost).items() if bool(lost.any()) else ():
            if count := int(part.sum()):
                why[family] = f"{count} of {part.numel()} scales {what}{_END}"
    return found - astray, why


_END = ", and would go to zero or to infinity"


def counts(tensor: Tensor) -> bool:
    """Whether a tensor holds numbers that a norm is taken of."""
    return tensor.is_floating_point() or tensor.is_complex()


def _reader(
    symmetry: ParameterSymmetry, block: Block, spaces: Collection[str], power: float
) -> Reader:
    """One block with all axes summed that no scale stands on."""
    legs = [leg for leg in block.legs if leg.space in spaces and leg.power]
    kept = sorted({axis for leg in legs for axis in (*leg.copies, leg.axis)})
    factors, pairs = [], []
    for leg in legs:
        axes = (*(kept.index(c) for c in leg.copies), kept.index(leg.axis))
        factors.append(Factor(leg.space, axes, float(leg.power) * power))
        if isinstance(symmetry.spaces[leg.space].group, ComplexScaling):
            pairs.append(kept.index(leg.axis))
    summed = tuple(axis for axis in range(len(block.shape)) if axis not in kept)
    return Reader(block, tuple(factors), summed, tuple(pairs), power)

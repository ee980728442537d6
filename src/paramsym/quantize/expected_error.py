"""The expected squared error of rounded weights along scales, and posynomials on either side of it.

Rounding to a grid with steps Δ gives each weight an error of variance Δ²/12, so that the outputs
change in the summed square by E = Σ_G Δ_G²/12 · Σ_{i∈G} F_i. Along scales, with y their logarithms
and w_i ↦ w_i e^{⟨c_i,y⟩}, the sensitivities become F_i e^{−2⟨c_i,y⟩}, and

    E(y) = Σ_G a_G · max_{i∈G} (|w_i| e^{⟨c_i,y⟩})² · Σ_{i∈G} F_i e^{−2⟨c_i,y⟩}

is a sum of exponentials of convex functions. The maximum lies between

    ‖·‖_p       (Σ |w_i|^p e^{p⟨c_i,y⟩})^{1/p}                 above, and smooth,
    a mean      exp(Σ λ_i (log|w_i| + ⟨c_i,y⟩)), Σ λ_i = 1     below: E becomes a posynomial.

The means with weights λ_i in proportion to |w_i|^p e^{p⟨c_i,y⟩} have, but for the ratio of norm
and mean, the slope of the norm: that the two meet certifies the minimum.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paramsym.algebra import ComplexScaling
from paramsym.geometry.posynomial import Posynomial
from paramsym.quantize.grids import Grid
from paramsym.structure import walk
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.walk import Block

NOTHING = -700.0  # the logarithm of zero: e⁻⁷⁰⁰ is next to the smallest number


@dataclass(frozen=True)
class Leg:
    """Scales on axes of a part: exponents q · y[family][…], twice in a row for complex kinds."""

    family: str
    axes: tuple[int, ...]
    power: float
    halves: bool


@dataclass(frozen=True)
class Part:
    """A block of a quantised tensor, with the axes summed that neither scales nor groups part.

    Attributes:
        sides: logarithms of the largest weights; of the positive and of the negative ones where the
            grid is not symmetric.
        weight: log F, of the same shape.
        legs: the scales on it.
        within: axes within one group.
        groups: the number of the group of each entry, over the other axes, flat.
    """

    sides: tuple[Tensor, ...]
    weight: Tensor
    legs: tuple[Leg, ...]
    within: tuple[int, ...]
    groups: Tensor


class ExpectedError:
    """E along scales.

    Args:
        symmetry: whose scales they are.
        params: the state dict.
        sensitivities: F by quantised tensor, in its shape.
        names: the quantised tensors.
        grid: what they are rounded to.
        scales: a cost along the same scales, which says how y is made of their families.
    """

    def __init__(
        self,
        symmetry: ParameterSymmetry,
        params: Mapping[str, Tensor],
        sensitivities: Mapping[str, Tensor],
        names: Sequence[str],
        grid: Grid,
        scales: Posynomial,
    ) -> None:
        self.scales, self.groups = scales, 0
        self.parts: list[Part] = []
        for name in names:
            tensor = params[name].detach().cpu().double()
            index = grid.group_of(tuple(tensor.shape)).contiguous() + self.groups
            weight = sensitivities[name].detach().cpu().double()
            for block in symmetry.blocks[name]:
                views = [block.view(t) for t in (tensor, weight, index)]
                self.parts.append(_part(symmetry, block, views, grid.symmetric, scales.shapes))
            self.groups = int(index.max()) + 1
        self.constant = -math.log(12.0) - 2 * math.log(grid.steps)

    def alone(self, parts: Sequence[Part], scales: Posynomial) -> ExpectedError:
        """The summands of some parts, which share no group with others; arguments as the attributes
        of the same names."""
        made = copy.copy(self)
        numbers, index = torch.cat(
            [torch.zeros(0, dtype=torch.int64), *(part.groups for part in parts)]
        ).unique(return_inverse=True)
        own = index.split([part.groups.numel() for part in parts]) if parts else ()
        made.parts = [replace(part, groups=k) for part, k in zip(parts, own, strict=True)]
        made.scales, made.groups = scales, numbers.numel()
        return made

    def log(self, y: Tensor) -> float:
        """log E(y)."""
        exponents = self.exponents(y)
        sides = [
            self.norm(
                [p.sides[k] + e for p, e in zip(self.parts, exponents, strict=True)], math.inf
            )
            for k in range(len(self.parts[0].sides))
        ]
        weights = [p.weight - 2 * e for p, e in zip(self.parts, exponents, strict=True)]
        total = 2 * torch.logsumexp(torch.stack(sides), 0) + self.norm(weights, 1.0)
        return float(torch.logsumexp(total, 0)) + self.constant

    def exponents(self, y: Tensor) -> list[Tensor]:
        """⟨c, y⟩ for the entries of every part."""
        families, made = self.scales.split(y), []
        for part in self.parts:
            total = torch.zeros_like(part.weight)
            for leg in part.legs:
                total += leg.power * laid(families[leg.family], leg, part)
            made.append(total)
        return made

    def collected(self, entries: Sequence[Tensor], power: int = 1) -> Tensor:
        """Σ c_i^power u_i for numbers u on the entries of every part: the adjoint of `exponents`,
        for power 1."""
        made = torch.zeros(self.scales.size, dtype=torch.float64)
        families = self.scales.split(made)
        for part, u in zip(self.parts, entries, strict=True):
            for leg in part.legs:
                families[leg.family].add_(leg.power**power * _gathered(u, leg))
        return made

    def norm(self, sizes: Sequence[Tensor], p: float) -> Tensor:
        """log ‖·‖_p of the exponentials of all entries of each group, of shape (groups,)."""
        made = []
        for part, x in zip(self.parts, sizes, strict=True):
            if part.within:
                x = x.amax(part.within) if p == math.inf else torch.logsumexp(p * x, part.within)
            elif p != math.inf:
                x = p * x
            made.append(x.reshape(-1))
        flat, index = torch.cat(made), torch.cat([part.groups for part in self.parts])
        top = torch.full((self.groups,), -math.inf, dtype=flat.dtype)
        top = top.scatter_reduce(0, index, flat, "amax")
        if p == math.inf:
            return top
        summed = torch.zeros_like(top).index_add(0, index, (flat - top[index]).exp())
        return (top + summed.log()) / p

    def summed(self, entries: Sequence[Tensor]) -> Tensor:
        """The sum of numbers on the entries over each group, of shape (groups,)."""
        total = torch.zeros(self.groups, dtype=torch.float64)
        for part, x in zip(self.parts, entries, strict=True):
            made = x.sum(part.within) if part.within else x
            total.index_add_(0, part.groups, made.reshape(-1))
        return total

    def spread(self, groups: Tensor) -> list[Tensor]:
        """Numbers of the groups on the entries of every part, to be broadcast."""
        return [
            groups[part.groups].reshape(
                [1 if k in part.within else n for k, n in enumerate(part.weight.shape)]
            )
            for part in self.parts
        ]


def _part(
    symmetry: ParameterSymmetry,
    block: Block,
    views: Sequence[Tensor],
    symmetric: bool,
    families: Collection[str],
) -> Part:
    """A block of the weights, their sensitivities and the numbers of their groups."""
    tensor, weight, index = views
    legs, alike, summed = _split(block, families, index)
    kept = [k for k in range(index.ndim) if k not in summed]
    sides = [tensor.abs()] if symmetric else [tensor.clamp(min=0), (-tensor).clamp(min=0)]
    if summed:
        sides, weight = [side.amax(summed) for side in sides], weight.sum(summed)
    index = index[tuple(slice(1) if k in alike else slice(None) for k in range(index.ndim))]
    placed = tuple(_leg(symmetry, leg, kept) for leg in legs)
    within = tuple(kept.index(k) for k in alike if k in kept)
    return Part(tuple(map(_log, sides)), _log(weight), placed, within, index.reshape(-1))


def _axes(leg: walk.Leg) -> tuple[int, ...]:
    return (*leg.copies, leg.axis)


def _split(
    block: Block, families: Collection[str], index: Tensor
) -> tuple[list[walk.Leg], list[int], list[int]]:
    """The legs of a block with scales that move, its axes within one group, and those of them on
    which no scale stands."""
    legs = [leg for leg in block.legs if leg.space in families and leg.power]
    scaled = {axis for leg in legs for axis in _axes(leg)}
    alike = _constant_axes(index)
    return legs, alike, [k for k in alike if k not in scaled]


def _constant_axes(index: Tensor) -> list[int]:
    """The axes along which a tensor does not change."""
    return [k for k in range(index.ndim) if bool((index == index.narrow(k, 0, 1)).all())]


def _leg(symmetry: ParameterSymmetry, leg: walk.Leg, kept: list[int]) -> Leg:
    """A leg of a block on the axes that are kept."""
    axes = tuple(kept.index(axis) for axis in _axes(leg))
    halves = isinstance(symmetry.spaces[leg.space].group, ComplexScaling)
    return Leg(leg.space, axes, float(leg.power), halves)


def _log(x: Tensor) -> Tensor:
    return torch.where(x > 0, x.log(), torch.full_like(x, NOTHING)).clamp(min=NOTHING)


def laid(scales: Tensor, leg: Leg, part: Part) -> Tensor:
    """Numbers of one family along the axes of a part that a leg stands on, of size 1 along the
    others."""
    wide = torch.cat([scales, scales], -1) if leg.halves else scales  # copies…, then the axis
    order = sorted(range(len(leg.axes)), key=lambda k: leg.axes[k])
    shape = [n if k in leg.axes else 1 for k, n in enumerate(part.weight.shape)]
    return wide.permute(order).reshape(shape)


def _gathered(u: Tensor, leg: Leg) -> Tensor:
    """The sum of numbers on the entries of a part that one scale of a family stands on."""
    others = [k for k in range(u.ndim) if k not in leg.axes]
    kept = sorted(leg.axes)
    summed = (u.sum(others) if others else u).permute([kept.index(k) for k in leg.axes])
    return summed.unflatten(-1, (2, -1)).sum(-2) if leg.halves else summed

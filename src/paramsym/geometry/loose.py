"""What stands against zeros, brought from one point to another.

Reduced points are compared where both sides of a space stand. What one side alone holds is not
determined by the function, but an element of the orbit still carries it along. With X what carries
a space and Y its dual, at points that agree elsewhere, g X_b = X_a and gᵀ Y_a = Y_b are linear in
g, and its least squares solve a Sylvester equation,

    (Y_a Y_aᵀ) g + g (X_b X_bᵀ) = X_a X_bᵀ + Y_a Y_bᵀ,

which the eigenvectors of both Gram matrices make diagonal. Where nothing stands on either side, any
completion that keeps g invertible will do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from paramsym.algebra import AbstractMonomial, Element
from paramsym.geometry.costs import scales_of
from paramsym.structure.action import act
from paramsym.structure.element import GroupElement
from paramsym.structure.layout import widened
from paramsym.structure.pairing import rows
from paramsym.structure.symmetry import ParameterSymmetry

Params = Mapping[str, Tensor]
_EMPTY = 1e-11  # of the largest eigenvalue of a Gram matrix: nothing stands there
_TURNS = 8
_LEVEL = 1e-13  # a step that moves less is none


def carried_along(
    plain: ParameterSymmetry, fixed: Params, moving: Params, spaces: Collection[str]
) -> GroupElement:
    """The element of some spaces that brings one point nearest to another, space by space.

    Args:
        plain: a symmetry without frames.
        fixed, moving: both points, which agree but for what is loose.
        spaces: scales and changes of basis that are loose.
    """
    element = GroupElement(plain)
    fixed = {n: widened(p) for n, p in fixed.items()}
    moving = {n: widened(p) for n, p in moving.items()}
    for _ in range(_TURNS):
        moved = 0.0
        for space in spaces:
            value = _nearest(plain, fixed, moving, space)
            if value is None:
                continue
            step = GroupElement(plain, ({space: value},))
            there = act(plain, step, moving)
            names = plain.parameters_of(space)
            before, after = (_apart(fixed, side, names) for side in (moving, there))
            if after < before:
                moving, element = there, step @ element
                moved = max(moved, before - after)
        if moved <= _LEVEL:
            break
    return element


def _apart(fixed: Params, moving: Params, names: Collection[str]) -> float:
    """The squared distance over some tensors, each relative to its size."""
    total = 0.0
    for name in names:
        one, other = fixed[name], moving[name]
        if one.is_floating_point() or one.is_complex():
            size = float(one.norm()) or 1.0
            total += float((one - other).norm() / size) ** 2
    return total


def _nearest(plain: ParameterSymmetry, fixed: Params, moving: Params, space: str) -> Element | None:
    sums = _sums(plain, fixed, moving, space)
    group = plain.spaces[space].group
    if isinstance(group, AbstractMonomial):
        return _scales(sums, group.signs) if scales_of(plain.spaces[space]) else None
    return _basis(sums)


class _Sums:
    """X_a X_bᵀ, X_b X_bᵀ, Y_a Y_bᵀ, Y_a Y_aᵀ over the blocks of a space; or their diagonals."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.across, self.within = [torch.zeros(shape, dtype=torch.float64) for _ in range(2)]
        self.back, self.against = [torch.zeros(shape, dtype=torch.float64) for _ in range(2)]


def _sums(plain: ParameterSymmetry, fixed: Params, moving: Params, space: str) -> _Sums:
    own = plain.spaces[space]
    copies = tuple(plain.spaces[base].size for base in own.over)
    diagonal = isinstance(own.group, AbstractMonomial)
    found = _Sums((*copies, own.size) if diagonal else (*copies, own.size, own.size))

    def product(x: Tensor, y: Tensor) -> Tensor:
        made = torch.linalg.vecdot(y, x) if diagonal else x @ y.mH
        return made.real if made.is_complex() else made

    for name in plain.parameters_of(space):
        if name not in fixed:
            continue
        for block in plain.blocks[name]:
            for leg in (leg for leg in block.legs if leg.space == space and abs(leg.power) == 1):
                one, other = (rows(block.view(side[name]), leg) for side in (fixed, moving))
                if leg.is_dual:
                    found.back += product(one, other)
                    found.against += product(one, one)
                else:
                    found.across += product(one, other)
                    found.within += product(other, other)
    return found


def _basis(sums: _Sums) -> Element | None:
    left, u = torch.linalg.eigh(sums.against)
    right, v = torch.linalg.eigh(sums.within)
    left, right = (x / x[..., -1:].clamp(min=1e-300) * x[..., -1:] for x in (left, right))
    wanted = u.mT @ (sums.across + sums.back) @ v
    weight = left.clamp(min=0)[..., :, None] + right.clamp(min=0)[..., None, :]
    top = weight.amax((-2, -1), keepdim=True).clamp(min=1e-300)
    known = weight > _EMPTY * top
    g = torch.where(known, wanted / weight.clamp(min=1e-300), 0.0)
    # where nothing stands on either side: the block between both null spaces, made one
    g = u @ (g + torch.where(known, 0.0, _ones_on(known))) @ v.mT
    values = torch.linalg.svdvals(g)
    if not bool((values[..., -1] > 1e-9 * values[..., 0]).all()):
        return None
    return Element(matrix=g)


def _ones_on(unknown_is_false: Tensor) -> Tensor:
    """A partial permutation on the block of entries that are not known: it starts in the corner."""
    eye = torch.eye(unknown_is_false.shape[-1], dtype=torch.float64)
    return eye.expand(unknown_is_false.shape)


def _scales(sums: _Sums, signs: bool) -> Element | None:
    """y with y x_b = x_a and y_b = y y_a: least squares, one number for each unit."""
    weight = sums.within + sums.against
    scale = torch.where(weight > 0, (sums.across + sums.back) / weight.clamp(min=1e-300), 1.0)
    bad = (scale == 0) if signs else (scale <= 0)
    return Element(diagonal=torch.where(bad, 1.0, scale))

"""Polarity masks of hidden units, as attacks meet them: signs that matching finds like any other.

A unit of polarity s = ±1 computes σ_s(z) = s σ(s z), so that its tensors change their sign together
and the function stays. Whoever evaluates the network must know s, and can take it away again;
whoever does not know it matches units up to sign.
"""

from __future__ import annotations

from dataclasses import replace

from paramsym.algebra import AbstractMonomial
from paramsym.algebra.lattice import monomial
from paramsym.structure.space import Space
from paramsym.structure.symmetry import ParameterSymmetry


def with_signs(symmetry: ParameterSymmetry) -> ParameterSymmetry:
    """A symmetry in which hidden units have signs besides: that of a network with unknown masks.

    Inputs and outputs have none, nor has what others stand over, whose signs these have.
    """
    bases = {base for space in symmetry.spaces.values() for base in space.over}
    left = symmetry.ends | bases
    spaces = {n: s if n in left else _signed(symmetry, s) for n, s in symmetry.spaces.items()}
    return replace(symmetry, spaces=spaces)


def _signed(symmetry: ParameterSymmetry, space: Space) -> Space:
    """A space whose units have signs, if its axes can say so: entrywise powers are whole."""
    group = space.group
    if not isinstance(group, AbstractMonomial):
        return space
    if any(leg.power.denominator != 1 for leg in symmetry.legs(space.name)):
        return space
    return replace(space, group=monomial(group.size, group.permutes, True, group.scales))

"""The meet of two groups: the largest listed group inside both.

Requirements on a space are combined by meets. What feeds a ReLU and what leaves a linear layer
agree on GL(n) & Monomial(n) = Monomial(n); an RMS norm on the way makes that a Permutation(n).

The meet is commutative, associative and idempotent. It is the intersection of the two groups,
except where that is not on the list; then it is the largest listed group inside the intersection:

- complex scalings with monomial groups meet in more than 1 (quarter turns; equal scales for both
  halves of a pair), which is not listed: Trivial;
- complex scalings with wreath products, likewise;
- wreath products whose blocks do not nest keep only their diagonal part, once the blocks that are
  common to both are as large as the space.
"""

import math

from .complex_scaling import AbstractComplexScaling, ComplexScaling, UnitComplex
from .group import Group, lists_meets, meet
from .linear import GeneralLinear, Orthogonal, OrthogonalFixingOnes
from .monomial import (
    AbstractMonomial,
    Monomial,
    Permutation,
    PositiveScaling,
    Scaling,
    SignedPermutation,
    Signs,
    Trivial,
)
from .wreath import Wreath


def monomial(size: int, permutes: bool, signs: bool, scales: bool) -> AbstractMonomial:
    """The monomial group that answers the three questions so."""
    if permutes and scales:
        return Monomial(size, signed=signs)
    if permutes:
        return SignedPermutation(size) if signs else Permutation(size)
    if scales:
        return Scaling(size) if signs else PositiveScaling(size)
    return Signs(size) if signs else Trivial(size)


# Each list below answers one order of the two groups, and None where it has nothing to say. They
# are asked from the first to the last, so a later one meets no pair of an earlier one.


@lists_meets
def _one_copy(g: Group, h: Group) -> Group | None:
    """A wreath product over one copy is its base in another layout of values."""
    match g, h:
        case Wreath(copies=1), Wreath(copies=1):
            return Wreath(meet(g.base, h.base), 1)
        case Wreath(copies=1), _:
            return Wreath(meet(g.base, h), 1)
    return None


@lists_meets
def _chains(g: Group, h: Group) -> Group | None:
    """A group and one inside it."""
    match g, h:
        case (
            (GeneralLinear(), _)
            | (Orthogonal(), OrthogonalFixingOnes())
            | (ComplexScaling(), UnitComplex())
        ):
            return h
    return None


@lists_meets
def _monomial(g: Group, h: Group) -> Group | None:
    """A monomial group meets what is monomial in the other one."""
    part = _monomial_part(g)
    if part is None or not isinstance(h, AbstractMonomial):
        return None
    return monomial(
        g.size, part.permutes and h.permutes, part.signs and h.signs, part.scales and h.scales
    )


@lists_meets
def _complex(g: Group, h: Group) -> Group | None:
    """Of the complex numbers those of size 1 are orthogonal; z(1 + i) = 1 + i only for z = 1."""
    match g, h:
        case AbstractComplexScaling(), Orthogonal():
            return UnitComplex(g.size)
        case AbstractComplexScaling(), (OrthogonalFixingOnes() | AbstractMonomial() | Wreath()):
            return Trivial(g.size)
    return None


@lists_meets
def _wreath(g: Group, h: Group) -> Group | None:
    """A block monomial matrix is orthogonal, fixes 1 or is monomial where each of its blocks is."""
    match g, h:
        case Wreath(), (Orthogonal() | OrthogonalFixingOnes()):
            return Wreath(meet(g.base, type(h)(g.base.size)), g.copies)
        case Wreath(), AbstractMonomial():
            base = meet(g.base, monomial(g.base.size, h.permutes, h.signs, h.scales))
            blocks = Wreath(base, g.copies)
            # Without permutations: the same diagonal group on every copy, so one on all of them.
            return blocks if h.permutes else _diagonal_part(blocks)
        case Wreath(), Wreath():
            return _meet_blocks(g, h)
    return None


def _meet_blocks(g: Wreath, h: Wreath) -> Group:
    """Two block structures: the blocks of the meet are the least common blocks."""
    if g.copies == h.copies:
        return Wreath(meet(g.base, h.base), g.copies)
    block = math.lcm(g.base.size, h.base.size)
    copies = g.size // block

    def inside(w: Wreath) -> Group:
        """What the wreath product allows inside one common block."""
        return w.base if w.base.size == block else Wreath(w.base, block // w.base.size)

    if copies == 1 and g.base.size < block and h.base.size < block:
        return meet(_diagonal_part(g), _diagonal_part(h))
    return Wreath(meet(inside(g), inside(h)), copies)


def _monomial_part(g: Group) -> AbstractMonomial | None:
    """The monomial matrices in g: orthogonal with entries ±1, fixing 1 with entries 1.

    None for the groups over pairs and blocks, which meet them in more than is listed.
    """
    match g:
        case AbstractMonomial():
            return g
        case GeneralLinear():
            return Monomial(g.size, signed=True)
        case Orthogonal():
            return SignedPermutation(g.size)
        case OrthogonalFixingOnes():
            return Permutation(g.size)
    return None


def _diagonal_part(g: Group) -> AbstractMonomial:
    """The largest listed diagonal group inside g: all signs, all positive scalings, or both."""
    part = _diagonal_part(g.base) if isinstance(g, Wreath) else _monomial_part(g)
    if part is None:
        return Trivial(g.size)
    return monomial(g.size, False, part.signs, part.scales)

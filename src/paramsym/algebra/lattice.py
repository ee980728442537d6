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

from .complex_scaling import ComplexScaling, UnitComplex
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


@lists_meets
def _meet(g: Group, h: Group) -> Group | None:
    """The meet where this order of the two is one of the cases; None otherwise."""
    n = g.size
    match g, h:
        # A wreath product over one copy is its base in another layout of values.
        case Wreath(copies=1), Wreath(copies=1):
            return Wreath(meet(g.base, h.base), 1)
        case Wreath(copies=1), _:
            return Wreath(meet(g.base, h), 1)
        case _, Wreath(copies=1):
            return None
        case GeneralLinear(), _:
            return h
        case AbstractMonomial(), AbstractMonomial():
            return monomial(
                n, g.permutes and h.permutes, g.signs and h.signs, g.scales and h.scales
            )
        # A monomial matrix is orthogonal where its entries are ±1, and fixes 1 where they are 1.
        case Orthogonal(), AbstractMonomial():
            return monomial(n, h.permutes, h.signs, False)
        case OrthogonalFixingOnes(), AbstractMonomial():
            return monomial(n, h.permutes, False, False)
        case Orthogonal(), OrthogonalFixingOnes():
            return h
        case ComplexScaling(), UnitComplex():
            return h
        case ((ComplexScaling() | UnitComplex()), Orthogonal()):
            return UnitComplex(n)
        # z (1 + i) = 1 + i only for z = 1.
        case ((ComplexScaling() | UnitComplex()), OrthogonalFixingOnes()):
            return Trivial(n)
        case ((ComplexScaling() | UnitComplex()), (AbstractMonomial() | Wreath())):
            return Trivial(n)
        # A block monomial matrix is orthogonal (fixes 1) where each of its blocks does.
        case Wreath(), Orthogonal():
            return Wreath(meet(g.base, Orthogonal(g.base.size)), g.copies)
        case Wreath(), OrthogonalFixingOnes():
            return Wreath(meet(g.base, OrthogonalFixingOnes(g.base.size)), g.copies)
        case Wreath(), AbstractMonomial():
            base = meet(g.base, monomial(g.base.size, h.permutes, h.signs, h.scales))
            if h.permutes:
                return Wreath(base, g.copies)
            # Without permutations: the same diagonal group on every copy, so one on all of them.
            return _diagonal_part(Wreath(base, g.copies))
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


def _diagonal_part(g: Group) -> AbstractMonomial:
    """The largest listed diagonal group inside g: all signs, all positive scalings, or both."""
    match g:
        case Wreath():
            part = _diagonal_part(g.base)
            return monomial(g.size, False, part.signs, part.scales)
        case AbstractMonomial():
            return monomial(g.size, False, g.signs, g.scales)
        case GeneralLinear():
            return Scaling(g.size)
        case Orthogonal():
            return Signs(g.size)
        case _:
            return Trivial(g.size)

"""Tables of instances. The properties are written once, elsewhere, and run over these tables."""

from paramsym.algebra import (
    ComplexScaling,
    GeneralLinear,
    Group,
    Monomial,
    Orthogonal,
    OrthogonalFixingOnes,
    Permutation,
    PositiveScaling,
    Scaling,
    SignedPermutation,
    Signs,
    Trivial,
    UnitComplex,
    Wreath,
)


def plain_groups(n: int) -> list[Group]:
    """Every group that acts on R^n as a whole."""
    groups: list[Group] = [
        Trivial(n),
        Signs(n),
        PositiveScaling(n),
        Scaling(n),
        Permutation(n),
        SignedPermutation(n),
        Monomial(n),
        Monomial(n, signed=True),
        Orthogonal(n),
        OrthogonalFixingOnes(n),
        GeneralLinear(n),
    ]
    return groups if n % 2 else [*groups, ComplexScaling(n), UnitComplex(n)]


def groups_on(n: int, depth: int = 1) -> list[Group]:
    """Every group on R^n, with wreath products nested to a depth."""
    groups = plain_groups(n)
    if depth:
        for copies in (k for k in range(1, n + 1) if n % k == 0):
            groups += [Wreath(base, copies) for base in groups_on(n // copies, depth - 1)]
    return groups


# One of each kind at generic sizes, the smallest sizes, and wreath products over each kind.
GROUPS: list[Group] = [
    *plain_groups(6),
    *plain_groups(1),
    OrthogonalFixingOnes(2),
    ComplexScaling(2),
    Wreath(Trivial(2), 3),
    Wreath(Permutation(3), 2),
    Wreath(Monomial(2, signed=True), 3),
    Wreath(ComplexScaling(4), 2),
    Wreath(UnitComplex(2), 3),
    Wreath(OrthogonalFixingOnes(4), 2),
    Wreath(GeneralLinear(3), 2),
    Wreath(GeneralLinear(3), 1),
    Wreath(Wreath(GeneralLinear(2), 2), 2),
]

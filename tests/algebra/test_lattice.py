"""The meet is a lattice operation, and it is sound: what is in G & H is in G and in H."""

import functools
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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
from tests.instances import groups_on, plain_groups


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 12])
def test_meet_is_commutative_and_idempotent(n: int):
    groups = groups_on(n)
    for g in groups:
        assert g & g == g
    for g, h in itertools.combinations(groups, 2):
        assert g & h == h & g


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6])
def test_meet_is_associative_over_every_triple(n: int):
    # The triples share most of their pairs: groups are counted, and a pair meets once.
    groups = list(groups_on(n))
    number = {group: i for i, group in enumerate(groups)}

    @functools.cache
    def met(i: int, j: int) -> int:
        both = groups[i] & groups[j]
        if number.setdefault(both, len(groups)) == len(groups):
            groups.append(both)
        return number[both]

    for a, b, c in itertools.product(range(len(groups)), repeat=3):
        assert met(met(a, b), c) == met(a, met(b, c)), [str(groups[i]) for i in (a, b, c)]


NESTED = groups_on(12, depth=2)


@settings(max_examples=1500, deadline=None)
@given(st.sampled_from(NESTED), st.sampled_from(NESTED), st.sampled_from(NESTED))
def test_meet_is_a_lattice_operation_on_nested_wreath_products(a: Group, b: Group, c: Group):
    assert a & b == b & a
    assert (a & b) & c == a & (b & c)
    assert a & (a & b) == a & b
    assert (a & b) <= a and (a & b) <= b


@pytest.mark.parametrize("n", [4, 6])
def test_meet_is_inside_both(n: int, generator):
    groups = groups_on(n)
    for g, h in itertools.combinations_with_replacement(groups, 2):
        both = g & h
        sample = both.matrix(both.sample(generator, dtype=torch.float64), torch.float64)
        assert g.contains_matrix(sample), f"{g} & {h} = {both} is not inside {g}"
        assert h.contains_matrix(sample), f"{g} & {h} = {both} is not inside {h}"


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(NESTED), st.sampled_from(NESTED), st.integers(0, 2**31))
def test_meet_of_nested_wreath_products_is_inside_both(g: Group, h: Group, seed: int):
    both = g & h
    element = both.sample(torch.Generator().manual_seed(seed), dtype=torch.float64)
    sample = both.matrix(element, torch.float64)
    assert g.contains_matrix(sample) and h.contains_matrix(sample)


# Wreath products over one copy are left out: they are their base, under another name.
DISTINCT = plain_groups(4) + [
    Wreath(base, 2) for base in plain_groups(2) if base != OrthogonalFixingOnes(2)
]
# Pairs where the intersection is larger than anything on the list; the module says so.
NOT_LISTED = (ComplexScaling, UnitComplex)


def test_subgroups_are_what_samples_say(generator):
    """G <= H exactly when every sample of G is in H: no meet is smaller than it need be."""
    for g, h in itertools.product(DISTINCT, repeat=2):
        element = g.sample(generator, batch=(20,), dtype=torch.float64)
        inside = h.contains_matrix(g.matrix(element, torch.float64))
        if inside and not g <= h:
            parts = (g, h, getattr(g, "base", None), getattr(h, "base", None))
            assert any(isinstance(part, NOT_LISTED) for part in parts), f"{g} <= {h}"
        else:
            assert inside == (g <= h), f"{g} <= {h}"


@pytest.mark.parametrize(
    ("g", "h", "expected"),
    [
        (GeneralLinear(6), Orthogonal(6), Orthogonal(6)),
        (GeneralLinear(6), ComplexScaling(6), ComplexScaling(6)),
        (Orthogonal(6), Monomial(6), Permutation(6)),
        (Orthogonal(6), Monomial(6, signed=True), SignedPermutation(6)),
        (Orthogonal(6), Scaling(6), Signs(6)),
        (Orthogonal(6), OrthogonalFixingOnes(6), OrthogonalFixingOnes(6)),
        (Orthogonal(6), ComplexScaling(6), UnitComplex(6)),
        (Permutation(6), OrthogonalFixingOnes(6), Permutation(6)),
        (SignedPermutation(6), OrthogonalFixingOnes(6), Permutation(6)),
        (PositiveScaling(6), Permutation(6), Trivial(6)),
        (PositiveScaling(6), Monomial(6), PositiveScaling(6)),
        (Scaling(6), Monomial(6), PositiveScaling(6)),
        (ComplexScaling(6), Monomial(6), Trivial(6)),
        (UnitComplex(6), OrthogonalFixingOnes(6), Trivial(6)),
        (Wreath(GeneralLinear(3), 2), Orthogonal(6), Wreath(Orthogonal(3), 2)),
        (Wreath(GeneralLinear(3), 2), Monomial(6), Wreath(Monomial(3), 2)),
        (Wreath(GeneralLinear(3), 2), PositiveScaling(6), PositiveScaling(6)),
        (Wreath(Orthogonal(3), 2), Scaling(6), Signs(6)),
        (
            Wreath(GeneralLinear(4), 2),
            Wreath(ComplexScaling(4), 2),
            Wreath(ComplexScaling(4), 2),
        ),
        (
            Wreath(GeneralLinear(2), 4),
            Wreath(Orthogonal(4), 2),
            Wreath(Wreath(Orthogonal(2), 2), 2),
        ),
        (Wreath(GeneralLinear(3), 2), Wreath(GeneralLinear(2), 3), Scaling(6)),
        (Wreath(GeneralLinear(3), 1), Orthogonal(3), Wreath(Orthogonal(3), 1)),
    ],
    ids=str,
)
def test_meets_on_the_page(g: Group, h: Group, expected: Group):
    assert g & h == h & g == expected
    assert expected <= g and expected <= h


def test_meet_of_spaces_of_different_size_is_refused():
    with pytest.raises(ValueError, match=r"Permutation\(3\) & Orthogonal\(4\).* 3 and 4"):
        _ = Permutation(3) & Orthogonal(4)


def test_a_group_unknown_to_the_lattice_is_refused():
    stranger = type("Stranger", (Group,), dict.fromkeys(Group.__abstractmethods__))()
    stranger.size = 3
    with pytest.raises(TypeError, match=r"no meet is known for Stranger and Orthogonal"):
        _ = stranger & Orthogonal(3)

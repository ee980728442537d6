import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramsym.equivariant import (
    NoSuchComponentError,
    RankTooLargeError,
    components,
    decompose,
    image_dihedral,
    image_shift,
    symmetric_on_subsets,
)
from paramsym.equivariant.component import Component
from paramsym.equivariant.determinantal import degree
from tests.equivariant.instances import cycles

PUBLISHED = (13, 10, 9, 8, 7, 5, 3, 1, 0, 0, 0, 0, 0, 0, 0)


def brute_force(costs, tops, rank):
    """The maximal vectors within the rank, from all of them."""
    everything = itertools.product(*(range(top + 1) for top in tops))
    fitting = {v for v in everything if sum(c * r for c, r in zip(costs, v, strict=True)) <= rank}

    def grown(v):
        return (v[:i] + (v[i] + 1,) + v[i + 1 :] for i in range(len(v)))

    maximal = [v for v in fitting if not any(w in fitting for w in grown(v))]
    total = {v: sum(c * r for c, r in zip(costs, v, strict=True)) for v in maximal}
    exact = {v for v in maximal if total[v] == rank}
    return exact, set(maximal) - exact


def test_the_published_numbers():
    family = components(image_shift(28, 28), 99)
    assert family.count == 72_425_986_088_826
    component = family.component(PUBLISHED)
    assert component.parameter_count == 5_544
    assert 2 * 99 * 784 == 155_232
    assert component.dimension == 4_717
    assert component.rank == 99
    assert family[family.index(component)] == component


def test_the_whole_variety_has_further_components_of_lower_rank():
    """Both real blocks full, and one unit of rank left that no complex block can use."""
    family = components(image_shift(28, 28), 99)
    assert family.smaller.count == 354_817_320
    first = next(iter(family.smaller))
    assert first.rank == 98 and first.ranks[0] == first.ranks[-1] == 28


def test_counting_and_listing_agree_with_brute_force(group):
    d = decompose(group)
    costs = [v.dimension for v in d.isotypics]
    tops = [v.largest_rank for v in d.isotypics]
    if np.prod([t + 1 for t in tops]) > 3000:
        pytest.skip("too many vectors to list")
    for rank in range(d.largest_rank + 1):
        family = components(group, rank)
        exact, smaller = brute_force(costs, tops, rank)
        listed = [c.ranks for c in family]
        assert family.count == len(listed) == len(exact)
        assert set(listed) == exact
        assert listed == sorted(listed, reverse=True)
        assert [family[k].ranks for k in range(family.count)] == listed
        assert [family.index(c) for c in family] == list(range(family.count))
        found = [c.ranks for c in family.smaller]
        assert family.smaller.count == len(found) and set(found) == smaller


@given(st.permutations(range(8)), st.integers(0, 8))
@settings(deadline=None, max_examples=60)
def test_cyclic_counts_agree_with_the_eigenvalues_of_the_permutation_matrix(sigma, rank):
    values = np.linalg.eigvals(np.eye(8)[list(sigma)])
    keys, counts = np.unique(np.round(values[values.imag > -1e-9], 6), return_counts=True)
    costs = [1 if abs(k.imag) < 1e-5 else 2 for k in keys]
    exact, smaller = brute_force(costs, counts.tolist(), rank)
    family = components(list(sigma), rank)
    assert family.count == len(exact)
    assert family.smaller.count == len(smaller)


def test_random_matrices_of_a_component_have_its_rank_and_commute(group, rng):
    d = decompose(group)
    for rank in range(1, d.largest_rank + 1):
        family = components(d, rank)
        if not family.count:
            continue
        component = family.sample(rng)
        matrix = component.sample(rng)
        assert d.equivariance_error(matrix) <= 1e-14
        assert np.linalg.matrix_rank(matrix) == rank
        assert component.contains(matrix)
        assert component.block_ranks(matrix) == component.ranks
        decoder, encoder = component.factorise(matrix)
        assert decoder.shape == (group.degree, rank)
        np.testing.assert_allclose(decoder @ encoder, matrix, atol=1e-12)
        for index in range(len(group.generators)):
            action = component.latent_action(index)
            np.testing.assert_allclose(encoder @ group.matrix(index), action @ encoder, atol=1e-12)
        others = [c for c in itertools.islice(family, 8) if c != component]
        assert not any(c.contains(matrix) for c in others)


def parameterisation_rank(component: Component, rng) -> int:
    """The rank of the derivative of (decoder, encoder) ↦ decoder · encoder, all in one matrix."""
    d = component.decomposition
    decoders, encoders = [], []
    for v, r in zip(d.isotypics, component.ranks, strict=True):
        decoders.append(rng.standard_normal((v.target, r, v.size)))
        encoders.append(rng.standard_normal((r, v.source, v.size)))
    decoder, encoder = component.decoder(decoders), component.encoder(encoders)
    columns = []
    for side, blocks in ((0, decoders), (1, encoders)):
        for block in blocks:
            for place in np.ndindex(block.shape):
                kept = block[place]
                zero = [np.zeros_like(b) for b in blocks]
                number = next(i for i, b in enumerate(blocks) if b is block)
                zero[number][place] = 1.0
                step = component.encoder(zero) if side else component.decoder(zero)
                columns.append((decoder @ step if side else step @ encoder).ravel())
                assert block[place] == kept
    if not columns:
        return 0
    values = np.linalg.svd(np.array(columns), compute_uv=False)
    return int((values > 1e-9 * values[0]).sum())


def test_dimension_is_the_rank_of_the_parameterisation(group):
    rng = np.random.default_rng(3)
    d = decompose(group)
    for rank in range(0, d.largest_rank + 1, 2):
        for component in itertools.islice(components(d, rank), 3):
            if component.parameter_count > 250:
                continue
            assert parameterisation_rank(component, rng) == component.dimension
            assert component.parameter_count - component.dimension == component.fiber_dimension


def test_maps_between_different_spaces_have_components_too():
    six, four = cycles(6, [list(range(6))]), cycles(4, [[0, 1, 2, 3]])
    family = components(six, 2, four)
    assert family.decomposition.shape == (4, 6)
    assert [c.ranks for c in family] == [
        c
        for c in brute_force(
            [v.dimension for v in family.decomposition.isotypics],
            [v.largest_rank for v in family.decomposition.isotypics],
            2,
        )[0]
    ]
    for component in family:
        matrix = component.sample(np.random.default_rng(0))
        assert np.linalg.matrix_rank(matrix) == 2 and component.contains(matrix)
        assert parameterisation_rank(component, np.random.default_rng(1)) == component.dimension


def test_singular_points_are_those_of_lower_rank():
    group = cycles(4, [[0, 1], [2, 3]])  # two blocks of 2 × 2
    component = components(group, 2).component((1, 1))
    rng = np.random.default_rng(0)
    smooth = component.sample(rng)
    assert not component.is_singular(smooth)
    singular = components(group, 1).component((1, 0)).sample(rng)
    assert component.contains(singular) and component.is_singular(singular)
    assert component.singular_locus.endswith("rank A[1,1] < 1 or rank A[2,1] < 1")
    assert components(group, 2).component((2, 0)).singular_locus.startswith("smooth")
    with pytest.raises(ValueError, match="Use project"):
        component.is_singular(rng.standard_normal((4, 4)))


def test_singular_points_of_the_whole_variety():
    group = cycles(4, [[0, 1], [2, 3]])
    family = components(group, 2)
    rng = np.random.default_rng(0)
    assert not family.is_singular(family.component((1, 1)).sample(rng))
    assert not family.is_singular(family.component((2, 0)).sample(rng))
    # Rank one can grow in either block: the point lies on (2, 0) and on (1, 1).
    assert family.is_singular(components(group, 1).component((1, 0)).sample(rng))
    # Three points on the line of the trivial block of a 3-cycle: rank 2 leaves it alone.
    three = components(cycles(3, [[0, 1, 2]]), 1)
    assert not three.is_singular(three[0].sample(rng))


@pytest.mark.parametrize(
    "m, n, r, expected",
    [
        (2, 2, 1, 2),
        (2, 3, 1, 3),
        (3, 3, 1, 6),
        (3, 3, 2, 3),
        (4, 4, 2, 20),
        (5, 5, 2, 175),
        (3, 5, 3, 1),
        (4, 4, 0, 1),
    ],
)
def test_degrees_of_determinantal_varieties(m, n, r, expected):
    assert degree(m, n, r) == degree(n, m, r) == expected


@pytest.mark.parametrize(
    "make, rank",
    [
        (lambda: symmetric_on_subsets(12), 55),
        (lambda: image_dihedral(32), 300),
        (lambda: image_shift(28, 28, "both"), 99),
    ],
    ids=["S12 on 66 pairs", "dihedral on 32 x 32", "both shifts on 28 x 28"],
)
def test_large_groups_are_counted_and_listed_in_seconds(make, rank):
    start = time.perf_counter()
    family = components(make(), rank)
    listed = list(itertools.islice(family, 100))
    assert family.count >= len(listed) > 0
    assert all(c.rank == rank for c in listed)
    family[family.count // 2]
    assert time.perf_counter() - start < 5


def test_counts_of_the_large_groups():
    assert [v.dimension for v in decompose(symmetric_on_subsets(12)).isotypics] == [1, 11, 54]
    both = decompose(image_shift(28, 28, "both"))
    assert [sum(v.size == s for v in both.isotypics) for s in (1, 2)] == [4, 390]
    from math import comb

    expected = sum(comb(4, a) * comb(390, (99 - a) // 2) for a in (1, 3))
    assert components(both, 99).count == expected
    dihedral = decompose(image_dihedral(32))
    assert sorted((v.dimension, v.source) for v in dihedral.isotypics) == [
        (1, 120),
        (1, 120),
        (1, 136),
        (1, 136),
        (2, 256),
    ]


def test_errors_offer_the_nearest_components():
    family = components(image_shift(28, 28), 99)
    wrong = (13, 10, 9, 8, 7, 5, 3, 2) + (0,) * 7
    with pytest.raises(NoSuchComponentError) as caught:
        family.component(wrong)
    message = str(caught.value)
    assert "its total rank is 101, not 99" in message
    assert str(caught.value.nearest[0]) in message
    assert len(caught.value.nearest) == 3
    for ranks in caught.value.nearest:
        assert family.component(ranks).rank == 99
        assert sum(abs(a - b) for a, b in zip(ranks, wrong, strict=True)) == 1
    with pytest.raises(NoSuchComponentError, match="block 1,1 allows ranks 0 to 28, not 29"):
        family.component((29,) + PUBLISHED[1:])
    with pytest.raises(NoSuchComponentError, match="2 entries and the group has 15 blocks"):
        family.component((1, 2))


def test_a_rank_that_no_component_attains():
    family = components(symmetric_on_subsets(12), 20)  # 1 + 11 = 12 is the nearest below
    assert family.count == 0 and list(family) == []
    assert [c.ranks for c in family.smaller] == [(1, 1, 0)]
    with pytest.raises(NoSuchComponentError, match="No rank vector is valid"):
        family.component((1, 1, 0))


@pytest.mark.parametrize("rank", [-1, 5])
def test_too_large_a_rank_is_refused(rank):
    with pytest.raises(RankTooLargeError, match=rf"rank {rank} was asked for.*0 to 4"):
        components([1, 2, 3, 0], rank)


def test_an_index_out_of_range_is_refused():
    with pytest.raises(IndexError, match="there are 2 components"):
        components([1, 2, 3, 0], 1)[2]

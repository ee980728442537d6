from math import comb

import numpy as np
import pytest

from paramsym.equivariant import (
    InvariantVariety,
    RankTooLargeError,
    ShapeMismatchError,
    image_shift,
)
from tests.equivariant.instances import cycles

SOURCE = cycles(5, [[0, 2, 3], [1, 4]])


def test_the_source_example():
    variety = InvariantVariety(SOURCE, rows=2, rank=1)
    folded = np.array([[1.0, 3.0], [2.0, 6.0]])
    matrix = variety.expand(folded)
    np.testing.assert_array_equal(matrix, [[1, 3, 1, 1, 3], [2, 6, 2, 2, 6]])
    np.testing.assert_array_equal(variety.compress(matrix), folded)
    assert variety.contains(matrix) and not variety.is_singular(matrix)
    assert (variety.dimension, variety.degree, variety.ed_degree) == (3, 2, 2)
    assert variety.singular_locus == "the invariant matrices of rank < 1"
    assert variety.is_singular(np.zeros((2, 5)))


@pytest.mark.parametrize("rows, rank", [(3, 1), (3, 2), (5, 3), (2, 2)])
def test_projection_is_invariant_of_bounded_rank_and_nearest(group, rows, rank, rng):
    if rank > min(rows, group.degree):
        pytest.skip("no such rank")
    variety = InvariantVariety(group, rows, rank)
    matrix = rng.standard_normal((rows, group.degree))
    nearest = variety.project(matrix)
    assert variety.contains(nearest)
    for index in range(len(group.generators)):
        np.testing.assert_allclose(nearest @ group.matrix(index), nearest, atol=1e-13)
    distance = np.linalg.norm(matrix - nearest)
    for scale in (1e-3, 0.1, 1):
        other = variety.project(nearest + scale * rng.standard_normal(matrix.shape))
        assert np.linalg.norm(matrix - other) >= distance - 1e-12
    k = len(group.orbits)
    assert variety.ed_degree == comb(min(rows, k), min(rank, k))
    if k < group.degree:
        assert not variety.contains(matrix)


def test_fibers_of_the_factorisation(group, rng):
    rows = 4
    k = len(group.orbits)
    rank = min(k, rows, 2)
    variety = InvariantVariety(group, rows, rank)
    matrix = variety.expand(rng.standard_normal((rows, rank)) @ rng.standard_normal((rank, k)))
    decoder, encoder = variety.factorise(matrix)
    np.testing.assert_allclose(decoder @ encoder, matrix, atol=1e-12)
    change = rng.standard_normal((rank, rank)) + 3 * np.eye(rank)
    moved = variety.move_in_fiber(decoder, encoder, change)
    np.testing.assert_allclose(moved[0] @ moved[1], matrix, atol=1e-12)
    found = variety.fiber_element((decoder, encoder), moved)
    np.testing.assert_allclose(found, change, atol=1e-10)
    # The weight sharing of the encoder survives: its columns agree along orbits.
    np.testing.assert_allclose(variety.compress_encoder(moved[1]) @ variety.indicator, moved[1])


def test_every_factorisation_of_full_rank_shares_weights(rng):
    """rank M = k: B = T E for some T, however the factors were found."""
    variety = InvariantVariety(SOURCE, rows=5, rank=2)
    matrix = variety.expand(rng.standard_normal((5, 2)))
    left, values, right = np.linalg.svd(matrix)
    encoder = right[:2]  # knows nothing of the group
    change = encoder @ np.linalg.pinv(variety.indicator)
    np.testing.assert_allclose(change @ variety.indicator, encoder, atol=1e-12)


def test_weight_sharing_pattern():
    pattern = InvariantVariety(SOURCE, rows=5, rank=2).weight_sharing()
    np.testing.assert_array_equal(pattern, [[1, 2, 1, 1, 2], [3, 4, 3, 3, 4]])


def test_ranks_between_k_and_the_shape_bound_nothing():
    variety = InvariantVariety(SOURCE, rows=5, rank=4)
    assert variety.effective_rank == 2
    assert variety.dimension == 10 and variety.ed_degree == 1
    assert variety.singular_locus.startswith("smooth")


def test_the_reduction_to_one_permutation_changes_nothing():
    both = image_shift(3, 4, "both")
    variety = InvariantVariety(both, 3, 1)
    assert InvariantVariety(variety.cyclic, 3, 1).orbits == variety.orbits


def test_errors():
    with pytest.raises(RankTooLargeError, match="rank 3 was asked for.*0 to 2"):
        InvariantVariety(SOURCE, rows=2, rank=3)
    variety = InvariantVariety(SOURCE, rows=2, rank=1)
    with pytest.raises(ShapeMismatchError):
        variety.compress(np.zeros((2, 4)))
    with pytest.raises(ValueError, match=r"Use \.project\(matrix\) first"):
        variety.is_singular(np.arange(10.0).reshape(2, 5))

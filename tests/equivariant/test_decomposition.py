import time

import numpy as np
import pytest

from paramsym.equivariant import (
    PermutationGroup,
    ShapeMismatchError,
    decompose,
    image_dihedral,
    image_shift,
    symmetric_on_subsets,
)
from paramsym.equivariant.division import realise
from paramsym.equivariant.orbits import orbitals
from tests.equivariant.instances import GROUPS, cycles, quaternion_group


def reynolds(source: PermutationGroup, target: PermutationGroup, matrix: np.ndarray) -> np.ndarray:
    """The average over every element of the group, one by one."""
    n, m = source.degree, target.degree
    joined = [
        g + tuple(n + i for i in h)
        for g, h in zip(source.generators, target.generators, strict=True)
    ]
    frontier = [tuple(range(n + m))]
    seen = set(frontier)
    while frontier:
        following = []
        for element in frontier:
            for g in joined:
                image = tuple(g[i] for i in element)
                if image not in seen:
                    seen.add(image)
                    following.append(image)
        frontier = following
    total = np.zeros_like(matrix)
    for element in seen:
        g, h = np.array(element[:n]), np.array(element[n:]) - n
        total[h[:, None], g[None, :]] += matrix
    return total / len(seen)


@pytest.mark.parametrize("name", GROUPS)
def test_blocks_have_the_known_types_dimensions_and_multiplicities(name):
    group, expected = GROUPS[name]
    found = sorted((v.size, v.dimension, v.source) for v in decompose(group).isotypics)
    assert found == sorted(expected)


def test_the_basis_is_orthogonal_and_blocks_commute_with_the_group(group, rng):
    d = decompose(group)
    n = group.degree
    np.testing.assert_allclose(d.source_basis.T @ d.source_basis, np.eye(n), atol=1e-13)
    matrix = d.average(rng.standard_normal((n, n)))
    assert d.equivariance_error(matrix) <= 1e-14
    # In adapted coordinates it is block diagonal, I ⊗ realise(A) for each block.
    adapted = d.source_basis.T @ matrix @ d.source_basis
    row = 0
    for v, block in zip(d.isotypics, d.blocks(matrix), strict=True):
        for _ in range(v.slices):
            width = v.source * v.size
            piece = adapted[row : row + width, row : row + width]
            np.testing.assert_allclose(piece, realise(block), atol=1e-13)
            adapted[row : row + width, row : row + width] = 0
            row += width
    assert np.abs(adapted).max() < 1e-13


def test_the_projection_is_the_average_over_the_group(group, rng):
    matrix = rng.standard_normal((group.degree, group.degree))
    expected = reynolds(group, group, matrix)
    np.testing.assert_allclose(decompose(group).average(matrix), expected, atol=1e-13)


def test_the_dimension_counts_orbits_on_pairs(group):
    assert decompose(group).dimension == orbitals(group.arrays, group.arrays)[0]


def test_a_matrix_that_does_not_commute_is_noticed(group, rng):
    d = decompose(group)
    matrix = rng.standard_normal(d.shape)
    if d.dimension < matrix.size:
        assert d.equivariance_error(matrix) > 1e-3


def test_the_source_example_after_the_base_change():
    """I₃ ⊕ (−I₂) ⊕ two quarter turns for the rotation of 3 × 3 images."""
    group, _ = GROUPS["rotation 3x3"]
    d = decompose(group)
    turned = d.source_basis.T @ group.matrix(0) @ d.source_basis
    expected = np.diag([1.0, 1, 1, 0, 0, 0, 0, -1, -1])
    quarter = turned[3:5, 3:5]
    np.testing.assert_allclose(np.abs(quarter), [[0, 1], [1, 0]], atol=1e-14)
    expected[3:5, 3:5] = expected[5:7, 5:7] = quarter
    np.testing.assert_allclose(turned, expected, atol=1e-14)
    assert [v.name for v in d.isotypics] == ["1,1", "4,3", "2,1"]


@pytest.mark.parametrize("order", [28, 5, 6])
def test_names_follow_the_source(order):
    names = [v.name for v in decompose(image_shift(1, order)).isotypics]
    for name in names:
        order_, power = map(int, name.split(","))
        assert np.gcd(order_, power) == 1 and 1 / 2 <= power / order_ <= 1
    if order == 28:
        assert names[:4] == ["1,1", "28,27", "14,13", "28,25"] and names[-1] == "2,1"


PAIRS = {
    "6-cycle onto 3 points": (cycles(6, [list(range(6))]), cycles(3, [[0, 1, 2]])),
    "6-cycle onto 4-cycle": (cycles(6, [list(range(6))]), cycles(4, [[0, 1, 2, 3]])),
    "S4 pairs to points": (symmetric_on_subsets(4), symmetric_on_subsets(4, 1)),
    "S5 points to pairs": (symmetric_on_subsets(5, 1), symmetric_on_subsets(5)),
    "dihedral 4x4 to 2x2": (image_dihedral(4), image_dihedral(2)),
    "Q8 to its double": (
        quaternion_group(),
        PermutationGroup(tuple(g + tuple(8 + i for i in g) for g in quaternion_group().generators)),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_maps_between_different_representations(name, rng):
    source, target = PAIRS[name]
    d = decompose(source, target)
    assert d.dimension == orbitals(target.arrays, source.arrays)[0]
    matrix = rng.standard_normal(d.shape)
    average = d.average(matrix)
    assert d.equivariance_error(average) <= 1e-14
    np.testing.assert_allclose(average, reynolds(source, target, matrix), atol=1e-13)
    assert d.largest_rank == np.linalg.matrix_rank(average)


def test_the_two_actions_need_the_same_generators():
    with pytest.raises(ValueError, match="2 generators act on the source and 1 on the target"):
        decompose(symmetric_on_subsets(4), cycles(3, [[0, 1, 2]]))


def test_a_matrix_of_another_shape_is_refused():
    with pytest.raises(ShapeMismatchError, match=r"shape \(3, 4\).*need \(4, 4\)"):
        decompose(cycles(4, [[0, 1]])).blocks(np.zeros((3, 4)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: symmetric_on_subsets(12),
        lambda: image_dihedral(32),
        lambda: image_shift(28, 28, "both"),
    ],
    ids=["S12", "dihedral 32", "shifts 28"],
)
def test_large_groups_take_seconds(make):
    start = time.perf_counter()
    d = decompose(make())
    assert time.perf_counter() - start < 5
    x = np.random.default_rng(0).standard_normal((d.shape[1], 3))
    low = d.matrix([np.ones((v.target, v.source, v.size)) for v in d.isotypics])
    assert d.equivariance_error(low) <= 1e-14
    assert np.isfinite(low @ x).all()

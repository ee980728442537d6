import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy.combinatorics import Permutation, SymmetricGroup

from paramsym.equivariant import (
    NotAPermutationError,
    PermutationGroup,
    cycle_partition,
    finest_common_coarsening,
    image_dihedral,
    image_reflection,
    image_rotation,
    image_shift,
    reduce_to_cyclic,
    symmetric_on_subsets,
)
from paramsym.equivariant.groups import as_group, cycles_of


def test_cycles_images_arrays_matrices_and_sympy_name_the_same_permutation():
    expected = PermutationGroup.from_cycles([[0, 2, 3], [1, 4]], degree=5)
    images = [2, 4, 3, 0, 1]
    assert as_group(images) == expected
    assert as_group(np.array(images)) == expected
    assert as_group(Permutation(images)) == expected
    assert as_group(expected.matrix(0)) == expected
    assert as_group(SymmetricGroup(4)).order == 24


def test_the_matrix_and_the_action_agree(group):
    x = np.random.default_rng(0).standard_normal((2, group.degree))
    for index, images in enumerate(group.generators):
        moved = group.act(index, x)
        np.testing.assert_array_equal(moved, x @ group.matrix(index).T)
        assert all(moved[0, images[i]] == x[0, i] for i in range(group.degree))


def test_partition_of_the_source_example():
    sigma, eta = [2, 4, 3, 0, 1], [3, 4, 0, 2, 1]
    assert cycle_partition(sigma) == ((0, 2, 3), (1, 4)) == cycle_partition(eta)
    assert cycles_of(eta) != cycles_of(sigma)


def test_orbits_agree_with_sympy(group):
    expected = {frozenset(o) for o in group.sympy().orbits()}
    assert {frozenset(o) for o in group.orbits} == expected


@given(st.lists(st.permutations(range(7)), min_size=1, max_size=3))
@settings(deadline=None, max_examples=40)
def test_reduction_to_the_cyclic_case_keeps_the_orbits(generators):
    group = PermutationGroup(tuple(tuple(g) for g in generators))
    cyclic = reduce_to_cyclic(group)
    assert len(cyclic.generators) == 1
    assert cyclic.orbits == group.orbits
    assert finest_common_coarsening(*map(cycle_partition, generators)) == group.orbits


@pytest.mark.parametrize("point, image", [((1, 2), (1, 3)), ((0, 3), (0, 0))])
def test_the_horizontal_shift_moves_pixels_to_the_right(point, image):
    shift = image_shift(2, 4)
    assert shift.generators[0][point[0] * 4 + point[1]] == image[0] * 4 + image[1]


def test_orders_of_the_image_groups():
    assert image_rotation(4).order == 4
    assert image_dihedral(5).order == 8
    assert image_reflection(3, 4).order == 2
    assert image_shift(3, 4, "both").order == 12
    assert symmetric_on_subsets(5).order == 120
    assert not symmetric_on_subsets(5).is_abelian
    assert image_shift(2, 3, "both").is_abelian


def test_colours_are_outermost():
    picture = np.arange(12.0).reshape(3, 4)
    moved = image_rotation(2, channels=3).act(0, picture.ravel()).reshape(3, 2, 2)
    np.testing.assert_array_equal(moved, np.rot90(picture.reshape(3, 2, 2), axes=(1, 2)))


@pytest.mark.parametrize(
    "bad, words",
    [
        ([0, 0, 1], "2 is the image of nothing"),
        ([0, 3, 1], "3 is outside 0, …, 2"),
        ([0.5, 1.0], "not a flat list of integers"),
        ([[1, 1], [0, 0]], "exactly one 1 in each row"),
        ([[1, 2], [0]], "is not a permutation"),
    ],
)
def test_what_is_not_a_permutation_is_named(bad, words):
    with pytest.raises(NotAPermutationError) as caught:
        PermutationGroup.from_images([0, 1, 2], bad)
    message = str(caught.value)
    assert words in message
    assert "generators[1]" in message
    assert "Expected the list of images" in message


def test_cycles_out_of_range_repeated_points_and_degrees():
    with pytest.raises(NotAPermutationError, match="4 is outside 0, …, 3"):
        PermutationGroup.from_cycles([[0, 4]], degree=4)
    with pytest.raises(NotAPermutationError, match="a point occurs twice"):
        PermutationGroup.from_cycles([[0, 1], [1, 2]], degree=4)
    with pytest.raises(NotAPermutationError, match="different numbers of points"):
        PermutationGroup.from_images([0, 1], [0, 1, 2])
    with pytest.raises(NotAPermutationError, match="no generator"):
        PermutationGroup(())
    with pytest.raises(ValueError, match="expected 'horizontal', 'vertical' or 'both'"):
        image_shift(3, 3, "diagonal")


def test_what_prints_can_be_typed():
    group = PermutationGroup.from_cycles([[0, 2, 3], [1, 4]], [[0, 1]], degree=5)
    assert eval(repr(group)) == group

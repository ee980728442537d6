"""Decompositions and components are values: where and when they were computed does not matter."""

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paramsym.equivariant import (
    EquivariantAutoencoder,
    EquivariantLinear,
    components,
    decompose,
    image_shift,
)
from paramsym.equivariant.decomposition import _decompose
from tests.equivariant.instances import cycles


def pickled(value):
    return pickle.loads(pickle.dumps(value))


def computed_again(value):
    """As after 35 other groups: nothing is cached any more."""
    _decompose.cache_clear()
    group = value.decomposition.group
    return components(group, value.rank).component(value.ranks)


@pytest.mark.parametrize("copied", [pickled, copy.deepcopy, computed_again])
def test_an_autoencoder_takes_its_component_from_anywhere(group, copied):
    family = components(group, max(1, decompose(group).largest_rank // 2))
    component = family[0] if family.count else next(iter(family.smaller))
    other = copied(component)
    assert other.decomposition is not component.decomposition
    assert other == component and hash(other) == hash(component) and len({other, component}) == 1
    assert other.decomposition == component.decomposition
    x = torch.randn(3, group.degree, generator=torch.Generator().manual_seed(1))
    networks = [
        EquivariantAutoencoder(group, c, generator=torch.Generator().manual_seed(0))
        for c in (component, other)
    ]
    torch.testing.assert_close(networks[0](x), networks[1](x))
    EquivariantLinear(group, component=other)
    again = components(group, component.rank)
    assert other in again or component.rank < again.rank or not family.count


def test_families_are_values():
    shift = image_shift(3, 4)
    first = components(shift, 3)
    _decompose.cache_clear()
    second = components(shift, 3)
    assert first == second and hash(first) == hash(second)
    assert first[1] in second and second.index(first[1]) == 1
    assert first != components(shift, 4) and first[0] not in components(shift, 4)
    assert first != 3


@given(st.permutations(range(5)), st.permutations(range(5)), st.integers(0, 5))
@settings(deadline=None, max_examples=60)
def test_equal_exactly_if_group_and_ranks_are(first, second, rank):
    one, two = decompose(tuple(first)), decompose(tuple(second))
    assert (one == two) == (first == second)
    assert pickled(one) == one
    everything = list(components(one, rank))
    assert len(set(everything)) == len(everything)
    assert {pickled(c) for c in everything} == set(everything)


def test_values_that_differ_do_not_pass():
    shift, other = image_shift(4, 4), image_shift(4, 4, "vertical")
    assert decompose(shift) != decompose(other)
    foreign = pickled(components(other, 3)[0])
    assert foreign != components(shift, 3)[0]
    with pytest.raises(ValueError, match="expected the same group"):
        EquivariantAutoencoder(shift, foreign)
    six, three = cycles(6, [list(range(6))]), cycles(3, [[0, 1, 2]])
    assert decompose(six) != decompose(six, three)
    np.testing.assert_array_equal(
        pickled(decompose(six, three)).target_basis, decompose(six, three).target_basis
    )

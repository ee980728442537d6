"""Readouts for given hidden weights, and the least width of a one-output function."""

import random
from fractions import Fraction

import pytest
from networks import random_network

from paramsym import relu


@pytest.mark.parametrize("seed", range(25))
def test_readouts_give_the_function_and_miss_none(seed):
    rng = random.Random(seed)
    net = random_network((2, rng.randint(1, 4), 2), rng, integers=seed % 2 == 0)
    w, b = next(iter(net))
    spare = [[1, 1], [2, 2], [0, 0], [-1, -1]][: rng.randint(0, 4)]
    inner = ([*w, *spare], [*b, *[1, 2, 3, -1][: len(spare)]])
    found = relu.readouts(net, inner)
    assert found is not None
    for trial in range(3):
        assert relu.decide(net, found.sample(trial)).kind == "EQUAL"


def test_a_missing_hyperplane_has_no_readout_and_dimensions_are_right():
    net = [([[1, 0], [0, 1]], [0, 0]), ([[1, 1]], [0])]
    assert relu.readouts(net, ([[1, 0], [1, 1]], [0, 0])) is None
    same = relu.readouts(net, ([[1, 0], [0, 1]], [0, 0]))
    assert same is not None and same.dimension == 0
    copies = relu.readouts(net, ([[1, 0], [0, 1], [0, 2], [0, 0]], [0, 0, 0, 5]))
    assert copies is not None and copies.dimension == 2  # the copy, and the constant unit


def test_least_width_of_one_output():
    assert relu.shallow_minimal_width([([[1], [-1]], [0, 0]), ([[1, 1]], [0])]) == (2, 2)  # |x|
    assert relu.shallow_minimal_width([([[1]], [0]), ([[3]], [1])]) == (1, 1)
    linear = [([[1, 0], [-1, 0]], [0, 0]), ([[1, -1]], [0])]  # x_1, no kink at all
    assert relu.shallow_minimal_width(linear) == (2, 2)
    bent = [([[1, 0], [0, 1], [0, -1]], [0, 0, 0]), ([[1, 1, -1]], [0])]  # relu(x) + y
    assert relu.shallow_minimal_width(bent) == (3, 3)
    with pytest.raises(relu.ReLUError, match="one output"):
        relu.shallow_minimal_width([([[1]], [0]), ([[1], [1]], [0, 0])])


@pytest.mark.parametrize("seed", range(10))
def test_width_k_plus_one_where_a_visible_normal_makes_up(seed):
    """|x| has width 2 = k + 1: its linear part is a multiple of the visible normal."""
    rng = random.Random(seed)
    net = random_network((2, 3, 1), rng)
    (w, b), (v, _) = net
    w, b, v = [*w, [-x for x in w[0]]], [*b, -b[0]], [[*v[0], Fraction(7)]]
    low, high = relu.shallow_minimal_width([(w, b), (v, [0])])
    assert low == high == 4

"""One hidden layer: the canonical form against evaluation, and the decision on every domain."""

import math
import random
from fractions import Fraction

import pytest
from flint import fmpq
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import perturbed, random_network, rational_point

from paramsym import relu
from paramsym.relu import moves
from paramsym.relu.domains import as_domain
from paramsym.relu.rationals import fractions

DOMAINS = [None, (-1, 1), ("-1/3", "7/2"), {"ball": 2}, "orthant"]
SMALL = st.integers(min_value=-2, max_value=2)


@st.composite
def shallow(draw, d=None, m=None):
    """Small-integer networks: zero rows, parallel, duplicate and opposite hyperplanes abound."""
    d = d or draw(st.integers(1, 3))
    m = m or draw(st.integers(1, 2))
    n = draw(st.integers(1, 5))

    def table(r, c):
        return [[draw(SMALL) for _ in range(c)] for _ in range(r)]

    def vector(r):
        return [draw(SMALL) for _ in range(r)]

    return [(table(n, d), vector(n)), (table(m, n), vector(m))]


@settings(max_examples=120, deadline=None)
@given(shallow(), st.randoms(use_true_random=False), st.sampled_from(DOMAINS))
def test_canonical_form_evaluates_to_the_network(net, rng, spec):
    network = relu.as_network(net)
    form = relu.shallow_canonical_form(network, spec)
    domain = as_domain(spec, network.input_dim)
    for _ in range(4):
        drawn = [float(v) for v in domain.draw(rng)]
        if not all(map(math.isfinite, drawn)):  # a generator at the end of its range
            continue
        x = [fmpq(*v.as_integer_ratio()) for v in drawn]
        if domain.contains(x):
            assert form(list(fractions(x))) == network(list(fractions(x)))


@settings(max_examples=120, deadline=None)
@given(shallow(d=2, m=1), shallow(d=2, m=1), st.sampled_from(DOMAINS))
def test_pairs_of_small_integer_networks_are_always_decided(a, b, spec):
    verdict = relu.decide(a, b, domain=spec)
    assert verdict.kind is not relu.Kind.UNDECIDED
    assert relu.verify(verdict, a, b)


@settings(max_examples=80, deadline=None)
@given(shallow(), st.integers(0, 10**6))
def test_scrambled_networks_are_equal(net, seed):
    other = moves.scramble(net, 5, seed)
    verdict = relu.decide(net, other)
    assert verdict.kind == "EQUAL" and relu.verify(verdict, net, other)
    assert relu.shallow_canonical_form(net) == relu.shallow_canonical_form(other)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([2, 5, 9, 20]), st.sampled_from(DOMAINS))
def test_perturbed_generic_networks_differ_or_the_unit_is_out_of_the_domain(seed, digits, spec):
    rng = random.Random(seed)
    net = random_network((rng.randint(1, 3), rng.randint(1, 5), rng.randint(1, 2)), rng)
    other = perturbed(net, fmpq(1, 10**digits), rng)
    verdict = relu.decide(net, other, domain=spec)
    assert relu.verify(verdict, net, other)
    if spec is None:
        assert verdict.kind == "DIFFERENT"


def test_shallow_is_complete_in_high_dimension():
    rng = random.Random(0)
    net = random_network((30, 40, 3), rng)
    other = moves.permute(net, 1, list(range(40))[::-1])
    assert relu.decide(net, other).kind == "EQUAL"
    verdict = relu.decide(net, perturbed(other, fmpq(1, 10**30), rng))
    assert verdict.kind == "DIFFERENT"


def test_difference_of_affine_parts_only():
    a = [([["1"], ["-1"]], [0, 0]), ([["1", "1"]], [0])]  # |x|
    b = [([["1"]], [0]), ([["2"]], [0])]  # 2 relu(x) = |x| + x
    verdict = relu.decide(a, b)
    assert verdict.kind == "DIFFERENT" and verdict.witness is not None
    plain = [([["1"]], [0]), ([["1"]], [0])]  # relu(x)
    assert relu.decide(a, plain, domain=(0, 1)).kind == "EQUAL"
    assert relu.decide(a, plain, domain=("-1/100", 1)).kind == "DIFFERENT"


def test_domain_decides_about_units_that_do_not_cross_it():
    a = [([["1", "1"]], [5]), ([["1"]], [0])]
    b = [([["1", "1"], ["1", "0"]], [5, -3]), ([["1", "7"]], [0])]
    assert relu.decide(a, b, domain=(-1, 1)).kind == "EQUAL"
    assert relu.decide(a, b, domain={"ball": 3}).kind == "EQUAL"
    assert relu.decide(a, b, domain={"ball": "3.0001"}).kind == "DIFFERENT"
    assert relu.decide(a, b).kind == "DIFFERENT"


def test_networks_without_hidden_layer():
    a = [([[1, 2]], [3])]
    b = [([[1, 2], [-1, -2]], [0, 0]), ([[1, -1]], [3])]
    assert relu.decide(a, b).kind == "EQUAL"
    assert relu.decide(a, [([[1, 2]], [Fraction(3, 1) + Fraction(1, 10**40)])]).kind == "DIFFERENT"


def test_jump_does_not_depend_on_orientation():
    form = relu.shallow_canonical_form([([[2, -4]], [6]), ([[3]], [0])])
    turned = relu.shallow_canonical_form([([[-2, 4]], [-6]), ([[3]], [0])])
    (key,) = form.hyperplanes
    assert key == (1, -2, 3) and turned.hyperplanes == [key]
    assert form.jump(key) == turned.jump(key) == [[6, -12]]


@pytest.mark.parametrize("seed", range(3))
def test_canonical_form_is_a_function_of_the_function(seed):
    rng = random.Random(seed)
    net = random_network((2, 4, 2), rng)
    x = rational_point(2, rng)
    assert relu.shallow_canonical_form(net)(list(fractions(x))) == net(list(fractions(x)))

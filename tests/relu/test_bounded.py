"""Float mode: bounds that hold, perturbations that are seen, thresholds that are respected."""

import random

import numpy as np
import pytest
from flint import fmpq
from networks import gaussian, perturbed, random_network, rounded, twin, type_a, type_b

from paramsym import relu
from paramsym.relu import moves
from paramsym.relu.bounded import bounded_forms


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("make", [type_a, type_b])
def test_rounded_fiber_elements_are_equal_within_a_true_bound(seed, make):
    rng = random.Random(seed)
    exact = make((rng.randint(3, 5), 3, rng.randint(1, 5), 2), rng)
    a, b = rounded(exact), rounded(moves.scramble(exact, 4, rng))
    verdict = relu.decide(a, b, mode="float")
    assert verdict.kind == "EQUAL", verdict
    assert relu.verify(verdict, a, b)
    if verdict.method == "bound":
        bounds = verdict.bounds
        assert bounds.offset is not None and bounds.slope is not None
        generator = np.random.default_rng(seed)
        size = 10.0 ** generator.uniform(-3, 3, (200, 1))
        x = generator.normal(size=(200, a.input_dim)) * size
        gap = np.abs(a.batch(x) - b.batch(x)).max(axis=1)
        rounding = 1e-13 * (a.magnitude(x) + b.magnitude(x)).max(axis=1)
        norm = np.linalg.norm(x, axis=1)
        assert (gap <= bounds.offset + bounds.slope * norm + rounding).all()


@pytest.mark.parametrize("digits", [2, 4, 6, 8, 9])
@pytest.mark.parametrize("seed", range(8))
def test_perturbations_of_float_twins_are_never_called_equal(digits, seed):
    rng = random.Random(100 * digits + seed)
    exact = random_network((3, 3, 4, 1), rng)
    other = perturbed(moves.scramble(exact, 3, rng), fmpq(1, 10**digits), rng)
    truth = relu.decide(exact, other).kind
    verdict = relu.decide(rounded(exact), rounded(other), mode="float")
    assert verdict.kind in (truth, relu.Kind.UNDECIDED)


@pytest.mark.parametrize("widths", [(6, 30, 3), (8, 10, 9, 2), (5, 6, 5, 4, 2)])
def test_twins_of_gaussian_networks(widths):
    rng = np.random.default_rng(3)
    a = gaussian(widths, rng)
    b = twin(a, rng)
    verdict = relu.decide(a, b, mode="float")
    assert verdict.kind == "EQUAL" and verdict.bounds.upper < 1e-11
    w, t = b.floats[1]
    w = w.copy()
    w[0, 0] += 1e-9
    c = relu.as_network([tuple(b.floats[0]), (w, t), *[tuple(f) for f in b.floats[2:]]])
    assert relu.decide(a, c, mode="float").kind == "DIFFERENT"


def test_784_128_64_10_twin_within_the_promised_bound():
    rng = np.random.default_rng(0)
    a = gaussian((784, 128, 64, 10), rng)
    verdict = relu.decide(a, twin(a, rng), mode="float")
    assert verdict.kind == "EQUAL" and verdict.bounds.upper <= 1e-10
    assert verdict.bounds.radius == pytest.approx(28.0)


def test_tolerance_decides_both_ways():
    a = [(np.array([[1.0, 0.0], [0.0, 1.0]]), np.zeros(2)), (np.array([[1.0, 1.0]]), np.zeros(1))]
    b = [(a[0][0], np.array([1e-6, 0.0])), a[1]]
    assert relu.decide(a, b, mode="float", tolerance=1e-4).kind == "EQUAL"
    assert relu.decide(a, b, mode="float", tolerance=1e-8).kind == "DIFFERENT"
    assert relu.decide(a, b, mode="float").kind == "DIFFERENT"


def test_bounds_on_a_box_and_a_ball():
    rng = np.random.default_rng(5)
    a = gaussian((3, 5, 4, 1), rng)
    b = twin(a, rng)
    for domain in ((-1, 1), {"ball": 2}):
        verdict = relu.decide(a, b, mode="float", domain=domain)
        assert verdict.kind == "EQUAL" and relu.verify(verdict, a, b)


def test_duplicates_and_opposites_are_handled_without_clusters():
    rng = np.random.default_rng(8)
    w, t = rng.normal(size=(3, 2)), rng.normal(size=3)
    a = [(w, t), (np.array([[1.0, -2.0, 0.5]]), np.zeros(1))]
    b = [
        (np.concatenate([w / 3.0, w * 0.1]), np.concatenate([t / 3.0, t * 0.1])),
        (np.array([[1.0, -2.0, 0.5, 20.0, -40.0, 10.0]]), np.zeros(1)),
    ]  # 3·(1/3) = 1 is shared as 1/3 + 2/3
    verdict = relu.decide(a, b, mode="float")
    assert verdict.kind == "DIFFERENT"  # 1/3 + 2 != 1: the control
    b = [b[0], (np.array([[1.0, -2.0, 0.5, 20.0 / 3, -40.0 / 3, 10.0 / 3]]), np.zeros(1))]
    assert relu.decide(a, b, mode="float").kind == "EQUAL"


@pytest.mark.parametrize("seed", range(10))
def test_upper_bound_is_never_below_an_observed_difference(seed):
    rng = random.Random(seed)
    a = rounded(random_network((3, 3, 3, 1), rng))
    b = rounded(random_network((3, 3, 3, 1), rng))
    x = np.random.default_rng(seed).normal(size=(500, 3))
    x /= np.maximum(1.0, np.linalg.norm(x, axis=1))[:, None]
    for radius in (0.0, 1e-6, 1e-2):
        forms = bounded_forms(a, b, relu.Everywhere(3), radius)
        assert np.abs(a.batch(x) - b.batch(x)).max() <= forms.upper(1.0)


def test_networks_of_fractions_in_float_mode_account_for_their_rounding():
    a = [([["1/3", "2/7"]], ["1/9"]), ([["1/11"]], [0])]
    b = [([["1", "6/7"]], ["1/3"]), ([["1/33"]], [0])]
    verdict = relu.decide(a, b, mode="float")
    assert verdict.kind == "EQUAL" and 0 < verdict.bounds.upper < 1e-15
    assert relu.verify(verdict, a, b)

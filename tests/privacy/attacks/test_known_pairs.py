"""The input key from known pairs: how many it takes, for which key and by which method."""

from dataclasses import replace
from itertools import permutations, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paramsym.privacy import NotApplicable
from paramsym.privacy.attacks.known_pairs import (
    attempt,
    fitted,
    least_squares,
    matched_columns,
    procrustes,
    row_errors,
    undone,
)
from tests.privacy.attacks.jobs import convolutional, job, perceptron
from tests.privacy.attacks.keys import KINDS, digits, gaussian, key, seeded

METHODS = {
    "general linear": least_squares,
    "orthogonal": procrustes,
    "signed permutation": matched_columns,
}


def relative(found, matrix):
    return float((found - matrix).norm() / matrix.norm())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [8, 32, 64])
def test_as_many_pairs_as_features_give_the_key(kind, size, generator):
    matrix, rows = key(kind, size, generator), gaussian(size, size, generator)
    for method in (least_squares, METHODS[kind]):
        assert relative(method(rows, rows @ matrix.T), matrix) <= 1e-8
    name, found = fitted(rows, rows @ matrix.T)
    assert name == kind
    assert relative(found, matrix) <= 1e-8


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_of_another_key_give_nothing(kind, generator):
    matrix, other = key(kind, 32, generator), key(kind, 32, generator)
    rows, new = gaussian(32, 32, generator), gaussian(9, 32, generator)
    name, found = fitted(rows, rows @ other.T)
    assert name == kind
    assert relative(found, matrix) > 0.5
    assert row_errors(new, undone(found, new @ matrix.T)).min() > 0.5


def test_one_pair_fewer_leaves_one_direction_open(generator):
    matrix, rows = key("general linear", 32, generator), gaussian(31, 32, generator)
    found = least_squares(rows, rows @ matrix.T)
    missing = torch.linalg.svd(rows)[2][-1]
    assert (found @ missing).norm() <= 1e-10  # nothing is said of it
    assert relative(found @ missing, matrix @ missing) == pytest.approx(1)
    spanned = rows[:5]
    assert row_errors(spanned, undone(found, spanned @ matrix.T)).max() <= 1e-8


def test_one_pair_fewer_leaves_a_sign_of_an_orthogonal_key(generator):
    matrix, rows = key("orthogonal", 32, generator), gaussian(31, 32, generator)
    found = procrustes(rows, rows @ matrix.T, complete=True)
    missing = torch.linalg.svd(rows)[2][-1]
    assert (found @ missing).abs().sub((matrix @ missing).abs()).abs().max() <= 1e-8
    reflected = found - 2 * torch.outer(found @ missing, missing)
    assert min(relative(found, matrix), relative(reflected, matrix)) <= 1e-8


def test_one_generic_pair_gives_a_signed_permutation(generator):
    matrix, rows = key("signed permutation", 200, generator), gaussian(1, 200, generator)
    assert torch.equal(matched_columns(rows, rows @ matrix.T), matrix)
    even = rows.sign()  # a pair that tells no two features apart
    assert not torch.equal(matched_columns(even, even @ matrix.T), matrix)


@given(st.sampled_from(KINDS), st.integers(1, 8), st.integers(1, 10), st.integers(0, 999))
@settings(deadline=None)
def test_every_method_fits_the_pairs_and_all_that_they_span(kind, size, pairs, seed):
    generator = seeded(seed)
    matrix, rows = key(kind, size, generator), gaussian(pairs, size, generator)
    _, found = fitted(rows, rows @ matrix.T)
    inside = gaussian(3, pairs, generator) @ rows
    assert torch.allclose(inside @ found.T, inside @ matrix.T, rtol=1e-6, atol=1e-6)
    assert row_errors(inside, undone(found, inside @ matrix.T)).max() <= 1e-5


@given(st.integers(1, 8), st.integers(1, 10), st.integers(0, 999))
@settings(deadline=None)
def test_procrustes_is_an_isometry_and_no_other_is_closer(size, pairs, seed):
    generator = seeded(seed)
    plain, sent = gaussian(pairs, size, generator), gaussian(pairs, size, generator)
    found = procrustes(plain, sent, complete=True)
    assert torch.allclose(found @ found.T, torch.eye(size).double(), atol=1e-10)
    least = (plain @ found.T - sent).norm()
    for _ in range(5):
        other = key("orthogonal", size, generator)
        assert (plain @ other.T - sent).norm() >= least - 1e-10
    # off the span the completed map only adds a guess to what it leaves out otherwise
    assert torch.allclose(plain @ procrustes(plain, sent).T, plain @ found.T, atol=1e-8)


def test_of_a_sample_the_part_in_the_span_comes_out_under_an_orthogonal_key_alone(generator):
    rows, new = gaussian(20, 32, generator), gaussian(50, 32, generator)
    inside = new @ torch.linalg.pinv(rows) @ rows
    orthogonal, dense = (key(k, 32, generator) for k in ("orthogonal", "general linear"))
    found = undone(procrustes(rows, rows @ orthogonal.T), new @ orthogonal.T)
    assert row_errors(inside, found).max() <= 1e-8
    found = undone(least_squares(rows, rows @ dense.T), new @ dense.T)
    assert row_errors(inside, found).min() > 0.1


def test_pairs_that_span_the_median_digit_suffice(generator):
    images, _ = digits()
    matrix = key("orthogonal", 64, generator)
    known, new = images[:60], images[60:]
    assert torch.linalg.matrix_rank(known) < 61  # of 61 dimensions
    for method in (procrustes, least_squares):
        errors = row_errors(new, undone(method(known, known @ matrix.T), new @ matrix.T))
        assert errors.median() <= 1e-12
        assert errors.max() > 0.05  # rare pixels, which no known image has
    few = images[:40]
    guessed = procrustes(few, few @ matrix.T, complete=True)
    left_out = procrustes(few, few @ matrix.T)
    guess, none = (row_errors(new, undone(f, new @ matrix.T)).median() for f in (guessed, left_out))
    assert 0.1 < guess < 0.2
    assert none < 0.8 * guess


def test_under_noise_the_family_makes_the_difference(generator):
    images, _ = digits()
    matrix = key("orthogonal", 64, generator)
    known, new = images[:64], images[64:]
    sent = known @ matrix.T
    rough = known + 0.01 * known.std() * gaussian(*known.shape, generator)
    errors = [
        float(row_errors(new, undone(f(rough, sent), new @ matrix.T)).median())
        for f in (procrustes, least_squares)
    ]
    assert errors[0] < 0.02
    assert errors[1] > 10 * errors[0]


def test_the_columns_are_assigned_as_by_trying_all(generator):

    plain, sent = gaussian(3, 3, generator), gaussian(3, 3, generator)
    candidates = [
        torch.eye(3).double()[list(order)] * torch.tensor(signs).double()[:, None]
        for order in permutations(range(3))
        for signs in product([-1, 1], repeat=3)
    ]
    best = min(candidates, key=lambda m: float((plain @ m.T - sent).norm()))
    assert torch.equal(matched_columns(plain, sent), best)


@pytest.mark.parametrize("kind", KINDS)
def test_an_attempt_recovers_samples_from_as_many_random_pairs_as_features(kind, generator):
    found = attempt(job(perceptron(16), gaussian(80, 16, generator), kind))
    assert found.succeeded and found.control_failed
    assert found.value <= 1e-8 < 0.5 < found.control
    assert found.needs.startswith("16 plain rows")
    assert f"of the kind {kind}" in found.says


def test_pixels_of_one_image_are_pairs_enough_for_its_channels(generator):
    images = torch.rand(2, 3, 5, 4, generator=generator, dtype=torch.float64)
    found = attempt(job(convolutional(3), images, "general linear", axis=1))
    assert found.succeeded and found.control_failed
    assert found.needs.startswith("3 plain rows")


def test_fewer_pairs_than_features_recover_no_gaussian_sample(generator):
    found = attempt(job(perceptron(16), gaussian(20, 16, generator), "general linear"))
    assert found.needs.startswith("10 plain rows")
    assert not found.succeeded and found.value > 0.3


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_in_single_precision_recover_to_single_precision(kind, generator):
    rows = gaussian(80, 16, generator)
    found = attempt(job(perceptron(16), rows, kind, dtype=torch.float32))
    assert found.succeeded
    assert f"of the kind {kind}" in found.says


def test_one_sample_is_not_enough(generator):
    own = job(perceptron(4), gaussian(5, 4, generator), "orthogonal")
    with pytest.raises(NotApplicable, match="one row"):
        attempt(replace(own, inputs=own.inputs[:1]))

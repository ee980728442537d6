"""What orthogonal keys leave plain, and what every key does after whitening."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paramsym.privacy import NotApplicable
from paramsym.privacy.attacks.inner_products import (
    attempt,
    attempt_neighbours,
    attempt_whitened,
    gram_difference,
    nearest_neighbours,
    neighbour_accuracy,
    own_keys,
    shared_neighbours,
    whitened,
)
from tests.privacy.attacks.jobs import convolutional, job, perceptron
from tests.privacy.attacks.keys import KINDS, digits, gaussian, key, seeded

SAMPLES = 600


@pytest.mark.parametrize("kind", KINDS[1:])
def test_inner_products_and_neighbours_of_digits_are_plain(kind, generator):
    images, labels = (x[:SAMPLES] for x in digits())
    sent = images @ key(kind, 64, generator).T
    assert gram_difference(images, sent) <= 1e-13
    assert shared_neighbours(images, sent) == 1
    assert neighbour_accuracy(sent, labels) == neighbour_accuracy(images, labels) > 0.95


def test_a_general_linear_key_changes_inner_products(generator):
    images, _ = (x[:SAMPLES] for x in digits())
    sent = images @ key("general linear", 64, generator).T
    assert gram_difference(images, sent) > 0.3
    assert shared_neighbours(images, sent) < 0.9


def test_but_neither_whitened_ones_nor_what_follows(generator):
    images, labels = (x[:SAMPLES] for x in digits())
    sent = images @ key("general linear", 64, generator).T
    plain, found = whitened(images), whitened(sent)
    assert found.shape == plain.shape == (SAMPLES, found.shape[1])
    assert gram_difference(plain, found) <= 1e-10
    assert shared_neighbours(plain, found) == 1
    assert neighbour_accuracy(found, labels) > 0.8


def test_a_key_for_each_sample_leaves_the_norm_alone(generator):
    images, labels = (x[:SAMPLES] for x in digits())
    sent = own_keys(images, generator)
    assert torch.allclose(sent.norm(dim=1), images.norm(dim=1))
    assert gram_difference(images, sent) > 0.3
    assert shared_neighbours(images, sent) < 0.05
    assert neighbour_accuracy(sent, labels) < 0.3  # chance is 0.1; the norm says a little
    assert gram_difference(whitened(images), whitened(sent)) > 0.3


@given(st.integers(2, 12), st.integers(1, 6), st.sampled_from(KINDS), st.integers(0, 99))
@example(2, 2, "general linear", 40)  # centring leaves rounding where nothing varies
@settings(deadline=None)
def test_whitening_undoes_any_key_up_to_a_rotation(samples, size, kind, seed):
    generator = seeded(seed)
    rows = gaussian(samples, size, generator)
    sent = rows @ key(kind, size, generator).T
    assert gram_difference(whitened(rows), whitened(sent)) <= 1e-7
    if kind != "general linear":
        assert gram_difference(rows, sent) <= 1e-13


@given(st.integers(2, 12), st.integers(1, 4), st.integers(0, 99))
def test_neighbours_are_those_of_the_definition(samples, size, seed):
    rows = gaussian(samples, size, seeded(seed))
    for i, found in enumerate(nearest_neighbours(rows).tolist()):
        others = [j for j in range(samples) if j != i]
        assert found == min(others, key=lambda j: float((rows[i] - rows[j]).norm()))


def test_neighbours_that_tie_are_all_right():
    line = torch.tensor([[0.0], [1.0], [2.0]]).double()
    assert shared_neighbours(line, line.flip(0)) == 1  # the middle one has two
    assert shared_neighbours(line, torch.tensor([[0.0], [3.0], [1.0]]).double()) == 1 / 3


@pytest.mark.parametrize("kind", KINDS)
def test_attempts_succeed_where_the_key_must_leave_what_they_read(kind):
    images, labels = (x[:400] for x in digits())
    own = job(perceptron(64), images, kind, targets=labels)
    orthogonal = kind != "general linear"
    for run in (attempt, attempt_neighbours):
        found = run(own)
        assert found.succeeded == orthogonal
        assert found.control_failed
    assert attempt(own).value <= 1e-13 if orthogonal else attempt(own).value > 0.05
    found = attempt_whitened(own)
    assert found.succeeded and found.control_failed and found.value <= 1e-10
    assert "share the label for 9" in attempt_neighbours(own).says


@pytest.mark.parametrize("kind", KINDS)
def test_images_whose_channels_are_mixed_are_compared_as_wholes(kind, generator):
    images = torch.rand(30, 3, 5, 4, generator=generator, dtype=torch.float64)
    own = job(convolutional(3), images, kind, axis=1)
    assert attempt(own).succeeded == (kind != "general linear")
    assert attempt_whitened(own).succeeded
    plain = gram_difference(images.flatten(1), own.view.inputs.flatten(1))
    assert attempt(own).value == pytest.approx(plain, rel=1e-6, abs=1e-14)


def test_a_job_in_single_precision_is_read_as_well(generator):
    rows = gaussian(100, 8, generator)
    own = job(perceptron(8), rows, "orthogonal", dtype=torch.float32)
    assert attempt(own).succeeded and attempt(own).value > 1e-9
    assert attempt_whitened(own).succeeded
    assert not attempt(job(perceptron(8), rows, "general linear", dtype=torch.float32)).succeeded


def test_too_few_rows_say_nothing_once_whitened(generator):
    own = job(perceptron(8), gaussian(15, 8, generator), "orthogonal")
    with pytest.raises(NotApplicable, match="15 rows of 8 features"):
        attempt_whitened(own)

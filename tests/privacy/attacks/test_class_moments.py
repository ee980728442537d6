"""A linear key and the order of classes from labelled public data, and from shuffled ones not."""

from dataclasses import replace
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paramsym.privacy import NotApplicable
from paramsym.privacy.attacks.class_moments import (
    ClassMoments,
    attempt,
    attempt_labels,
    class_invariants,
    class_moments,
    matched_classes,
    recovered_from_classes,
    words,
)
from paramsym.privacy.attacks.known_pairs import row_errors
from tests.privacy.attacks.jobs import convolutional, job, labelled, perceptron
from tests.privacy.attacks.keys import KINDS, digits, gaussian, key, seeded


def populations(samples, size, classes, generator, seed=5):
    """Samples of classes with means and covariances of their own, the same for every generator."""
    fixed = seeded(seed)
    means = 2 * gaussian(classes, size, fixed)
    roots = [gaussian(size, size, fixed) for _ in range(classes)]
    labels = torch.arange(samples) % classes
    rows = [means[c] + roots[c] @ gaussian(1, size, generator)[0] for c in labels.tolist()]
    return torch.stack(rows), labels


@given(st.integers(2, 4), st.integers(2, 5), st.integers(0, 99))
@settings(deadline=None)
def test_words_turn_and_tables_do_not(classes, size, seed):
    generator = seeded(seed)
    rows, labels = populations(12 * classes, size, classes, generator)
    matrix = key("orthogonal", size, generator)
    plain, moved = (class_moments(x, labels, classes) for x in (rows, rows @ matrix.T))
    close = {"rtol": 1e-8, "atol": 1e-8}
    assert torch.allclose(words(plain) @ matrix.T, words(moved), **close)
    assert torch.allclose(class_invariants(plain), class_invariants(moved), **close)
    stretched = key("general linear", size, generator)
    other = class_moments(rows @ stretched.T, labels, classes)
    assert not torch.allclose(class_invariants(plain), class_invariants(other), rtol=1e-3)


def test_moments_are_those_of_the_definition(generator):
    rows, labels = populations(40, 3, 4, generator)
    found = class_moments(rows, labels, 4)
    for c in range(4):
        own = rows[labels == c]
        assert torch.allclose(found.means[c], own.mean(0))
        assert torch.allclose(found.covariances[c], torch.cov(own.T, correction=0))


def test_words_are_counted_before_they_are_made(generator):
    moments = ClassMoments(gaussian(7, 3, generator), gaussian(7 * 9, 1, generator).view(7, 3, 3))
    assert words(moments).shape == (7 + 49 + 343, 3)
    assert words(moments, most=200).shape == (7 + 49, 3)
    assert words(moments, most=10).shape == (7, 3)
    assert torch.allclose(words(moments)[7], moments.covariances[0] @ moments.means[0])


def test_classes_are_matched_as_by_trying_all_orders(generator):
    rows, labels = populations(250, 6, 5, generator)
    new, same = populations(250, 6, 5, generator)
    ours = class_invariants(class_moments(rows, labels, 5))
    shuffled = torch.randperm(5, generator=generator)
    theirs = class_invariants(class_moments(new, shuffled[same], 5))
    best = min(
        (torch.tensor(order) for order in permutations(range(5))),
        key=lambda order: float((ours - theirs[:, order[:, None], order]).square().sum()),
    )
    assert torch.equal(matched_classes(ours, theirs, generator), best)
    assert torch.equal(best, shuffled)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_samples_give_the_key_exactly(kind, generator):
    rows, labels = populations(400, 6, 4, generator)
    sent = rows @ key(kind, 6, generator).T
    order = torch.randperm(4, generator=generator)
    found, meaning = recovered_from_classes(rows, labels, sent, order[labels], 4, generator)
    assert row_errors(rows, found).max() <= 1e-8
    assert torch.equal(meaning[order[labels]], labels)


def test_more_public_samples_come_closer(generator):
    rows, labels = populations(4000, 6, 4, generator)
    sent = rows @ key("general linear", 6, generator).T
    errors = []
    for samples in (200, 4000):
        public, known = populations(samples, 6, 4, generator)
        found, meaning = recovered_from_classes(public, known, sent, labels, 4, generator)
        assert torch.equal(meaning[labels], labels)
        errors.append(float(row_errors(rows, found).median()))
    assert errors[1] < 0.7 * errors[0]
    assert errors[1] < 0.1


def halves():
    images, labels = digits()
    return (images[:900], labels[:900]), (images[900:], labels[900:])


def test_an_orthogonal_key_takes_few_public_samples_and_a_stretching_one_more(generator):
    (images, labels), (public, known) = halves()
    errors = {}
    for kind in ("orthogonal", "general linear"):
        sent = images @ key(kind, 64, generator).T
        found, meaning = recovered_from_classes(
            public[:200], known[:200], sent, labels, 10, generator
        )
        errors[kind] = float(row_errors(images, found).median())
        if kind == "orthogonal":
            assert torch.equal(meaning[labels], labels)
    assert errors["orthogonal"] < 0.35 < 0.45 < errors["general linear"]


@pytest.mark.parametrize("kind", KINDS)
def test_digits_come_out_of_any_linear_key_and_their_labels_of_any_order(kind):
    own = labelled(kind, *halves())
    found = attempt(own)
    assert found.succeeded and found.control_failed
    assert found.value < 0.2 and found.control > 0.5
    named = attempt_labels(own)
    assert named.succeeded and named.control_failed
    assert named.value == 1 and named.control < 0.5


def test_channels_of_labelled_images_come_out(generator):
    pixels, labels = populations(1200 * 9, 3, 4, generator)
    images, labels = pixels.reshape(9, 1200, 3).permute(1, 2, 0).unflatten(2, (3, 3)), labels[:1200]
    sides = (images[:1000], labels[:1000]), (images[1000:], labels[1000:])
    own = labelled("general linear", *sides, axis=1, model=convolutional(3, 4))
    assert attempt(own).succeeded
    assert attempt_labels(own).value == 1
    assert attempt(own).needs.endswith(f"{200 * 9} labelled public rows")


def test_what_the_job_lacks_is_said(generator):
    own, public = halves()
    bare = job(perceptron(64), own[0], "orthogonal", targets=own[1])
    with pytest.raises(NotApplicable, match="public inputs with theirs"):
        attempt(bare)
    whole = replace(bare, public=public[0], public_targets=public[1])
    with pytest.raises(NotApplicable, match="labels are sent as they are"):
        attempt_labels(whole)
    with pytest.raises(NotApplicable, match="100 public rows and 900 sent ones"):
        attempt(replace(whole, public=public[0][:100], public_targets=public[1][:100]))
    with pytest.raises(NotApplicable, match="one label for each sample"):
        attempt(replace(whole, public_targets=public[0]))

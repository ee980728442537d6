"""The attacks on inputs as an audit runs them, key by key."""

import pytest
import torch

from paramsym.privacy import audit
from tests.privacy.attacks.jobs import job, labelled, perceptron
from tests.privacy.attacks.keys import KINDS, digits, gaussian

OURS = [
    "inner-products",
    "neighbours",
    "whitened-inner-products",
    "known-pairs",
    "independent-components",
    "class-moments",
    "class-labels",
]


@pytest.mark.parametrize("kind", KINDS)
def test_of_digits_no_linear_key_hides_the_data_or_the_labels(kind):
    images, labels = digits()
    halves = (images[:900], labels[:900]), (images[900:], labels[900:])
    found = audit(labelled(kind, *halves), OURS)
    assert not found.skipped and not found.unsound
    succeeded = {a.attack for a in found.attempts if a.succeeded}
    orthogonal = {"inner products of inputs", "nearest neighbours of inputs"}
    assert succeeded == {
        "whitened inner products of inputs",
        "the input key from known pairs",
        "the input key from labelled public data",
        "what labels mean, from moments of classes",
        *(orthogonal if kind != "general linear" else ()),
    }
    assert "labels (who is sent the targets cannot tell" in str(found)


def test_half_precision_is_rounding_and_no_information(generator):
    rows = gaussian(300, 6, generator)
    found = audit(job(perceptron(6), rows, "orthogonal", dtype=torch.bfloat16), OURS[:5])
    assert not found.skipped
    values = {a.attack: a.value for a in found.attempts}
    assert values["the input key from known pairs"] < 0.05
    assert 1e-4 < values["inner products of inputs"] < 0.05

"""Votes against a count in plain Python: by (votes, mean logit), whatever the logits are."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paramsym.ensembles import majority_vote

values = st.sampled_from([-math.inf, -1.0, 0.0, 0.5, 1.0, math.inf])


def counted(sample: list[list[float]]) -> int:
    """The class of one sample, from the rows of its members."""
    classes = range(len(sample[0]))
    votes = [sum(row.index(max(row)) == c for row in sample) for c in classes]
    means = [sum(row[c] for row in sample) / len(sample) for c in classes]
    return max(
        classes, key=lambda c: (votes[c], -math.inf if math.isnan(means[c]) else means[c], -c)
    )


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_votes_are_counted_and_then_means_compared(data: st.DataObject) -> None:
    members, classes = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    rows = st.lists(values, min_size=classes, max_size=classes)
    sample = data.draw(st.lists(rows, min_size=members, max_size=members))
    found = majority_vote(torch.tensor(sample, dtype=torch.float64)[:, None])
    assert found.tolist() == [counted(sample)]


def test_a_class_that_one_member_rules_out_keeps_the_votes_of_others() -> None:
    inf = math.inf
    logits = torch.tensor([[[-inf, 1.0]], [[-inf, 1.0]], [[1.0, -inf]]])
    assert majority_vote(logits).tolist() == [1]
    assert majority_vote(logits.half()).tolist() == [1]
    probable = torch.tensor([[[1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]], [[0.0, 1.0, 0.0]]]).log()
    assert majority_vote(probable).tolist() == [1]
    masked = logits.mean(0).argmax(-1)  # the control: the mean alone says another class
    assert masked.tolist() == [0]


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (torch.zeros(0, 2, 3), r"shape \(0, 2, 3\) came.*at least one member"),
        (torch.zeros(2, 2, 0), r"shape \(2, 2, 0\)"),
        (torch.zeros(3), r"shape \(3,\)"),
        (torch.zeros(3, 2, 2).long(), "torch.int64 came; real logits"),
        (torch.full((3, 2, 2), math.nan), "2 samples have members that answer NaN"),
    ],
    ids=["no members", "no classes", "one axis", "classes", "NaN"],
)
def test_what_is_no_vote(logits: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        majority_vote(logits)

"""Medians and their intervals, against the binomial distribution and against simulation."""

from __future__ import annotations

import math

import pytest
import torch

from paramsym.discovery.acting.estimates import estimate


def test_ranks_are_those_of_the_binomial_distribution() -> None:
    for size in (6, 7, 20, 64):
        found = estimate([float(k) for k in range(1, size + 1)])
        below = [sum(math.comb(size, j) for j in range(k)) / 2**size for k in range(size)]
        rank = max(k for k in range(size // 2 + 1) if below[k] <= 0.025)
        assert (found.low, found.high) == (rank, size + 1 - rank)


def test_intervals_hold_the_median_as_often_as_they_say() -> None:
    draws = torch.randn(2000, 25, generator=torch.Generator().manual_seed(0)).exp().double()
    inside = [(found := estimate(row)).low <= 1 <= found.high for row in draws.tolist()]
    assert 0.94 <= sum(inside) / len(inside) <= 0.985  # steps of the binomial: 0.957 for n = 25
    narrow = [(f := estimate(r, 0.5)).low <= 1 <= f.high for r in draws.tolist()]
    assert sum(narrow) / len(narrow) < 0.8


def test_median_mean_and_worst() -> None:
    found = estimate([3.0, 1.0, 2.0, 10.0, 4.0, 5.0])
    assert (found.median, found.worst) == (3.5, 10.0)
    assert found.mean == pytest.approx(25 / 6)
    assert found.error == pytest.approx(torch.tensor([3.0, 1, 2, 10, 4, 5]).std() / 6**0.5)
    assert str(found) == "3.5 [1, 10], worst 10"


def test_too_few_draws_have_no_interval() -> None:
    with pytest.raises(ValueError, match="5 draws came, and at least 6 were expected"):
        estimate([1.0] * 5)
    with pytest.raises(ValueError, match="7 draws came, and at least 8 were expected"):
        estimate([1.0] * 7, 0.99)
    assert estimate([1.0] * 8, 0.99).median == 1


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="1 of 6 draws are not finite"):
        estimate([1.0] * 5 + [math.nan])
    with pytest.raises(ValueError, match="a number between 0 and 1 was expected"):
        estimate([1.0] * 6, 95)

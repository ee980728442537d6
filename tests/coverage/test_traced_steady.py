"""A forward pass that is no function of its inputs and parameters says so."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from paramsym import find_symmetry
from tests.coverage.test_traced import MASK, Net, X, name

OUTSIDE = {"calls": 0}


def tossed(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    return s.b(s.hidden(x) if random.random() > 0.5 else s.a(x).tanh())


def seldom(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    return s.b(s.a(x).tanh() if 0.2 < random.random() < 0.3 else s.hidden(x))


def counted_outside(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    OUTSIDE["calls"] += 1
    return s.b(s.hidden(x) if OUTSIDE["calls"] % 2 else s.a(x).tanh())


def counted_on_the_module(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    s.calls = getattr(s, "calls", 0) + 1
    return s.b(s.hidden(x) if s.calls < 2 else s.a(x).tanh())


def counted_in_a_buffer(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    s.picked += 1
    return s.b(s.hidden(x) if int(s.picked[0]) < 3 else s.a(x).tanh())


def remembered(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    before, s.memory = getattr(s, "memory", None), s.hidden(x)
    return s.b(s.memory if before is None else s.memory + before.tanh())


def steady(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    s.last = s.hidden(x)
    return s.b(s.last)


@pytest.mark.parametrize("forward", [tossed, seldom, counted_outside], ids=name)
def test_runs_that_differ_are_said_to(forward: Callable[..., Tensor]) -> None:
    checked = find_symmetry(Net(forward), (X, MASK)).checked
    assert not checked.refuted and "gives other outputs when it is run again" in checked.note


def test_a_coin_that_is_seldom_falls_otherwise_from_the_third_seed_alone() -> None:
    falls = [0.2 < random.Random(seed).random() < 0.3 for seed in range(4)]
    assert falls == [False, False, False, True]


@pytest.mark.parametrize(
    "forward", [counted_on_the_module, counted_in_a_buffer, remembered], ids=name
)
def test_what_is_kept_from_call_to_call_is_said(forward: Callable[..., Tensor]) -> None:
    model = Net(forward)
    checked = find_symmetry(model, (X, MASK)).checked
    assert not checked.refuted and "keeps something from call to call" in checked.note
    assert not hasattr(model, "calls") and not hasattr(model, "memory")
    assert model.picked.tolist() == [1, 4, 2]


def test_what_only_stores_is_steady() -> None:
    assert not find_symmetry(Net(steady), (X, MASK)).checked.note


def test_noise_that_torch_draws_is_listed() -> None:
    found = find_symmetry(Net(lambda s, x, m: s.b(s.hidden(x)) + torch.randn(3)), (X, MASK))
    assert [*found.random] == ["randn"] and not found.checked.note

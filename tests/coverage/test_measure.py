"""The measure itself: it must see what is missing, and what is wrong."""

from __future__ import annotations

import torch
from torch import nn

from paramsym import audit, find_symmetry
from tests.coverage.measure import measured


def network() -> tuple[nn.Module, tuple[torch.Tensor]]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), (torch.randn(7, 4),)


def test_an_ordinary_network_is_explained() -> None:
    found = measured(*network())
    assert (found.explained, found.unexplained, found.refuted) == (5, 0, ())
    assert 0 < found.error < 1e-12


def test_what_is_not_found_is_counted() -> None:
    model, inputs = network()
    found = measured(model, inputs)
    less = find_symmetry(nn.Sequential(nn.Linear(4, 5), nn.Sigmoid(), nn.Linear(5, 3)), inputs)
    assert audit(model, inputs, symmetry=found.symmetry).unexplained == 0
    assert audit(model, inputs, symmetry=less).unexplained == 5

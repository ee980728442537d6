"""A call that stands twice is one: what two readers share shows in both."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paramsym.lowering.repeats import without_repeats
from paramsym.recording.record import record
from tests.coverage.measure import measured

Function = Callable[["Layers", Tensor], Tensor]


class Layers(nn.Module):
    def __init__(self, function: Function):
        super().__init__()
        self.a, self.b, self.v = nn.Linear(7, 4), nn.Linear(7, 4), nn.Linear(7, 1)
        self.form, self.out, self.function = nn.Bilinear(4, 4, 3), nn.Linear(4, 3), function
        self.gain, self.table = nn.Linear(7, 4), nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def modulated(m: Layers, x: Tensor) -> Tensor:
    """The activation of what modulates is computed for the gain and for the bias."""
    return m.out(m.a(x) * (1 + m.gain(x.tanh())) + m.b(x.tanh()))


def dueling(m: Layers, x: Tensor) -> Tensor:
    return m.v(x) + m.a(x) - m.a(x).mean(-1, keepdim=True)


def quadratic(m: Layers, x: Tensor) -> Tensor:
    return m.form(m.a(x), m.a(x))


def chained(m: Layers, x: Tensor) -> Tensor:
    """Both calls of each of two layers."""
    return m.form(F.softplus(m.a(x)).square(), F.softplus(m.a(x)).square())


FUNCTIONS: list[Function] = [modulated, dueling, quadratic]


def calls(function: Function) -> list[str]:
    graph = without_repeats(record(Layers(function).eval(), (torch.randn(9, 7),)))
    return [call.name for call in graph.calls]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_what_is_computed_twice_is_seen_once(function: Function) -> None:
    found = measured(Layers(function), (torch.randn(60, 7),))
    assert found.error < 1e-9 and not found.refuted
    assert found.unexplained == 0 and found.explained >= 8


def test_repeats_of_repeats_are_left_out() -> None:
    assert calls(chained) == ["linear", "softplus", "square", "bilinear"]


@pytest.mark.parametrize(
    ("function", "name", "count"),
    [
        (lambda m, x: m.a(x) + m.b(x), "linear", 2),
        (lambda m, x: m.a(x) + m.a(x[:, [1, 0, 2, 3, 4, 5, 6]]), "linear", 2),
        (lambda m, x: F.leaky_relu(m.a(x), 0.1) + F.leaky_relu(m.a(x), 0.2), "leaky_relu", 2),
        (lambda m, x: F.leaky_relu(m.a(x), 1) + F.leaky_relu(m.a(x), True), "leaky_relu", 2),
        (lambda m, x: torch.rand_like(m.a(x)) + torch.rand_like(m.a(x)), "rand_like", 2),
        (lambda m, x: F.dropout(m.a(x)) + F.dropout(m.a(x)), "dropout", 2),
        (lambda m, x: m.a(x).sum(0) + m.a(x).sum(1, keepdim=True), "sum", 2),
    ],
)
def test_what_differs_is_kept(function: Function, name: str, count: int) -> None:
    """Control: other layers, inputs, numbers or axes, and what is drawn anew."""
    assert calls(function).count(name) == count


def test_what_is_written_in_between_is_another_tensor() -> None:
    def function(m: Layers, x: Tensor) -> Tensor:
        h = m.a(x)
        one = torch.tanh(h)
        h.mul_(m.table)
        return m.out(one) + m.out(torch.tanh(h))

    assert calls(function).count("tanh") == 2
    found = measured(Layers(function), (torch.randn(60, 7),))
    assert found.error < 1e-9 and not found.refuted


def test_a_copy_that_is_written_leaves_the_other_as_it_is() -> None:
    def function(m: Layers, x: Tensor) -> Tensor:
        one, other = m.a(x), m.a(x)
        other *= 3
        return m.out(torch.tanh(one)) + m.out(torch.tanh(other))

    found = measured(Layers(function), (torch.randn(60, 7),))
    assert found.error < 1e-9 and not found.refuted

"""Zero constraints that are no symmetries: jumps, and kinks that few samples see."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from paramsym.discovery import linear_symmetries
from paramsym.discovery.linear.ansatz import Ansatz
from paramsym.discovery.linear.finite import flowed
from paramsym.discovery.linear.full import full
from paramsym.discovery.linear.linear_symmetries import LEVELS

from .networks import example, identity, perceptron, require_finite_symmetries

SHAPES = {"a": (2, 3), "b": (3,)}


class Sum(nn.Module):
    """B relu(A x) + D f(C x)."""

    def __init__(self, function: Callable[[Tensor], Tensor]):
        super().__init__()
        self.a, self.b = nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False)
        self.c, self.d = nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).relu()) + self.d(self.function(self.c(x)))


class FarInput(Sum):
    """As many branches, of which the linear one saturates at inputs that are seldom drawn."""

    def __init__(self):
        super().__init__(identity)

    def forward(self, x: Tensor) -> Tensor:
        c = self.c(x)
        return self.b(self.a(x).relu()) + self.d(torch.where(x[:, :1] > 12, c.tanh(), c))


def top(z: Tensor) -> Tensor:
    return z * (z >= z.topk(1, dim=1)[0][:, -1:])


JUMPS = {
    "hardshrink": (nn.Hardshrink(), 2),
    "threshold": (nn.Threshold(0.1, 0.0), 2),
    "jump": (lambda z: z * (z > 0.3), 2),
    "slope": (lambda z: torch.where(z > 1, 2 * z, z), 2),
    "top-k": (top, 2),
}


@pytest.mark.parametrize("name", JUMPS)
def test_what_jumps_has_infinitesimal_symmetries_only(name: str):
    function, count = JUMPS[name]
    found = linear_symmetries(perceptron((2, 2, 2), function), example(2))
    assert found.dimension == 0 and len(found.infinitesimal) == count, found
    assert max(g.residual for g in found.infinitesimal) < 1e-13
    assert f"{count} directions infinitesimal only" in found.searched
    assert f"infinitesimal only: {count}" in str(found)
    assert found.gap.next > 1e-4


def test_beside_a_jump_symmetries_are_kept():
    found = linear_symmetries(Sum(nn.Hardshrink()), example(2))
    assert (found.dimension, len(found.infinitesimal)) == (2, 2), found
    require_finite_symmetries(Sum(torch.relu), found)
    assert {n for g in found.generators for n in g.targets} == {"a.weight", "b.weight"}
    assert found.gap.largest_null < 1e-13 and found.change < 1e-10


FAR = {
    "knee": Sum(lambda z: z.relu() + (z - 30).relu()),
    "clamp": Sum(lambda z: z.clamp(-20, 20)),
    "switch": Sum(lambda z: torch.where(z > 12, z.tanh(), z)),
    "input": FarInput(),
}


@pytest.mark.parametrize("name", FAR)
def test_a_kink_that_few_samples_see_hides_no_symmetry_of_its_neighbours(name: str):
    found = linear_symmetries(FAR[name], example(2))
    assert found.dimension == 2 and found.infinitesimal == (), found
    assert found.gap.largest_null < 1e-11 < found.gap.next
    assert {n for g in found.generators for n in g.targets} == {"a.weight", "b.weight"}


def test_without_the_kink_there_are_the_others_too():
    """Control: what is rejected above are generators of the function without the far part."""
    assert linear_symmetries(Sum(torch.relu), example(2)).dimension == 4


@pytest.mark.parametrize("level", LEVELS)
def test_finite_elements_are_exponentials(level: str, generator: torch.Generator):
    ansatz = LEVELS[level](SHAPES, True)
    _require_exponential(ansatz, generator)


def _require_exponential(ansatz: Ansatz, generator: torch.Generator) -> None:
    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    field = ansatz.generator(drawn(ansatz.unknowns), 0.0, 0.0)
    weights = {n: drawn(4, *shape) for n, shape in SHAPES.items()}
    moves = torch.tensor([0.3, -0.5, 1.0, 0.0], dtype=torch.float64)
    moved = flowed(field, weights, moves)
    matrix, constant = field.dense(SHAPES)
    whole = torch.zeros(10, 10, dtype=torch.float64)
    whole[:9, :9], whole[:9, 9] = matrix, constant
    for k in range(4):
        theta = torch.cat([weights[n][k].flatten() for n in SHAPES])
        velocity = matrix @ theta + constant
        time = float(moves[k]) * float(theta.norm() / velocity.norm())
        expected = torch.linalg.matrix_exp(time * whole) @ torch.cat([theta, theta.new_ones(1)])
        got = torch.cat([moved[n][k].flatten() for n in SHAPES])
        torch.testing.assert_close(got, expected[:9], rtol=1e-12, atol=1e-12)


def test_a_fast_field_goes_no_further_than_a_few_units_of_its_norm():
    """Where Mθ is small beside ‖M‖, exp(tM) would be a large number for ‖tMθ‖ = ‖θ‖."""
    ansatz = full({"b": (2,)}, False)
    field = ansatz.generator(torch.tensor([1.0, 0.0, 0.0, -1.0]).double(), 0.0, 0.0)
    weights = {"b": torch.tensor([[1e-9, 1e-9]]).double()}
    moved = flowed(field, weights, torch.ones(1).double())
    assert float(moved["b"].abs().max()) < 1e-9 * math.e**1.01
    zero = flowed(field, {"b": torch.zeros(1, 2).double()}, torch.ones(1).double())
    assert not bool(zero["b"].any())

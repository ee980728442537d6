"""Samples of constraints: batches beside a loop, the same rows at every pass, rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from paramsym.discovery import LinearSymmetries, linear_symmetries
from paramsym.discovery.linear import constraints as constraints_module
from paramsym.discovery.linear.certificate import EXACT
from paramsym.discovery.linear.generators import Gap

from .networks import Apply, Attention, dense, example, identity, leaky, perceptron, sampled


def test_the_weights_of_the_model_are_not_read():
    model = perceptron((2, 3, 2), torch.relu, bias=True)
    before = dense(linear_symmetries(model, example(2)))
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    assert torch.equal(before, dense(linear_symmetries(model, example(2))))


@pytest.mark.parametrize("size", [1e-12, 1e12])
def test_nor_those_of_one_number(size: float):
    """A bias of one output, ReZero's factor, and maps of one unit."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 1, bias=False), nn.Linear(1, 2, bias=False)
            self.skip, self.g = nn.Linear(2, 2, bias=False), nn.Parameter(torch.tensor(size))

        def forward(self, x: Tensor) -> Tensor:
            return self.skip(x) + self.g * self.b(self.a(x).tanh())

    assert linear_symmetries(Scaled(), example(2)).dimension == 1
    biased = perceptron((2, 2, 1), torch.relu, bias=True)
    tanh = perceptron((1, 1, 1), torch.tanh)
    with torch.no_grad():
        for p in (*biased.parameters(), *tanh.parameters()):
            p.fill_(size)
    assert linear_symmetries(biased, example(2)).dimension == 2
    assert linear_symmetries(tanh, example(1)).dimension == 0


def test_numbers_that_must_be_positive_stay_near_the_given_ones():
    class Temperature(nn.Module):
        def __init__(self):
            super().__init__()
            self.map, self.t = nn.Linear(2, 3, bias=False), nn.Parameter(torch.tensor(2.0))

        def forward(self, x: Tensor) -> Tensor:
            return self.map(x) * self.t.log()

    found = linear_symmetries(Temperature(), example(2))
    assert found.dimension == 0 and "near the given values of t" in found.searched


class InSingle(nn.Module):
    """A function that rounds to float32 inside, where no cast can be lifted."""

    def __init__(self, model: nn.Sequential):
        super().__init__()
        self.first, self.function, self.last = model

    def forward(self, x: Tensor) -> Tensor:
        return _Rounded.apply(self.last(self.function(_Rounded.apply(self.first(x)))))


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return torch.from_numpy(x.detach().numpy().astype("float32").astype("float64"))

    @staticmethod
    def backward(ctx, *grad_outputs: Tensor) -> Tensor:
        return torch.from_numpy(
            grad_outputs[0].detach().numpy().astype("float32").astype("float64")
        )


@pytest.mark.parametrize("kind", ["float32", "rounded inside"])
def test_in_single_precision_the_threshold_is_the_measured_noise(kind: str):
    def search(function: Callable[[Tensor], Tensor]) -> LinearSymmetries:
        model = perceptron((2, 3, 2), function)
        if kind == "float32":
            return linear_symmetries(model, example(2), dtype=torch.float32)
        return linear_symmetries(InSingle(model), example(2))

    known = [(torch.relu, 3), (torch.tanh, 0), (identity, 9)]
    for function, dimension in known if kind == "float32" else known[:2]:
        found = search(function)
        assert found.dimension == dimension, found
        assert found.gap.next >= 1e-4
        if dimension:
            assert 1e-12 < found.noise < 1e-7 and EXACT < found.generators[0].threshold < 1e-5
            assert 1e-10 < found.gap.largest_null < found.generators[0].threshold
    assert search(lambda x: nn.functional.softplus(x, beta=100.0)).dimension == 0


def test_in_single_precision_samples_that_saturate_excuse_themselves_alone():
    """A softmax of scores of size 60 loses half of the digits of its derivative."""
    for seed in (4, 5):
        generator = torch.Generator().manual_seed(seed)
        inputs = (torch.randn(1, 3, 3),)
        found = linear_symmetries(
            Attention(), inputs, "sides", dtype=torch.float32, generator=generator
        )
        assert found.dimension == 8 and found.dead == ("k.bias",) and found.gap.next > 1e-3


class Bilinear(nn.Module):
    """xᵀ A x."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.zeros(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bi,ij,bj->b", x, self.a, x)


def deep(function: Callable[[Tensor], Tensor]) -> nn.Sequential:
    """2-3-3-3-3-1: twelve hidden units."""
    widths = (2, 3, 3, 3, 3, 1)
    maps = [nn.Linear(n, m, bias=False) for n, m in pairwise(widths)]
    return nn.Sequential(
        *(layer for one in maps[:-1] for layer in (one, Apply(function))), maps[-1]
    )


SINGLE = {
    "bilinear": (Bilinear, (1, 3), 27),  # its derivative does not depend on its weights
    "deep": (lambda: deep(torch.relu), (1, 2), 12),
    "leaky": (lambda: deep(leaky), (1, 2), 12),
}


@pytest.mark.parametrize("name", SINGLE)
def test_in_single_precision_nothing_is_lost(name: str):
    make, shape, dimension = SINGLE[name]
    level = "full" if name == "bilinear" else "sides"
    for seed in (0, 9):
        generator = torch.Generator().manual_seed(seed)
        found = linear_symmetries(
            make(), (torch.randn(shape),), level, dtype=torch.float32, generator=generator
        )
        assert found.dimension == dimension and found.gap.clear, found
        assert "no clear gap" not in str(found)


@pytest.mark.parametrize("rate", [3e5, 1e6, 1e8])
def test_a_function_that_is_fast_is_not_taken_for_rounding(rate: float):
    """Its differences over 1e-6 are as large as itself; all directions passed by that."""
    model = perceptron((2, 2, 2), lambda z: (rate * z).sin())
    try:
        found = linear_symmetries(model, example(2))
    except ValueError as error:
        assert "oscillates" in str(error)
    else:
        assert found.dimension == 0, found


def test_a_count_that_rounding_makes_uncertain_says_so():
    found = linear_symmetries(nn.Sequential(nn.Linear(2, 3), nn.Softmax(-1)), example(2))
    assert found.dimension == 27 and found.gap.clear
    unclear = Gap(1e-7, 3e-8)
    assert not unclear.clear and not Gap(0.0, 1e-12).clear and Gap(1e-16, 1e-6).clear
    assert "no clear gap" in str(replace(found, gap=unclear))


def test_without_noise_the_threshold_is_exact():
    found = linear_symmetries(perceptron((3, 4, 3), torch.relu), example(3))
    assert {g.threshold for g in found.generators} == {EXACT} and found.noise < 1e-15


def test_gradients_by_batches_are_those_one_by_one_and_a_loop_serves_where_vmap_does_not():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.map = perceptron((2, 3, 2), torch.relu)

        def forward(self, x: Tensor) -> Tensor:
            return self.map(x) if float(x.sum()) > 0 else 2 * self.map(x)

    plain, branching = perceptron((2, 3, 2), torch.relu), Branching()
    one = sampled(plain, "full").sampler
    points = one.points(5)
    batched = one.gradients(points)
    assert one.batched and one.checked
    one.batched = False
    looped = one.gradients(points)
    for name in batched:
        torch.testing.assert_close(batched[name], looped[name], rtol=1e-12, atol=1e-14)
    sampler = sampled(branching, "full").sampler
    sampler.gradients(sampler.points(2))
    assert not sampler.batched
    assert linear_symmetries(branching, example(2)).dimension == 3


def test_a_batched_gradient_that_is_wrong_is_not_believed(monkeypatch: pytest.MonkeyPatch):
    sampler = sampled(perceptron((2, 3, 2), torch.relu), "full").sampler
    points, vmap = sampler.points(3), torch.func.vmap
    right = sampler.gradients(points)

    def doubled(function):
        return lambda *args: {n: 2 * g for n, g in vmap(function)(*args).items()}

    sampler.checked = False
    monkeypatch.setattr(torch.func, "vmap", doubled)
    for name, gradient in sampler.gradients(points).items():
        torch.testing.assert_close(gradient, right[name])
    assert not sampler.batched


def test_rows_that_are_drawn_again_are_the_same(monkeypatch: pytest.MonkeyPatch):
    model = perceptron((2, 3, 2), torch.relu)
    kept = linear_symmetries(model, example(2))
    monkeypatch.setattr(constraints_module, "_KEPT", 0)
    constraints = sampled(model, "full")
    first, again = ([*constraints()] for _ in range(2))
    assert not constraints.kept
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert len(torch.cat(first).unique(dim=0)) == constraints.count
    anew = linear_symmetries(model, example(2))
    assert anew.gap.largest_null <= 1e-13 and anew.dimension == kept.dimension


def test_the_same_generator_gives_the_same_result_and_the_global_one_is_left_alone():
    model = perceptron((2, 3, 2), torch.relu)
    before = torch.get_rng_state()
    one, two = (linear_symmetries(model, example(2)) for _ in range(2))
    other = linear_symmetries(model, example(2), generator=torch.Generator().manual_seed(3))
    assert torch.equal(dense(one), dense(two)) and not torch.equal(dense(one), dense(other))
    assert torch.equal(before, torch.get_rng_state())

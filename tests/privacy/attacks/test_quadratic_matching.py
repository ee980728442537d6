"""Signed orders from statistics of units and of pairs of them, against slow twins."""

from itertools import permutations, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paramsym.privacy.attacks.chance import LUCK, beyond_chance, chance_of
from paramsym.privacy.attacks.quadratic_matching import (
    PairStatistics,
    SignedOrder,
    assigned,
    matched,
    matched_without_signs,
    value_of,
)

SEEDS = st.integers(0, 10**6)


def _drawn(n: int, generator: torch.Generator, *, signed: bool) -> SignedOrder:
    sign = torch.randint(0, 2, (n,), generator=generator) * 2 - 1
    signs = sign.double() if signed else torch.ones(n).double()
    return SignedOrder(torch.randperm(n, generator=generator), signs)


def _matrix(g: SignedOrder) -> torch.Tensor:
    return g.signs[:, None] * torch.eye(len(g.order), dtype=torch.float64)[g.order]


def _random(*shape: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.integers(1, 4), st.booleans())
def test_the_assignment_is_the_best_of_all_signed_orders(seed: int, n: int, signed: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    costs = _random(1 + signed, n, n, generator=generator)
    found = assigned(costs)

    def cost(order: tuple[int, ...], signs: tuple[int, ...]) -> float:
        return sum(float(costs[s, i, order[i]]) for i, s in enumerate(signs))

    best = min(
        cost(order, signs)
        for order in permutations(range(n))
        for signs in product(range(1 + signed), repeat=n)
    )
    signs = tuple(int(s < 0) for s in found.signs)
    assert cost(tuple(found.order.tolist()), signs) == pytest.approx(best)


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.booleans(), st.booleans())
def test_the_value_is_that_of_dense_matrices(seed: int, left: bool, right: bool) -> None:
    generator, n = torch.Generator().manual_seed(seed), 5
    public, secret = (_random(n, n, generator=generator) for _ in range(2))
    costs = _random(2, n, n, generator=generator)
    g = _drawn(n, generator, signed=True)
    whole = _matrix(g)
    moved = (whole if left else whole.abs()) @ public @ (whole if right else whole.abs()).T
    paid = sum(costs[int(g.signs[i] < 0), i, g.order[i]] for i in range(n))
    expected = float((secret * moved).sum() - paid)
    statistics = [PairStatistics(public, secret, (left, right))]
    assert value_of(costs, statistics, g) == pytest.approx(expected)


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.booleans())
def test_statistics_without_noise_give_the_order(seed: int, signed: bool) -> None:
    generator, n = torch.Generator().manual_seed(seed), 9
    public = _random(n, n, generator=generator)
    public = public + public.T
    key = _drawn(n, generator, signed=signed)
    whole = _matrix(key)
    statistics = [PairStatistics(public, whole @ public @ whole.T)]
    units = _random(n, generator=generator)
    own = whole @ units
    costs = torch.stack([(own[:, None] - s * units).square() for s in (1.0, -1.0)[: 1 + signed]])
    found = matched(costs, statistics, generator, restarts=5).found
    assert torch.equal(found.order, key.order)
    assert torch.equal(found.signs, key.signs)


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_signs_follow_where_marginals_say_nothing_of_them(seed: int) -> None:
    generator, n = torch.Generator().manual_seed(seed), 9
    public = _random(n, n, generator=generator)
    public = public + public.T
    key = _drawn(n, generator, signed=True)
    whole = _matrix(key)
    secret = whole @ public @ whole.T
    own, other = (t.abs().sort(-1).values for t in (secret, public))
    costs = torch.cdist(own, other).square().expand(2, n, n)
    statistics = [PairStatistics(public, secret)]
    found = matched_without_signs(costs, statistics, generator, 5).found
    assert torch.equal(found.order, key.order)
    assert abs(float((found.signs * key.signs).sum())) == n  # one sign of all stays open


def test_restarts_never_make_it_worse(generator: torch.Generator) -> None:
    n = 20
    statistics = [PairStatistics(*(_random(n, n, generator=generator) for _ in range(2)))]
    costs = _random(2, n, n, generator=generator)
    few, many = (
        matched(costs, statistics, torch.Generator().manual_seed(0), restarts=k) for k in (0, 30)
    )
    assert many.value > few.value  # random statistics have many local maxima
    assert many.value == pytest.approx(value_of(costs, statistics, many.found))


@pytest.mark.parametrize("n", range(1, 7))
def test_chance_counts_all_orders(n: int) -> None:
    orders = list(permutations(range(n)))
    for right in range(n + 1):
        reached = sum(sum(i == o for i, o in enumerate(order)) >= right for order in orders)
        assert chance_of(right, n) == pytest.approx(reached / len(orders))


def test_few_units_are_always_luck() -> None:
    assert not beyond_chance(1.0, 3)  # one order of six
    assert beyond_chance(1.0, 7) and chance_of(7, 7) <= LUCK
    assert beyond_chance(0.6, 10) and not beyond_chance(0.5, 10)

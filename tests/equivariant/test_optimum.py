import itertools
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paramsym.equivariant import (
    EquivariantAutoencoder,
    ShapeMismatchError,
    best_component,
    best_on_component,
    components,
    decompose,
    dense_loss,
    image_shift,
    loss_of,
    symmetric_on_subsets,
)
from paramsym.equivariant.knapsack import choose_ranks
from tests.equivariant.instances import cycles


def covariance(n, rng):
    x = rng.standard_normal((n, 2 * n)) * rng.uniform(0.1, 3, (n, 1))
    return x @ x.T / (2 * n)


def test_the_best_component_is_the_minimum_over_all(group, rng):
    c = covariance(group.degree, rng)
    d = decompose(group)
    for rank in range(1, d.largest_rank + 1):
        family = components(d, rank)
        everything = [*itertools.islice(family, 400), *itertools.islice(family.smaller, 400)]
        losses = [best_on_component(c, k).loss for k in everything]
        best = best_component(c, d, rank)
        assert best.loss <= min(losses) + 1e-10
        if family.count <= 400 and family.smaller.count <= 400:
            assert best.loss == pytest.approx(min(losses), abs=1e-10)
        assert dense_loss(c, rank) <= best.loss + 1e-10
        assert best.lower_bound <= best.loss and best.gap >= 0
        assert loss_of(best.matrix, c) == pytest.approx(best.loss, abs=1e-9)
        assert d.equivariance_error(best.matrix) <= 1e-14
        np.testing.assert_allclose(best.encoder.T @ best.encoder, best.matrix, atol=1e-12)


def test_no_sampled_map_is_below_the_bound(group, rng):
    c = covariance(group.degree, rng)
    d = decompose(group)
    rank = max(1, d.largest_rank // 2)
    best = best_component(c, d, rank)
    for component in itertools.islice(components(d, rank), 5):
        for scale in (0.0, 0.1, 1.0):
            sampled = component.sample(rng)
            near = best_on_component(c, component).matrix + scale * sampled
            from paramsym.equivariant import project

            assert loss_of(project(near, component), c) >= best.lower_bound - 1e-10


def test_training_never_beats_the_closed_form():
    digits = pytest.importorskip("sklearn.datasets").load_digits().images / 16
    x = torch.as_tensor(digits.reshape(len(digits), -1))
    c = (x.T @ x / len(x)).numpy()
    group = image_shift(8, 8)
    best = best_component(c, group, 12, exactly=True)
    generator = torch.Generator().manual_seed(0)
    for component in (best.component, components(group, 12).sample(np.random.default_rng(0))):
        network = EquivariantAutoencoder(group, component, dtype=torch.float64, generator=generator)
        optimiser = torch.optim.Adam(network.parameters(), 0.02)
        own = best_on_component(c, component)
        losses = []
        for _ in range(250):
            loss = (network(x) - x).square().sum(1).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
        assert min(losses) >= own.loss >= best.loss
        assert losses[-1] < 1.1 * own.loss  # and training does come close
        # The network that holds the optimum has exactly the predicted loss.
        network.load_blocks(component.decomposition.blocks(own.matrix))
        with torch.no_grad():
            assert float((network(x) - x).square().sum(1).mean()) == pytest.approx(own.loss)


def test_exactly_asks_for_the_full_rank(rng):
    group = symmetric_on_subsets(4)  # costs 1, 2, 3
    c = covariance(6, rng)
    for rank in (3, 4, 5):
        exact = best_component(c, group, rank, exactly=True)
        assert exact.component.rank == rank
        assert exact.loss >= best_component(c, group, rank).loss - 1e-12


def test_784_to_99_takes_less_than_a_second(rng):
    x = rng.standard_normal((900, 784)).cumsum(1)
    c = x.T @ x / 900
    decompose(image_shift(28, 28))
    start = time.perf_counter()
    best = best_component(c, image_shift(28, 28), 99)
    assert time.perf_counter() - start < 1
    assert best.component.rank in (98, 99)


@given(st.data())
@settings(deadline=None, max_examples=80)
def test_the_knapsack_agrees_with_trying_everything(data):
    blocks = data.draw(st.integers(1, 4))
    costs = data.draw(st.lists(st.sampled_from([1, 2, 3, 6]), min_size=blocks, max_size=blocks))
    values = [
        np.sort(data.draw(st.lists(st.floats(0, 10), min_size=0, max_size=3)))[::-1]
        for _ in range(blocks)
    ]
    rank = data.draw(st.integers(0, 12))

    def gain(v):
        return sum(c * x[:k].sum() for c, x, k in zip(costs, values, v, strict=True))

    everything = itertools.product(*(range(len(x) + 1) for x in values))
    allowed = [v for v in everything if sum(c * k for c, k in zip(costs, v, strict=True)) <= rank]
    choice = choose_ranks(values, costs, rank)
    assert choice.ranks in allowed
    assert choice.gain == pytest.approx(max(map(gain, allowed)))
    assert gain(choice.ranks) == pytest.approx(choice.gain)
    assert choice.bound >= choice.gain - 1e-9


def test_a_case_where_spending_by_value_is_not_optimal():
    """Rank 2: the complex unit has the largest value for each rank but leaves nothing over."""
    choice = choose_ranks([np.array([5.0]), np.array([6.0, 1.0])], [2, 1], 2)
    assert choice.ranks == (1, 0) and choice.gain == 10
    assert choice.bound == 11  # the relaxation takes half of the complex unit
    assert choice.next_value == 5


def test_wrong_shapes():
    with pytest.raises(ShapeMismatchError, match=r"\(3, 3\).*\(4, 4\)"):
        best_component(np.eye(3), [1, 2, 3, 0], 2)
    d = decompose(cycles(6, [list(range(6))]), cycles(3, [[0, 1, 2]]))
    with pytest.raises(ShapeMismatchError, match="target space"):
        best_component(np.eye(6), d, 2)

"""The order and the signs of pixels, from digits that other people wrote."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paramsym.privacy import NotApplicable
from paramsym.privacy.attacks import public_statistics
from paramsym.privacy.attacks.chance import beyond_chance
from paramsym.privacy.attacks.public_statistics import (
    marginal_costs,
    matched_by_correlations,
    matched_by_marginals,
    right_places,
    shuffled_within_samples,
)
from paramsym.privacy.attacks.quadratic_matching import SignedOrder
from tests.privacy.attacks.digit_halves import HALVES
from tests.privacy.attacks.digit_jobs import job

PREPARED = {
    "raw": lambda x: x,
    "centred": lambda x: x - x.mean(0),
    "standardised": lambda x: (x - x.mean(0)) / x.std(0).clamp(min=1e-6),
}


def _key(n: int, seed: int) -> SignedOrder:
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (n,), generator=generator) * 2 - 1
    return SignedOrder(torch.randperm(n, generator=generator), signs.double())


def _moved(key: SignedOrder, x: Tensor) -> Tensor:
    return x[:, key.order] * key.signs


@pytest.mark.parametrize("prepared", PREPARED)
@pytest.mark.parametrize("split", HALVES)
def test_pixels_of_digits_are_found(split: str, prepared: str) -> None:
    (public, _), (secret, _) = HALVES[split]()
    prepare, key = PREPARED[prepared], _key(64, 1)
    public, sent = prepare(public), _moved(key, prepare(secret))
    alone = right_places(matched_by_marginals(public, sent), key, sent)
    generator = torch.Generator().manual_seed(0)
    found = right_places(matched_by_correlations(public, sent, generator), key, sent)
    assert alone.places >= 0.3 and alone.signs >= 0.85  # 0.38 to 0.78 over seeds
    assert found.places >= 0.83 and found.signs >= 0.93  # 0.90 to 0.98 over seeds
    assert found.places > alone.places
    assert found.varying in {60, 61}


@pytest.mark.parametrize("split", HALVES)
def test_public_data_of_another_kind_say_nothing(split: str) -> None:
    (public, _), (secret, _) = HALVES[split]()
    generator, key = torch.Generator().manual_seed(2), _key(64, 1)
    sent = _moved(key, secret)
    noise = torch.randn(898, 64, generator=generator, dtype=torch.float64)
    mixed = noise @ torch.randn(64, 64, generator=generator, dtype=torch.float64)
    for other in (shuffled_within_samples(public, generator), mixed):
        found = right_places(matched_by_correlations(other, sent, generator, 20), key, sent)
        assert not beyond_chance(found.places, found.varying)


def test_a_key_that_mixes_pixels_is_not_found() -> None:
    # Orthogonal keys leave no marginal in place: the nearest signed order of one is at chance.
    (public, _), (secret, _) = HALVES["drawn"]()
    generator, key = torch.Generator().manual_seed(3), _key(64, 1)
    turn = torch.linalg.qr(torch.randn(64, 64, generator=generator, dtype=torch.float64)).Q
    sent = _moved(key, secret) @ turn
    found = right_places(matched_by_correlations(public, sent, generator, 20), key, sent)
    assert not beyond_chance(found.places, found.varying)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_costs_move_with_the_key(seed: int) -> None:
    """c(s s_i, i, o_i) of moved data is c(s, o_i, o_i) of the data: the attack knows no names."""
    generator, key = torch.Generator().manual_seed(seed), _key(6, seed)
    public, secret = (torch.rand(50, 6, generator=generator).double() ** 3 for _ in range(2))
    plain, moved = marginal_costs(public, secret), marginal_costs(public, _moved(key, secret))
    flipped = (key.signs < 0).long()
    for sign in (0, 1):
        own = moved[(sign + flipped) % 2, torch.arange(6)]
        torch.testing.assert_close(own, plain[sign][key.order], atol=1e-9, rtol=1e-9)


def test_one_data_set_on_both_sides_is_matched_without_error() -> None:
    (public, _), _ = HALVES["drawn"]()
    key = _key(64, 4)
    sent = _moved(key, public)
    assert right_places(matched_by_marginals(public, sent), key, sent).places == 1.0


def test_pixels_that_never_vary_do_not_count() -> None:
    sent = torch.tensor([[0.0, 1.0, 5.0], [0.0, 2.0, 5.0], [0.0, 4.0, 5.0]])
    true = SignedOrder(torch.tensor([2, 0, 1]), torch.ones(3))
    found = SignedOrder(torch.tensor([1, 0, 2]), torch.tensor([-1.0, 1.0, -1.0]))
    score = right_places(found, true, sent)
    assert (score.places, score.signs, score.varying) == (1.0, 1.0, 1)


def test_another_number_of_features_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(5, 3\) and \(5, 4\).*one n.*Flatten"):
        marginal_costs(torch.zeros(5, 3), torch.zeros(5, 4))


def test_a_job_for_adam_gives_its_pixels_away() -> None:
    attempt = public_statistics.attempt(job("adam"))
    assert attempt.value >= 0.83 and attempt.succeeded and attempt.claim == "data"
    assert attempt.control <= 0.09 and attempt.control_failed
    assert "pixels" not in attempt.says and "of 60 features" in attempt.says


def test_what_a_job_lacks_is_named() -> None:
    with pytest.raises(NotApplicable, match="mixes features"):
        public_statistics.attempt(job("sgd"))
    with pytest.raises(NotApplicable, match="public inputs"):
        public_statistics.attempt(replace(job("adam"), public=None))
    few = replace(job("adam"), inputs=job("adam").inputs * (torch.arange(64) == 20))
    with pytest.raises(NotApplicable, match="1 features vary.*luck"):
        public_statistics.attempt(few)

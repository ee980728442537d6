"""Learning rates tell the scales that they undo, and nothing else of a key."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paramsym import act
from paramsym.algebra import Element
from paramsym.privacy import Key, NotApplicable
from paramsym.privacy.attacks import rates
from paramsym.privacy.attacks.rates import scales_from_rates, scales_of_units
from paramsym.structure.element import GroupElement
from tests.privacy.attacks.digit_jobs import job, mlp, symmetry_of_mlp


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_scales_are_read_off_to_rounding(optimizer: str) -> None:
    attempt = rates.attempt(job(optimizer, scalings=True))
    assert attempt.value <= 1e-14 and attempt.succeeded
    assert attempt.control > 0.5 and attempt.control_failed
    assert attempt.claim == "model" and "88 units" in attempt.says


def test_what_was_scaled_is_undone() -> None:
    """θ̃/D is what orders, signs and matrices alone make of θ."""
    key = Key.generate(
        symmetry_of_mlp(), torch.Generator().manual_seed(3), "adam", "cross_entropy", scalings=True
    )
    told = key.learning_rates
    assert told is not None
    seen = {n: torch.as_tensor(told.learning_rate(n, 0.01)) for n in told.scales}
    scales = scales_from_rates(seen, 0.01, told.squared)
    params = mlp().state_dict()
    sent = act(key.acting, key.element, params)
    (values,) = key.element.parts
    bare = {
        n: v._replace(diagonal=None if v.diagonal is None else v.diagonal.sign())
        for n, v in values.items()  # type: ignore[union-attr]
    }
    plain = act(key.acting, GroupElement(key.acting, (bare,)), params)
    for name, scale in scales.items():
        torch.testing.assert_close(sent[name] / scale, plain[name], rtol=1e-13, atol=1e-15)
        assert not torch.allclose(sent[name], plain[name], rtol=0.1)


def test_rates_say_nothing_of_orders() -> None:
    # Two keys with the scales of each place in common, and all else drawn anew.
    symmetry, told = symmetry_of_mlp(), []
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        key = Key.generate(symmetry, generator, "adam", "cross_entropy", scalings=True)
        (values,) = key.element.parts
        scaled: dict[str, Element] = {
            n: v if v.diagonal is None or n == "input"
            else v._replace(diagonal=torch.linspace(0.5, 2, len(v.diagonal)).double())
            for n, v in values.items()  # type: ignore[union-attr]
        }  # fmt: skip
        key = replace(key, element=GroupElement(key.acting, (scaled,)))
        assert key.learning_rates is not None
        told.append(key.learning_rates.scales)
    assert told[0].keys() == told[1].keys()
    assert all(torch.equal(told[0][n], told[1][n]) for n in told[0])


def test_a_key_without_scales_has_no_rates() -> None:
    with pytest.raises(NotApplicable, match="a key that scales"):
        rates.attempt(job("adam"))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.floats(1e-5, 10.0))
def test_rates_are_inverted(seed: int, squared: bool, base: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    scales = {"w": torch.rand(3, 4, generator=generator, dtype=torch.float64) * 3 + 0.1}
    told = {n: base * (d.square() if squared else d) for n, d in scales.items()}
    torch.testing.assert_close(scales_from_rates(told, base, squared), scales)
    off = scales_from_rates(told, 4 * base, squared)["w"]  # who takes the wrong base
    assert float((off / scales["w"] - 1).abs().min()) > 0.4


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6))
def test_units_are_solved_for_where_entries_are_missing(seed: int) -> None:
    generator, symmetry = torch.Generator().manual_seed(seed), symmetry_of_mlp()
    logs = {
        n: torch.randn(k, generator=generator).double() for n, k in (("mlp", 72), ("mlp.2", 16))
    }
    element = symmetry.element({n: (torch.arange(len(x)), x.exp()) for n, x in logs.items()})
    ones = {n: torch.ones(symmetry.shape(n), dtype=torch.float64) for n in symmetry.signature}
    factors = act(symmetry, element, ones)
    assert "4.bias" in factors  # which nothing scales, and which says nothing
    factors["2.weight"][3] = torch.nan  # zeros of the weights say nothing
    found = scales_of_units(symmetry, factors)
    for name, x in logs.items():
        torch.testing.assert_close(found[name].flatten(), x.exp(), rtol=1e-10, atol=0)


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_rates_that_are_not_positive_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match=r"'w' is .* positive rates.*Leave out"):
        scales_from_rates({"w": torch.tensor([1.0, bad])}, 0.1, True)
    with pytest.raises(ValueError, match="the base rate"):
        scales_from_rates({"w": torch.tensor([1.0])}, bad, True)

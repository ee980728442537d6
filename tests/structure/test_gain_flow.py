"""The flow of gains: what it keeps, that it is a group, and its slope, beside a slow twin."""

from __future__ import annotations

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paramsym.structure.gain_flow import GainFlow, gain_flow

CLOSE = {"rtol": 0.0, "atol": 1e-11}


def gains(n: int, seed: int) -> Tensor:
    """Gains of both signs, none close to another."""
    generator = torch.Generator().manual_seed(seed)
    apart = torch.rand(n, generator=generator).double() + 0.3
    signs = torch.where(torch.rand(n, generator=generator) < 0.2, -1.0, 1.0)
    return (signs * apart.cumsum(0) / n)[torch.randperm(n, generator=generator)]


def flowed(g: Tensor, by: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """g′, S, M and M⁻¹."""
    found, one = gain_flow(g, torch.tensor(by, dtype=torch.float64)), torch.eye(len(g)).double()
    return g + found.gains, found.turn + one, found.map + one, (found.dual + one).mT


several = {"n": st.integers(3, 9), "seed": st.integers(0, 99), "by": st.floats(-4, 4)}


@settings(deadline=None)
@given(**several)
def test_a_norm_behind_sees_a_turn(n: int, seed: int, by: float) -> None:
    g, one, centre = gains(n, seed), torch.ones(n).double(), torch.eye(n).double() - 1 / n
    moved, turn, through, back = flowed(g, by)
    torch.testing.assert_close(turn @ turn.mT, torch.eye(n).double(), **CLOSE)
    torch.testing.assert_close(turn @ one, one, **CLOSE)
    seen = turn @ (centre * g) @ centre
    torch.testing.assert_close((centre * moved) @ turn @ centre, seen, **CLOSE)
    torch.testing.assert_close(through @ one, one, **CLOSE)
    torch.testing.assert_close(through @ (g[:, None] * centre), moved[:, None] * turn @ centre,
                               **CLOSE)  # fmt: skip
    torch.testing.assert_close(centre @ through, centre @ turn, **CLOSE)
    torch.testing.assert_close(back @ through, torch.eye(n).double(), **CLOSE)


@settings(deadline=None)
@given(**several)
def test_all_coefficients_but_the_last_stay(n: int, seed: int, by: float) -> None:
    """The slow twin: the polynomials whose roots the gains are."""
    g = gains(n, seed)
    before, after = (numpy.poly(x.numpy()) for x in (g, flowed(g, by)[0]))
    numpy.testing.assert_allclose(after[:-1], before[:-1], atol=1e-10)
    least = numpy.abs(numpy.polyval(before, numpy.roots(numpy.polyder(before)))).min()
    moved = abs(after[-1] - before[-1])
    assert moved < 1e-12 if abs(by) < 1e-9 else moved > 1e-4 * abs(by) * least


@settings(deadline=None)
@given(**several, then=st.floats(-4, 4))
def test_numbers_act_one_after_the_other(n: int, seed: int, by: float, then: float) -> None:
    g = gains(n, seed)
    first = flowed(g, by)
    second = flowed(first[0], then)
    at_once = flowed(g, by + then)
    torch.testing.assert_close(second[0], at_once[0], rtol=0.0, atol=1e-12)
    for one, two, both in zip(first[1:3], second[1:3], at_once[1:3], strict=True):
        torch.testing.assert_close(two @ one, both, rtol=1e-10, atol=1e-10)


@settings(deadline=None)
@given(n=st.integers(3, 9), seed=st.integers(0, 99))
def test_its_slope_is_what_differences_tend_to(n: int, seed: int) -> None:
    g, nothing, h = gains(n, seed), torch.zeros(()).double(), 1e-5
    slope = gain_flow(g, nothing, first_order=True)
    ends = [gain_flow(g, torch.tensor(x).double()) for x in (h, -h)]
    for own, up, down in zip(slope, *ends, strict=True):
        torch.testing.assert_close((up - down) / (2 * h), own, rtol=1e-6, atol=1e-7)
    through = torch.func.jacfwd(lambda by: gain_flow(g, by))(nothing)
    for own, followed in zip(slope, through, strict=True):
        torch.testing.assert_close(followed, own, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("first_order", [False, True])
@pytest.mark.parametrize("g", [torch.ones(5), torch.tensor([1.0, 2.0, 2.0, 3.0])])
def test_gains_that_meet_stand_still(g: Tensor, first_order: bool) -> None:
    assert not any(x.any() for x in gain_flow(g, torch.tensor(0.7), first_order))


def test_hundreds_of_gains_have_products_of_gaps_that_are_no_floats() -> None:
    torch.manual_seed(0)
    g = 100 * torch.rand(400).double()
    centre = torch.eye(400).double() - 1 / 400
    moved, turn, _, _ = flowed(g, 1.5)
    assert float((moved - g).abs().max()) > 1e-3
    seen = turn @ (centre * g) @ centre
    torch.testing.assert_close((centre * moved) @ turn @ centre, seen, rtol=0.0, atol=1e-8)


def test_batches_of_numbers_are_those_one_by_one() -> None:
    g, by = gains(5, 0), torch.tensor([0.5, -2.0]).double()
    batch = torch.vmap(lambda x: gain_flow(g, x))(by)
    for k, x in enumerate(by):
        for own, each in zip(batch, gain_flow(g, x), strict=True):
            torch.testing.assert_close(own[k], each)
    assert isinstance(gain_flow(g, by[0]), GainFlow)


def test_what_is_kept_may_be_differentiated_beside() -> None:
    g, by = gains(5, 3), torch.tensor(0.25).double()
    with torch.inference_mode():
        gain_flow(g, by)
    weight = torch.ones(5, 5).double().requires_grad_()
    (weight * gain_flow(g, by).turn).sum().backward()
    torch.testing.assert_close(weight.grad, gain_flow(g, by).turn)

"""Currents of flows with inertia: their rates, and the limit without it."""

import math

import pytest
import torch
from torch import nn

from paramsym import find_symmetry, moment_map
from paramsym.dynamics.flow import gradient_flow
from paramsym.dynamics.noether import noether_currents, second_order_flow
from tests.dynamics.networks import normal, on_data, seeded
from tests.dynamics.test_flow import Radial

TAU = 0.5


def linear(activation=None):
    middle = nn.Identity() if activation is None else activation
    return on_data(nn.Sequential(nn.Linear(3, 4, bias=False), middle,
                                 nn.Linear(4, 2, bias=False)))  # fmt: skip


def kicked(model):
    """A velocity of its own, so that there is an angular momentum."""
    generator = seeded(7)
    return {n: normal(*p.shape, generator=generator) for n, p in model.named_parameters()}


def flowing(times, tau=TAU, activation=None, epsilon=1.0):
    model, loss_fn, x = linear(activation)
    flow = second_order_flow(model, loss_fn, x, times, tau, epsilon, velocity=kicked(model))
    symmetry = find_symmetry(model, x)
    currents = [
        noether_currents(symmetry, p, v)["mlp"]
        for p, v in zip(flow.params, flow.velocities, strict=True)
    ]
    return flow, symmetry, currents


@pytest.mark.parametrize("epsilon", [1.0, 0.3])
def test_angular_momenta_decay_twice_as_fast_as_the_source_says(epsilon):
    flow, _, currents = flowing([0.3, 1.0, 2.0], epsilon=epsilon)
    turns = [j - j.mT for j in currents]
    for t, found in zip(flow.times, turns, strict=True):
        assert torch.allclose(found, turns[0] * math.exp(-2 * t / TAU), atol=1e-9, rtol=1e-6)
        if t:
            source = turns[0] * math.exp(-t / TAU)
            assert (found - source).abs().max() > 0.4 * source.abs().max()
    sums = [c + c.mT for c in currents]
    assert (sums[2] - sums[0] * math.exp(-2 / TAU)).abs().max() > 1e-2  # symmetric ones do not


def test_rotations_of_radial_units_decay_so_as_well():
    _, symmetry, currents = flowing([1.0], activation=Radial())
    assert "Orthogonal" in str(symmetry.spaces["mlp"].group)
    assert torch.allclose(currents[1], currents[0] * math.exp(-2 / TAU), atol=1e-9, rtol=1e-6)


@pytest.mark.parametrize("activation", [None, Radial()], ids=["linear", "radial"])
def test_every_current_obeys_its_equation(activation):
    """J̇ = −(2/τ)J + ⟨Xθ̇, θ̇⟩; without its last term, or with 1/τ, it fails."""
    width = 1e-3
    flow, symmetry, (_, before, now, after) = flowing(
        [0.5 - width, 0.5, 0.5 + width], activation=activation
    )
    rate = (after - before) / (2 * width)
    kinetic = noether_currents(symmetry, flow.velocities[2], flow.velocities[2])["mlp"]
    assert torch.allclose(rate, -2 / TAU * now + kinetic, atol=1e-4)
    assert (rate + now / TAU - kinetic).abs().max() > 1e-2
    assert (kinetic.abs().max() > 1e-2) == (activation is None)


def test_without_inertia_currents_vanish_and_moments_rest():
    model, loss_fn, x = linear()
    symmetry = find_symmetry(model, x)
    start = moment_map(symmetry, model.state_dict())["mlp"]
    first = gradient_flow(model, loss_fn, x, [1.0])
    rows = []
    for tau in (0.08, 0.04, 0.02):
        flow = second_order_flow(model, loss_fn, x, [1.0], tau)
        params, velocity = flow.params[-1], flow.velocities[-1]
        current = noether_currents(symmetry, params, velocity)["mlp"]
        kinetic = noether_currents(symmetry, velocity, velocity)["mlp"]
        moved = moment_map(symmetry, params)["mlp"] - start
        away = max(float((params[n] - p).abs().max()) for n, p in first.params[-1].items())
        rows.append([current.abs().max(), moved.abs().max(), away,
                     (current - tau / 2 * kinetic).abs().max()])  # fmt: skip
    for fine, coarse in zip(rows[1:], rows, strict=False):
        for k, order in enumerate([1, 1, 1, 2]):
            assert fine[k] / coarse[k] == pytest.approx(0.5**order, rel=0.3)


def test_under_gradient_flow_all_currents_are_zero():
    """Theorem 5.2 and C.9.6: ν = VV̇ᵀ − V̇Vᵀ + UᵀU̇ − U̇ᵀU = 0; with a minus sign it is not."""
    for activation in (None, Radial()):
        model, loss_fn, x = linear(activation)
        symmetry = find_symmetry(model, x)
        flow = gradient_flow(model, loss_fn, x, [0.5, 2.0])
        for params in flow.params:
            model.load_state_dict(params)
            model.zero_grad()
            loss_fn(model(*x)).backward()
            velocity = {n: -p.grad for n, p in model.named_parameters()}
            assert noether_currents(symmetry, params, velocity)["mlp"].abs().max() < 1e-14
            v, u = params["0.weight"], params["2.weight"]
            dv, du = velocity["0.weight"], velocity["2.weight"]
            nu = v @ dv.T - dv @ v.T + u.T @ du - du.T @ u
            assert nu.abs().max() < 1e-14
            wrong = v @ dv.T - dv @ v.T - u.T @ du + du.T @ u
            assert wrong.abs().max() > 1e-3


def test_angles_weigh_with_the_sum_of_squares():
    """C.8.1: γ̇ᵢγⱼ − γᵢγ̇ⱼ = −r²φ̇ with r² = γᵢ² + γⱼ²; the source has their difference.

    Along the flow Σ r²φ̇ over the pairs (U_sk, U_sl) and (V_ks, V_ls) vanishes: C.9.5 and (30).
    """
    model, loss_fn, x = linear(Radial())
    width = 1e-3
    flow = gradient_flow(model, loss_fn, x, [1 - width, 1.0, 1 + width], tolerance=1e-12)
    before, now, after = (
        torch.cat([p["2.weight"], p["0.weight"].T])[:, :2] for p in flow.params[1:]
    )

    def sum_of(weights):
        return float((weights * turn).sum())

    turn = (torch.atan2(*after.flip(1).T) - torch.atan2(*before.flip(1).T)) / (2 * width)
    squares = now.square()
    assert turn.abs().max() > 1e-2
    assert abs(sum_of(squares.sum(1))) < 1e-6
    assert abs(sum_of(squares[:, 0] - squares[:, 1])) > 1e-3


def test_what_is_no_flow_is_refused():
    model, loss_fn, x = linear()
    with pytest.raises(ValueError, match="call gradient_flow"):
        second_order_flow(model, loss_fn, x, [1], 0.0)
    with pytest.raises(ValueError, match="Name parameters that require a gradient"):
        second_order_flow(model, loss_fn, x, [1], 1.0, velocity={"0.bias": torch.zeros(4)})
    with pytest.raises(ValueError, match="increasing positive times"):
        second_order_flow(model, loss_fn, x, [], 1.0)
    with pytest.raises(RuntimeError, match="bounded from below"):
        second_order_flow(model, lambda y: -100 * y.pow(4).sum(), x, [100], 0.5, tolerance=1e-3)

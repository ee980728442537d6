"""Rotations in the frames of gains: the norm along them, and the descent."""

from __future__ import annotations

import pytest
import torch

from paramsym import Space, act, balance, find_symmetry, moment_map
from paramsym.algebra import Orthogonal, Tangent
from paramsym.geometry.result import Status
from paramsym.geometry.rotations import RotationNorm, rotates_in_frames, rotation_moments
from paramsym.recording.precision import functional
from tests.geometry.test_balance import State, by_hand, normal, outputs, squares, state_of
from tests.geometry.test_unit_gains import tiny

pytestmark = pytest.mark.filterwarnings("ignore::Warning")


def counted(symmetry, params: State) -> State:
    return {
        n: p for n, p in params.items()
        if n not in symmetry.buffers and n not in symmetry.ties and p.is_floating_point()
    }  # fmt: skip


@pytest.mark.parametrize("name", ["GPT-2 untied", "Llama"])
def test_the_norm_along_rotations_is_that_of_the_action_and_its_slope_the_moment(name: str) -> None:
    model, inputs = tiny(name)
    symmetry, params = find_symmetry(model, inputs, check=False), state_of(model)
    assert [n for n in symmetry.spaces if rotates_in_frames(symmetry, n)] == ["residual"]
    norm = RotationNorm(symmetry, params, "residual")
    g = symmetry.sample(torch.Generator().manual_seed(0), only="residual")
    turned = norm.value(norm.turned(g["residual"].matrix)) - norm.value(norm.grams)
    moved = squares(counted(symmetry, act(symmetry, g, params)))
    here = squares(counted(symmetry, params))
    assert turned == pytest.approx(moved - here, rel=1e-12) and abs(turned) > 1
    moment = norm.group.coordinates(Tangent(matrix=moment_map(symmetry, params)["residual"]))
    torch.testing.assert_close(norm.slope(norm.grams), 2 * moment, rtol=1e-11, atol=1e-11)
    steepest = 2 * float(moment.abs().max()) / here
    assert rotation_moments(symmetry, params) == {"residual": pytest.approx(steepest)}
    velocity = norm.group.tangent(moment).matrix
    values = [
        norm.value(norm.turned(torch.linalg.matrix_exp(t * velocity))) for t in (-1e-4, 0, 1e-4)
    ]
    second = (values[0] - 2 * values[1] + values[2]) / 1e-8
    assert norm.curvature(norm.grams, velocity) == pytest.approx(second, rel=1e-3)


def test_one_frame_is_descended_to_where_eigenvalues_are_sorted_against_it() -> None:
    """Brockett: min tr(D R N Rᵀ) pairs the largest weights with the smallest eigenvalues."""
    symmetry = by_hand(
        {"r": Space("r", Orthogonal(5))}, {"w": "3, r[gain]*", "e": "r, 7", "gain": "5"}
    )
    params = normal(2, w=(3, 5), e=(5, 7))
    params["gain"] = torch.tensor([0.5, 0.8, 1.0, 1.7, 3.0], dtype=torch.float64)
    norm = RotationNorm(symmetry, params, "r")
    own = params["w"] * params["gain"]
    eigenvalues = torch.linalg.eigvalsh(own.mT @ own)
    weights = (params["gain"] ** -2).sort(descending=True).values
    result = balance(symmetry, params, rotations=True)
    rest = squares({n: p for n, p in params.items() if n != "w"})
    assert result.value - rest == pytest.approx(float((weights * eigenvalues).sum()), rel=1e-8)
    assert norm.value(norm.grams) > 1.1 * (result.value - rest)
    assert result.status is Status.LOCAL and result.moment["r"] < 1e-5
    still = balance(symmetry, params)
    assert still.value == still.before and still.held_moment["r"] > 1e-2
    assert "rotations=True" in still.held["r"]


def test_what_rotates_without_a_frame_keeps_the_norm_and_is_held() -> None:
    symmetry = by_hand({"r": Space("r", Orthogonal(5))}, {"w": "3, r*", "e": "r, 7"})
    result = balance(symmetry, normal(2, w=(3, 5), e=(5, 7)), rotations=True)
    assert result.held == {"r": "rotations keep the norm"} and result.status is Status.OPTIMAL
    assert result.held_moment == {}


@pytest.mark.parametrize("name", ["GPT-2 untied", "Llama"])
def test_rotations_lower_the_norm_below_what_starts_with_held_ones_reach(name: str) -> None:
    model, inputs = tiny(name)
    symmetry, params = find_symmetry(model, inputs, check=False), state_of(model)
    held = []
    for seed in range(2):
        g = symmetry.sample(torch.Generator().manual_seed(seed), only=[*symmetry.spaces])
        held.append(balance(symmetry, act(symmetry, g, params), shifts=False))
    assert abs(held[0].value - held[1].value) > 1e-4 * held[0].value
    assert held[0].held_moment["residual"] > 1e-3 and "residual" not in held[0].moment
    assert held[0].status is Status.OPTIMAL
    result = balance(symmetry, params, shifts=False, rotations=True, rounds=25)
    assert result.status is Status.LOCAL and result.held_moment == {}
    assert result.value < 0.99 * min(found.value for found in held)
    assert result.moment["residual"] < 0.05 * held[0].held_moment["residual"]
    moved = act(symmetry, result.element, params)
    assert squares(counted(symmetry, moved)) == pytest.approx(result.value, rel=1e-10)
    with torch.no_grad():  # without the float32 of the norms, which would see the rotation
        before, after = (
            functional(model, p, (), inputs, lambda made: made.logits)[0]
            for p in (params, result.params)
        )
    assert float((before - after).abs().max() / before.abs().max()) < 1e-12


def test_with_unit_gains_there_is_nothing_to_descend() -> None:
    model, inputs = tiny("Llama")
    symmetry, params = find_symmetry(model, inputs, check=False), state_of(model)
    still = balance(symmetry, params, shifts=False, gains="unit")
    assert still.held_moment["residual"] < 1e-12
    turned = balance(symmetry, params, shifts=False, gains="unit", rotations=True)
    assert turned.value == pytest.approx(still.value, rel=1e-12)


def read_through_a_norm(width: int):
    """A stream of four coordinates, a gain, and what reads it."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Embedding(9, 4), torch.nn.RMSNorm(4), torch.nn.Linear(4, width, bias=False)
    ).double()
    inputs = torch.arange(9)[None]
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([0.5, -0.8, 1.7, 3.0]))
    return model, inputs, find_symmetry(model, (inputs,), check=False), state_of(model)


def test_a_gain_that_is_pressed_to_zero_has_no_best_point() -> None:
    """A rotation can bring one column to zero of what reads fewer directions than there are; the
    gain goes there with it, and the slope says nothing."""
    model, inputs, symmetry, params = read_through_a_norm(width=3)
    held = balance(symmetry, params)
    found = balance(symmetry, params, rotations=True)
    assert held.status is Status.OPTIMAL and found.status is Status.UNATTAINED
    assert found.held == {"embedding.scale": "1 scales go to zero as shifts or rotations move"}
    gain = found.params["1.weight"].abs()
    assert float(gain.min()) < 1e-5 < 0.1 < float(gain.max()) and found.value < held.value
    wanted, made = (outputs(model, p, (inputs,)) for p in (params, found.params))
    torch.testing.assert_close(made, wanted, rtol=1e-11, atol=1e-11)
    _, _, symmetry, params = read_through_a_norm(width=6)  # every direction is read
    assert balance(symmetry, params, rotations=True).status is Status.LOCAL


def test_nothing_turns_in_the_frame_of_a_gain_with_a_zero() -> None:
    _, _, symmetry, params = read_through_a_norm(width=6)
    assert [*balance(symmetry, params).held_moment] == ["embedding"]
    params["1.weight"][2] = 0.0
    still, turning = (balance(symmetry, params, rotations=r) for r in (False, True))
    assert turning.value == still.value and "has a zero" in turning.held["embedding"]
    assert still.held_moment == turning.held_moment == {}

"""`gains="unit"`: one value from every equivalent start, rotations in frames included."""

from __future__ import annotations

import pytest
import torch

from paramsym import act, balance, find_symmetry
from paramsym.geometry.result import Status
from tests.geometry.test_balance import outputs, state_of
from tests.tracing.networks import TABLE
from tests.tracing.networks import build as build_row
from tests.tracing.zoo import build, randomise

pytestmark = pytest.mark.filterwarnings("ignore::Warning")


def tiny(name: str):
    """Two layers with a stream that rotates in the frames of its gains."""
    if name == "Llama":
        model, inputs = build(name)
    else:
        model, inputs = build_row(next(row for row in TABLE if row.name == name))
        model = randomise(model)
    return model.double(), inputs


@pytest.mark.parametrize("name", ["GPT-2 untied", "Llama"])
def test_unit_gains_leave_one_value_for_all_equivalent_starts(name: str) -> None:
    model, inputs = tiny(name)
    symmetry, params = find_symmetry(model, inputs, check=False), state_of(model)
    first = balance(symmetry, params, shifts=False, gains="unit")
    assert first.status is Status.OPTIMAL and max(first.moment.values()) < 1e-9
    for gain in symmetry.frame_parameters:
        effective = first.params[gain] + symmetry.offsets.get(gain, 0.0)
        torch.testing.assert_close(effective.abs(), torch.ones_like(effective), rtol=1e-13, atol=0)
    assert any("anchored" in why for why in first.held.values())
    spaces, free = [*symmetry.spaces], []
    for seed in range(10):
        g = symmetry.sample(torch.Generator().manual_seed(seed), only=spaces)
        start = act(symmetry, g, params)
        result = balance(symmetry, start, shifts=False, gains="unit")
        assert result.status is Status.OPTIMAL
        assert result.value == pytest.approx(first.value, rel=1e-9)
        if seed < 2:
            free.append(balance(symmetry, start, shifts=False).value)
    assert abs(free[0] - free[1]) > 1e-4 * first.value  # with free gains it depends on the start
    before, after = outputs(model, params, inputs), outputs(model, first.params, inputs)
    assert float((before - after).abs().max() / before.abs().max()) < 1e-12


def test_gains_that_cannot_be_one_are_named_and_left() -> None:
    model, inputs = tiny("Llama")
    symmetry, params = find_symmetry(model, inputs, check=False), state_of(model)
    name = "model.layers.0.input_layernorm.weight"
    params[name][3] = 0.0
    result = balance(symmetry, params, shifts=False, gains="unit", hold="residual", rounds=5)
    assert "has a zero" in result.held[name] and result.params[name][3] == 0.0
    other = result.params["model.norm.weight"]
    torch.testing.assert_close(other.abs(), torch.ones_like(other))


def test_unit_gains_against_other_wishes() -> None:
    model, inputs = tiny("Llama")
    symmetry, params = find_symmetry(model, inputs, check=False), state_of(model)
    for wishes in (
        {"hold": "norm"},
        {"bounds": {"norm": (0.999, 1.001)}},
        {"anchors": {"norm": 1.0}},
    ):
        result = balance(symmetry, params, gains="unit", **wishes)
        assert result.status is Status.INFEASIBLE and [*result.held] == ["norm"]
    with pytest.raises(ValueError, match="gains='one'.*none of"):
        balance(symmetry, params, gains="one")


def test_without_frames_nothing_is_folded() -> None:
    model, inputs = build("GPT-2")  # tied: its stream has no rotations
    symmetry, params = find_symmetry(model.double(), inputs, check=False), state_of(model)
    free, unit = (balance(symmetry, params, shifts=False, gains=g) for g in ("free", "unit"))
    assert unit.value == free.value and unit.held == free.held

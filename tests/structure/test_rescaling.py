"""Scales that are multiplied in place do what `act`, `act_dual` and `act_state` do."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from paramsym import ParameterSymmetry, act, act_state
from paramsym.geometry.costs import family_shapes, scaled_by, scales_of
from paramsym.structure.rescaling import Rescaling
from tests.tracing.zoo import build, derived

pytestmark = pytest.mark.filterwarnings("ignore::Warning")
NAMES = ["MLP, ReLU", "MLP, squared ReLU", "convolutions", "GPT-2", "Gemma", "Llama", "ResNet"]


@cache
def drawn(name: str) -> tuple[ParameterSymmetry, dict, dict]:
    """A network of the zoo in double precision, and logarithms of scales by space."""
    model, _ = build(name)
    symmetry = derived(name)
    generator = torch.Generator().manual_seed(4)
    shapes = family_shapes(symmetry, [n for n, s in symmetry.spaces.items() if scales_of(s)])
    logs = {n: torch.randn(s, generator=generator).double() for n, s in shapes.items()}
    return symmetry, {n: p.clone() for n, p in model.double().state_dict().items()}, logs


def furthest(one: dict, other: dict, names: list[str]) -> float:
    return max(float((one[n] - other[n]).abs().max() / other[n].abs().max()) for n in names)


@pytest.mark.parametrize("name", NAMES)
def test_scales_in_place_are_those_of_the_action(name: str) -> None:
    symmetry, params, logs = drawn(name)
    element, move = scaled_by(symmetry, logs), Rescaling(symmetry, logs).by(logs)
    floats = [n for n in symmetry.signature if params[n].is_floating_point()]
    own = {n: params[n].clone() for n in floats}
    places = {n: p.data_ptr() for n, p in own.items()}
    move(own, 1)
    expected = act(symmetry, element, params)
    assert furthest(own, expected, floats) <= 1e-14
    assert places == {n: p.data_ptr() for n, p in own.items()}
    assert furthest(params, expected, floats) > 0.1  # they have moved


@pytest.mark.parametrize("name", NAMES)
def test_gradients_and_their_squares_follow_as_the_state_does(name: str) -> None:
    symmetry, params, logs = drawn(name)
    generator = torch.Generator().manual_seed(7)
    names = [n for n in symmetry.signature if params[n].is_floating_point()]
    grads = {n: torch.randn(params[n].shape, generator=generator).double() for n in names}
    state = {n: {"exp_avg": g} for n, g in grads.items()}
    moved = act_state(symmetry, scaled_by(symmetry, logs), state, params)
    expected = {n: entries["exp_avg"] for n, entries in moved.items()}
    move = Rescaling(symmetry, logs).by(logs)
    first, second = ({n: g**k for n, g in grads.items()} for k in (1, 2))
    move(first, -1)
    move(second, -2)
    assert furthest(first, expected, names) <= 1e-14
    assert furthest(second, {n: g**2 for n, g in expected.items()}, names) <= 1e-14
    assert furthest(grads, first, names) > 0.1


def test_tensors_with_other_strides_and_of_other_names() -> None:
    symmetry, params, logs = drawn("convolutions")
    name = next(n for n in symmetry.signature if params[n].ndim == 4 and params[n].shape[1] > 1)
    last = params[name].to(memory_format=torch.channels_last)
    assert not last.is_contiguous()
    Rescaling(symmetry, logs).by(logs)({name: last, "other": params[name]}, 1)
    expected = act(symmetry, scaled_by(symmetry, logs), params)
    assert furthest({name: last}, expected, [name]) <= 1e-14
    assert last.is_contiguous(memory_format=torch.channels_last)


def test_spaces_that_are_not_named_do_not_move() -> None:
    symmetry, params, logs = drawn("MLP, ReLU")
    first, second = logs
    own = {n: p.clone() for n, p in params.items()}
    Rescaling(symmetry, [first]).by({first: logs[first]})(own, 1)
    expected = act(symmetry, scaled_by(symmetry, {first: logs[first]}), params)
    assert furthest(own, expected, [*symmetry.signature]) <= 1e-14
    assert furthest(own, act(symmetry, scaled_by(symmetry, logs), params), [*own]) > 0.1
    assert second in symmetry.spaces

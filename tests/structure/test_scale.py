"""Shifts that are fitted to weights: next to a gain of zero, and to units of any size."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from paramsym import ParameterSymmetry, act, find_symmetry, same_orbit
from paramsym.geometry.balance import balance
from paramsym.geometry.same_orbit import Kind
from paramsym.structure.scale import slides_first, to_scale

State = dict[str, Tensor]
ABSENT = "shift:2.weight.unreceived"  # divided by the gains of the layer norm


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3),
        nn.LayerNorm(3), nn.Linear(3, 2),
    ).double()  # fmt: skip


def derived() -> tuple[nn.Module, ParameterSymmetry, State]:
    model = network()
    symmetry = find_symmetry(model, (torch.ones(2, 4).double(),), check=False)
    generator = torch.Generator().manual_seed(1)
    state = {
        n: torch.randn(p.shape, generator=generator, dtype=torch.float64)
        for n, p in model.state_dict().items()
    }
    return model, symmetry, state


def change(model: nn.Module, before: State, after: State) -> float:
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(2)).double()
    one, other = (
        functional_call(model, {n: p.double() for n, p in s.items()}, (x,)) for s in (before, after)
    )
    return float((one - other).abs().max() / one.abs().max())


def test_a_drawn_element_stays_still_next_to_a_gain_of_zero() -> None:
    model, symmetry, state = derived()
    state["1.weight"][2] = 0
    element = symmetry.sample(torch.Generator().manual_seed(0), only=["shift:*"])
    fitted = to_scale(element, state)
    assert {*element.places} - {*fitted.places} == {ABSENT}
    assert change(model, state, act(symmetry, fitted, state)) < 1e-12
    with pytest.raises(ValueError, match=r"'1\.weight' is 0 at \[2\].*cannot move"):
        act(symmetry, element, state)
    state["1.weight"][2] = 1e-3  # the control
    assert ABSENT in to_scale(element, state).places


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_the_norm_is_balanced_beside_a_gain_of_zero(dtype: torch.dtype) -> None:
    """Its scale has no end once shifts have moved the bias, and rounding grows with it."""
    model, symmetry, state = derived()
    state["1.weight"][2] = 0
    state = {n: p.to(dtype) for n, p in state.items()}
    found, without = balance(symmetry, state), balance(symmetry, state, shifts=False)
    assert "'1.weight' is 0 at [2]" in found.held[ABSENT]
    assert found.value <= without.value < without.before
    assert change(model, state, found.params) < 100 * torch.finfo(dtype).eps


def test_a_change_next_to_a_gain_of_zero_is_judged() -> None:
    """What is moved as a control cannot move there, either."""
    _, symmetry, state = derived()
    state["1.weight"][2] = 0
    other = {n: p.clone() for n, p in state.items()}
    other["2.weight"][1] *= 1.2
    assert same_orbit(symmetry, state, other).kind is not Kind.EQUAL


def test_units_of_any_size_keep_their_digits() -> None:
    """Scales make the units of a ReLU as different as they like, and change no function."""
    model, symmetry, state = derived()
    sizes = 10.0 ** torch.linspace(-5, 5, 8).double()
    state["2.weight"] *= sizes[:, None]
    state["2.bias"] *= sizes
    state["4.weight"] /= sizes
    state = {n: p.float() for n, p in state.items()}
    for seed in range(4):
        drawn = symmetry.sample(torch.Generator().manual_seed(seed), 0.3)
        moved = act(symmetry, to_scale(slides_first(drawn), state), state)
        assert change(model, state, moved) < 1e-5
        assert all(not torch.equal(moved[n], p) for n, p in state.items())

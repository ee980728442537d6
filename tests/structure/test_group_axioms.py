"""A product acts as one after the other, an inverse undoes: over the zoo and random networks."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from torch import nn

from paramsym import GroupElement, ParameterSymmetry, act, find_symmetry
from paramsym.recording.precision import converted
from paramsym.structure.element import Slide
from paramsym.structure.scale import to_scale
from tests.tracing.random_networks import STEPS, RandomNetwork
from tests.tracing.zoo import ZOO, Apply, build

State = dict[str, torch.Tensor]


def distance(a: State, b: State) -> float:
    """The largest difference of two states, relative to each tensor's size."""
    worst = 0.0
    for name, x in a.items():
        if x.numel() and (x.is_floating_point() or x.is_complex()):
            scale = max(1.0, float(x.abs().max()))
            worst = max(worst, float((x - b[name]).abs().max()) / scale)
    return worst


def violations(
    symmetry: ParameterSymmetry, state: State, strength: float = 1.0
) -> dict[str, float]:
    """By how much each axiom of a group action fails for random elements."""
    generator = torch.Generator().manual_seed(7)
    g, h = (to_scale(symmetry.sample(generator, strength), state) for _ in range(2))
    by_g = act(symmetry, g, state)
    by_h = act(symmetry, h, state)
    return {
        "product": distance(act(symmetry, g @ h, state), act(symmetry, g, by_h)),
        "inverse": distance(act(symmetry, ~g, by_g), state),
        "twice inverted": distance(act(symmetry, ~~g, state), by_g),
        "inverse of a product": distance(
            act(symmetry, ~(g @ h), act(symmetry, g @ h, state)), state
        ),
        "associative": distance(
            act(symmetry, (g @ h) @ ~g, state), act(symmetry, g @ (h @ ~g), state)
        ),
    }


@pytest.mark.parametrize("name", ZOO)
def test_elements_of_the_zoo_form_a_group(name: str) -> None:
    model, inputs = build(name)
    found = violations(find_symmetry(model, inputs), converted(model, torch.float64))
    assert max(found.values()) <= 1e-9, found


@seed(20261121)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.builds(
        RandomNetwork,
        st.sampled_from("vsi"),
        st.lists(
            st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 7), st.integers(0, 7)),
            min_size=2, max_size=5,
        ),
        st.integers(0, 3),
        st.integers(0, 7),
    )
)  # fmt: skip
def test_elements_of_random_networks_form_a_group(network: RandomNetwork) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        symmetry = find_symmetry(network, (network.inputs,))
        found = violations(symmetry, dict(network.state_dict()))
    assert max(found.values()) <= 1e-9, (network.taken, found)


class _GainBetween(nn.Module):
    """A gain on the columns of one factor: its scaling and the change of basis do not commute."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        shapes = {"U": (4, 3), "S": (3,), "V": (3, 6), "u": (6, 2)}
        for name, shape in shapes.items():
            made = torch.randn(shape, generator=generator, dtype=torch.float64)
            self.register_parameter(name, nn.Parameter(made))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ (self.U * self.S) @ self.V) @ self.u


@pytest.fixture
def between() -> tuple[ParameterSymmetry, State]:
    model = _GainBetween()
    symmetry = find_symmetry(model, (torch.randn(5, 4).double(),))
    return symmetry, dict(model.state_dict())


def test_what_does_not_commute_stays_a_word(between) -> None:
    symmetry, state = between
    assert symmetry.clashes
    assert max(violations(symmetry, state, 1.0).values()) < 1e-12
    g = symmetry.sample(torch.Generator().manual_seed(0))
    assert len(g.parts) == 1 and len((g @ g).parts) == 2 and len((~g).parts) == 2
    with pytest.raises(KeyError, match="read its .parts"):
        (g @ g)["V"]


def test_values_that_do_not_commute_must_not_be_multiplied_out(between) -> None:
    """The negative control: multiplied out as if they commuted, products and inverses fail."""
    symmetry, state = between
    assert symmetry.clashes
    symmetry.__dict__["clashes"] = {}
    found = violations(symmetry, state, 1.0)
    assert found["product"] > 1e-2 and found["inverse"] > 1e-2


def test_gains_whose_scaling_is_their_frames_commute() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3))
    symmetry = find_symmetry(model, (torch.randn(2, 4),))
    assert symmetry.frame_parameters and not symmetry.clashes


def test_inverse_slides_can_be_fitted_to_a_scale() -> None:
    model = nn.Sequential(nn.Embedding(7, 4), nn.LayerNorm(4), nn.Linear(4, 3)).double()
    symmetry = find_symmetry(model, (torch.tensor([1, 2]),))
    state = {n: 100 * p for n, p in model.state_dict().items()}
    g = symmetry.sample(torch.Generator().manual_seed(0))
    assert any(isinstance(part, Slide) for part in g.parts)
    fitted = to_scale(~g, state)
    assert distance(act(symmetry, ~fitted, act(symmetry, fitted, state)), state) < 1e-9
    moved = act(symmetry, fitted, state)
    assert distance(moved, act(symmetry, ~g, state)) > 1e-3  # the sizes differ
    slides = [part for part in fitted.parts if isinstance(part, Slide)]
    assert slides and all(part.inverse for part in slides)


def test_integers_and_complex_numbers_take_part() -> None:
    """Buffers of integers are not missing; complex parameters count twice."""
    from paramsym import audit, orbit_dimension

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            generator = torch.Generator().manual_seed(0)
            for name, shape in {"W": (4, 3), "V": (3, 6)}.items():
                made = torch.randn(shape, generator=generator, dtype=torch.complex128)
                self.register_parameter(name, nn.Parameter(made))
            self.u = nn.Parameter(torch.randn(6, 2, generator=generator).double())
            self.register_buffer("count", torch.tensor(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu((x.to(torch.complex128) @ self.W @ self.V).abs()) @ self.u

    model, inputs = Turned(), (torch.randn(5, 4).double(),)
    symmetry = find_symmetry(model, inputs)
    state = dict(model.state_dict())
    assert orbit_dimension(symmetry, state) == 9 + 6  # real changes of basis, and unit scales
    found = audit(model, inputs)
    assert found.parameters == 2 * (12 + 18) + 12
    assert found.explained == 15 and found.residual < 1e-12
    assert max(violations(symmetry, state).values()) < 1e-9


def test_elements_of_different_symmetries_are_not_multiplied(between) -> None:
    symmetry, _ = between
    g = symmetry.sample(torch.Generator())
    other = GroupElement(symmetry.restrict(translations=False), g.parts)
    assert (g @ other).symmetry == symmetry  # equal symmetries are one
    model = nn.Sequential(nn.Linear(2, 3), Apply(torch.relu), nn.Linear(3, 1))
    foreign = find_symmetry(model, (torch.randn(2, 2),)).sample(torch.Generator())
    with pytest.raises(ValueError, match="different symmetries"):
        g @ foreign

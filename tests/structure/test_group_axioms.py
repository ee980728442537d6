"""The laws of an action and of its dual, and elements on file: over the zoo and random networks.

A product acts as one after the other, and an inverse undoes. Covectors move by the inverse
transpose of the derivative of the action, so that pairings stay, and gradients of a loss that does
not change are such covectors. What is written reads back to the last digit.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from torch import nn

from paramsym import GroupElement, ParameterSymmetry, act, act_dual, find_symmetry
from paramsym.recording.precision import converted, converted_inputs, functional
from paramsym.structure import stored
from paramsym.structure.element import Slide
from paramsym.structure.scale import to_scale
from paramsym.structure.tangent import as_real
from tests.elements import numbers, same
from tests.tracing.random_networks import STEPS, RandomNetwork
from tests.tracing.zoo import ZOO, Apply, build, derived

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


def dual_violations(
    symmetry: ParameterSymmetry, model: nn.Module, inputs: object
) -> tuple[dict[str, float], dict[str, float]]:
    """By how much the laws of the dual action fail, and by how much if covectors do not move."""
    state, loss = converted(model, torch.float64), loss_of(model, inputs)
    generator = torch.Generator().manual_seed(8)
    g = to_scale(symmetry.sample(generator), state)
    names = [n for n, x in state.items() if x.is_floating_point() or x.is_complex()]
    names = [n for n in names if n not in symmetry.ties]
    own = {n: state[n] for n in names}
    velocity, covector = (
        {n: torch.randn(x.shape, generator=generator, dtype=x.dtype) for n, x in own.items()}
        for _ in range(2)
    )

    def motion(part: State) -> State:
        moved = act(symmetry, g, {**state, **part})
        return {n: moved[n] for n in names}

    moved, pushed = torch.func.jvp(motion, (own,), (velocity,))

    def unpaired(dual: State) -> float:
        change = pairing(dual, pushed) - pairing(covector, velocity)
        return abs(change) / (pairing(dual, dual) * pairing(pushed, pushed)) ** 0.5

    trained = [n for n, _ in model.named_parameters() if n in names]  # statistics have no gradient
    gradient, there = (gradient_of(loss, {**state, **x}, trained) for x in (own, moved))
    largest = max((float(x.abs().max()) for x in there.values() if x.numel()), default=0.0) or 1.0

    def unlike(dual: State) -> float:
        gaps = (float((dual[n] - there[n]).abs().max()) for n in trained if there[n].numel())
        return max(gaps, default=0.0) / largest

    def dual(given: State) -> State:
        return act_dual(symmetry, g, state, given)

    laws = {"pairing": unpaired(dual(covector)), "gradient": unlike(dual(gradient))}
    return laws, {"pairing": unpaired(covector), "gradient": unlike(gradient)}


def pairing(covector: State, vector: State) -> float:
    """Σ ξᵢ vᵢ over all real entries."""
    return sum(float((as_real(x) * as_real(vector[n])).sum()) for n, x in covector.items())


def gradient_of(loss: Callable[[State], torch.Tensor], state: State, names: list[str]) -> State:
    leaves = {n: state[n].detach().clone().requires_grad_() for n in names}
    found = torch.autograd.grad(loss({**state, **leaves}), [*leaves.values()], allow_unused=True)
    return {
        n: torch.zeros_like(x) if d is None else d
        for (n, x), d in zip(leaves.items(), found, strict=True)
    }


def loss_of(model: nn.Module, inputs: object) -> Callable[[State], torch.Tensor]:
    """A generic function of all outputs of the network, at any parameters."""
    args, kwargs = converted_inputs(inputs, torch.float64)

    def loss(params: State) -> torch.Tensor:
        copies = tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in args)
        outputs = functional(model, params, copies, kwargs)
        own = sum(x.sum() for x in params.values() if x.requires_grad)  # reaches every parameter
        return torch.stack([y.sin().sum() for y in outputs]).sum() + 0 * own.real

    return loss


def lost_on_file(symmetry: ParameterSymmetry, folder: Path) -> list[str]:
    """The formats that lose a digit of a word of elements, or anything of a symmetry."""
    generator = torch.Generator().manual_seed(9)
    g, h = (symmetry.sample(generator) for _ in range(2))
    word, lost = g @ ~h @ g, []
    for suffix in ("safetensors", "json"):
        word.save(folder / f"element.{suffix}")
        back = GroupElement.load(folder / f"element.{suffix}", symmetry)
        lost += [] if same(numbers(back), numbers(word)) else [suffix]
    read = ParameterSymmetry.from_json(symmetry.to_json())
    return lost if (read, read.fingerprint) == (symmetry, symmetry.fingerprint) else [*lost, "all"]


@functools.cache
def network(name: str) -> tuple[nn.Module, object, ParameterSymmetry]:
    model, inputs = build(name)
    return model, inputs, derived(name)


@pytest.mark.parametrize("name", ZOO)
def test_elements_of_the_zoo_form_a_group(name: str) -> None:
    model, _, symmetry = network(name)
    found = violations(symmetry, converted(model, torch.float64))
    assert max(found.values()) <= 1e-9, found


@pytest.mark.parametrize("name", ZOO)
def test_covectors_and_gradients_of_the_zoo_move_by_the_dual(name: str) -> None:
    model, inputs, symmetry = network(name)
    found, unmoved = dual_violations(symmetry, model, inputs)
    assert max(found.values()) <= 1e-9, found
    assert min(unmoved.values()) >= 1e-5 or not symmetry.spaces, unmoved


@pytest.mark.parametrize("name", ZOO)
def test_elements_of_the_zoo_come_back_from_file(name: str, tmp_path: Path) -> None:
    assert not lost_on_file(network(name)[2], tmp_path)


def test_a_number_that_is_lost_on_file_would_be_seen(
    between: tuple[ParameterSymmetry, State], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: one unit in the last place, or a section of the symmetry."""
    symmetry, _ = between
    read, seen = stored._parts, []

    def nudged(*given: Any) -> Any:
        parts = read(*given)
        field, named = next(iter(parts[0][1].items()))
        seen.append(field)
        parts[0][1][field] = {n: x.nextafter(x + 1) for n, x in named.items()}
        return parts

    monkeypatch.setattr(stored, "_parts", nudged)
    assert lost_on_file(symmetry, tmp_path) == ["safetensors", "json"] and len(seen) == 2
    other = symmetry.restrict(spaces="mlp.2")
    monkeypatch.setattr(ParameterSymmetry, "from_json", lambda _: other)
    assert "all" in lost_on_file(symmetry, tmp_path)


@seed(20261121)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    drawn=st.builds(
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
def test_random_networks_keep_every_law(tmp_path: Path, drawn: RandomNetwork) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        symmetry = find_symmetry(drawn, (drawn.inputs,))
        found = violations(symmetry, dict(drawn.state_dict()))
        duals, _ = dual_violations(symmetry, drawn, (drawn.inputs,))
    assert max([*found.values(), *duals.values()]) <= 1e-9, (drawn.taken, found, duals)
    assert not lost_on_file(symmetry, tmp_path), drawn.taken


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

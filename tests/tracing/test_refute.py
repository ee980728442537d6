"""Refutation: what is wrong is found and taken out, what is right stays, and the model as well."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

from paramsym import ParameterSymmetry, find_symmetry
from paramsym.algebra import GeneralLinear, Monomial, Permutation
from paramsym.tracing.refute import refute
from tests.tracing.corruptions import CORRUPTIONS, grown
from tests.tracing.random_networks import STEPS, RandomNetwork
from tests.tracing.test_random_networks import change
from tests.tracing.zoo import ZOO, Built, build, errors, randomise


def layers(activation: type[nn.Module], *widths: int) -> Built:
    """A feed-forward network of these widths."""
    found: list[nn.Module] = []
    for n, m in zip(widths, widths[1:], strict=False):
        found += [nn.Linear(n, m), activation()]
    inputs = torch.randn(9, widths[0], generator=torch.Generator().manual_seed(2))
    return randomise(nn.Sequential(*found[:-1])), (inputs,)


class Heads(nn.Module):
    """Two heads of three coordinates, read by one matrix and added up."""

    def __init__(self) -> None:
        super().__init__()
        self.write, self.read, self.out = nn.Linear(5, 6), nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        each = torch.relu(self.write(x)).view(-1, 2, 3)
        return self.out(torch.tanh(self.read(each)).sum(1))


OWN: dict[str, Callable[[], Built]] = {
    "square": lambda: layers(nn.ReLU, 5, 6, 6, 3),
    "narrow": lambda: layers(nn.Tanh, 5, 2, 2, 3),
    "heads": lambda: (randomise(Heads()), layers(nn.Tanh, 5, 1)[1]),
}


def made(name: str) -> Built:
    return OWN[name]() if name in OWN else build(name)


def worst(model: nn.Module, symmetry: ParameterSymmetry, inputs) -> float:
    """The error of everything, and of each claim by itself; infinite where nothing can move."""
    try:
        found = errors(model, symmetry, inputs)
    except (ValueError, RuntimeError, IndexError):
        return float("inf")
    found.pop("a wrong move")
    state = {n: t.double() for n, t in model.state_dict().items() if t.is_floating_point()}
    for name in symmetry.dead:
        found[name] = change_of(model, inputs, {**state, name: state[name] + 0.1})
    for name, rows in symmetry.unreached.items():
        other = state[name].clone()
        other[list(rows)] += torch.arange(other[list(rows)].numel()).view(len(rows), -1).sin()
        found[name] = change_of(model, inputs, {**state, name: other})
    return max(found.values())


def change_of(model: nn.Module, inputs, state: dict[str, torch.Tensor]) -> float:
    from paramsym.tracing.precision import converted, converted_inputs, functional

    args, kwargs = converted_inputs(inputs, torch.float64)
    own = converted(model, torch.float64)
    with torch.no_grad():
        before = functional(model, own, args, kwargs)
        after = functional(model, {n: state.get(n, t) for n, t in own.items()}, args, kwargs)
    return max(float((x - y).abs().max()) for x, y in zip(before, after, strict=True))


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_what_is_wrong_is_taken_out_and_what_is_right_stays(name: str) -> None:
    network, corrupt = CORRUPTIONS[name]
    model, inputs = made(network)
    sound = find_symmetry(model, inputs, check=False)
    wrong, touched = corrupt(sound)
    assert worst(model, sound, inputs) <= 1e-9 < 1e-6 <= worst(model, wrong, inputs)
    left = refute(model, wrong, inputs)
    assert left.checked.refuted
    assert worst(model, left, inputs) <= 1e-9
    assert left.checked.error <= 1e-8
    for space in sound.spaces.keys() - touched:
        assert left.spaces[space] == sound.spaces[space]
    shifts = {shift.name for shift in left.shifts}
    assert {shift.name for shift in sound.shifts} - touched <= shifts
    assert set(sound.dead) <= set(left.dead)


@pytest.mark.parametrize(
    ("name", "corruption", "group"),
    [
        ("MLP, ReLU", grown(Monomial, GeneralLinear), Monomial(7)),
        ("MLP, GELU", grown(Permutation, Monomial), Permutation(7)),
        ("MLP, tanh", CORRUPTIONS["tanh units are scaled"][1], "SignedPermutation(7)"),
        ("MLP, radial", CORRUPTIONS["radial units mix"][1], "Orthogonal(7)"),
        ("Llama", CORRUPTIONS["rotary pairs mix"][1], "ComplexScaling(2)"),
    ],
)
def test_the_most_that_survives_is_kept(name: str, corruption, group) -> None:
    model, inputs = build(name)
    wrong, (space,) = corruption(find_symmetry(model, inputs, check=False))
    left = refute(model, wrong, inputs)
    assert str(left.spaces[space].group) == str(group)
    (text,) = left.checked.refuted
    assert text == f"{space}: {wrong.spaces[space].group} became {group}"


@pytest.mark.parametrize("name", ZOO)
def test_there_is_no_false_alarm_in_the_zoo(name: str) -> None:
    model, inputs = build(name)
    symmetry = find_symmetry(model, inputs)
    assert symmetry == find_symmetry(model, inputs, check=False)
    checked = symmetry.checked
    assert checked.passes >= 3 and checked.dtype == "float64" and not checked.refuted, checked
    assert checked.error <= 1e-10, checked


def test_random_networks_raise_alarms_only_where_something_is_wrong() -> None:
    """An alarm is checked at the network's own weights by a measure that is none of ours."""
    draw, compared, names = torch.Generator().manual_seed(5), 0, sorted(STEPS)

    def number(below: int) -> int:
        return int(torch.randint(below, (), generator=draw))

    for _ in range(200):
        steps = [(names[number(len(names))], number(8), number(8)) for _ in range(2 + number(4))]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            network = RandomNetwork("vsi"[number(3)], steps, number(4), number(8))
            plain = find_symmetry(network, (network.inputs,), check=False)
            kept = refute(network, plain, (network.inputs,))
            compared += kept.checked.passes > 0
            assert bool(kept.checked.refuted) == (kept != plain)
            if kept.checked.refuted:
                assert moved_change(network, plain) >= 1e-8, (network.taken, kept.checked)
            assert moved_change(network, kept) <= 1e-8, (network.taken, kept.checked)
    assert compared >= 100


def moved_change(network: RandomNetwork, symmetry: ParameterSymmetry) -> float:
    """The largest change of the function under a few random elements."""
    from paramsym import act

    worst = 0.0
    for seed in range(4):
        element = symmetry.sample(torch.Generator().manual_seed(seed), 1.0)
        worst = max(worst, change(network, act(symmetry, element, network.state_dict())))
    return worst

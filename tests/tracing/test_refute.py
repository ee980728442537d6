"""Refutation: what is wrong is found and taken out, what is right stays, and the model as well."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

from paramsym import ParameterSymmetry, find_symmetry
from paramsym.algebra import GeneralLinear, Monomial, Permutation
from paramsym.checking import refute as module
from paramsym.checking import trials
from paramsym.checking.refute import refute
from tests.tracing.corruptions import CORRUPTIONS, grown
from tests.tracing.random_networks import STEPS, RandomNetwork
from tests.tracing.test_random_networks import change
from tests.tracing.zoo import ZOO, Built, build, derived, errors, randomise


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
    from paramsym.recording.precision import converted, converted_inputs, functional

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
    symmetry = derived(name)
    assert symmetry == find_symmetry(model, inputs, check=False)
    checked = symmetry.checked
    assert checked.passes >= 3 and checked.dtype == "float64" and not checked.refuted, checked
    assert checked.error <= 1e-10, checked


@pytest.mark.parametrize("count", [30, pytest.param(600, marks=pytest.mark.slow)])
def test_random_networks_raise_alarms_only_where_something_is_wrong(count: int) -> None:
    """An alarm is checked at the network's own weights by a measure that is none of ours."""
    draw, compared, names = torch.Generator().manual_seed(5), 0, sorted(STEPS)

    def number(below: int) -> int:
        return int(torch.randint(below, (), generator=draw))

    for _ in range(count):
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
    assert compared >= count // 2


def moved_change(network: RandomNetwork, symmetry: ParameterSymmetry) -> float:
    """The largest change of the function under a few random elements."""
    from paramsym import act

    worst = 0.0
    for seed in range(4):
        element = symmetry.sample(torch.Generator().manual_seed(seed), 1.0)
        worst = max(worst, change(network, act(symmetry, element, network.state_dict())))
    return worst


# -- what can be compared, and what cannot ------------------------------------------------------


class Plain(nn.Module):
    """A ReLU network in which something is done on the way."""

    def __init__(self, step: Callable[[nn.Module, torch.Tensor], torch.Tensor]):
        super().__init__()
        self.step = step
        self.one, self.two = nn.Linear(5, 7), nn.Linear(7, 3)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("mask", torch.tensor([1, 0, 1, 1, 0, 1, 1]))
        self.log: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.step(self, torch.relu(self.one(x))))


def tried(step: Callable[[nn.Module, torch.Tensor], torch.Tensor], **options) -> ParameterSymmetry:
    """The symmetry of a network that does something on the way, called a ReLU network."""
    model, inputs = Plain(step), (torch.randn(1, 5, generator=torch.Generator().manual_seed(0)),)
    symmetry = find_symmetry(Plain(lambda _, x: x), inputs, check=False)
    return refute(model.eval(), symmetry, inputs, **options)


def writes(self, x: torch.Tensor) -> torch.Tensor:
    """Everything that a forward pass should not do."""
    self.seen += 1
    self.last = x
    self.log.append(x)
    self.training = True
    return x * self.seen


def test_the_model_is_only_read() -> None:
    model, inputs = Plain(writes), (torch.randn(2, 5),)
    model.eval()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    symmetry = find_symmetry(Plain(lambda _, x: x), inputs, check=False)
    checked = refute(model, symmetry, inputs).checked
    assert checked.passes >= 3 and not checked.refuted
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert not model.log and not hasattr(model, "last") and not model.training
    assert torch.get_default_dtype() == torch.float32


def test_the_model_is_only_read_where_it_raises() -> None:
    def stop(self, x: torch.Tensor) -> torch.Tensor:
        writes(self, x)
        raise KeyError("no such state")

    model, inputs = Plain(stop), (torch.randn(2, 5),)
    symmetry = find_symmetry(Plain(lambda _, x: x), inputs, check=False)
    random = torch.random.get_rng_state()
    checked = refute(model.eval(), symmetry, inputs).checked
    assert checked.passes == 0 and "KeyError: 'no such state'" in checked.note
    assert not model.log and not hasattr(model, "last") and not model.training
    assert torch.equal(random, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("step", "note"),
    [
        (lambda self, x: x * float("nan"), "no output is finite"),
        (lambda self, x: x * 0, "no output depends on what moves"),
    ],
)
def test_a_model_without_numbers_is_not_checked(step, note: str) -> None:
    kept = tried(step)
    assert not kept.checked.refuted
    assert note in kept.checked.note
    assert kept.checked.passes == 0
    assert str(kept.checked).startswith("refutation: not checked; ")


def test_random_forward_passes_are_not_held_against_the_symmetry() -> None:
    kept = tried(lambda self, x: x * torch.rand_like(x))
    assert kept.checked.passes == 0 and "random" in kept.checked.note
    wrong = tried(lambda self, x: x * torch.arange(1.0, 8.0))  # the same with fixed numbers
    assert wrong.checked.refuted


def test_a_wrong_claim_is_seen_from_a_single_sample() -> None:
    """At batch 1 a unit is open or shut; more inputs are drawn, in one call or in several."""
    steps = [lambda self, x: torch.tanh(x), lambda self, x: torch.tanh(x.view(1, 7))]
    for step in steps:  # the second accepts no other batch
        kept = tried(step)
        assert kept.checked.refuted == ("mlp: Monomial(7) became Permutation(7)",)
    assert not tried(lambda self, x: x.view(1, 7)).checked.refuted


def test_integers_keep_their_places() -> None:
    assert not tried(lambda self, x: x * 2).checked.refuted
    assert "became" in tried(lambda self, x: x * self.mask).checked.refuted[0]


def test_roots_of_parameters_are_taken_of_positive_numbers() -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.gain = nn.Linear(5, 7), nn.Parameter(torch.ones(7))
            self.two = nn.Linear(7, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.two(torch.relu(self.one(x)) * self.gain.sqrt())

    checked = find_symmetry(Root(), (torch.randn(4, 5),)).checked
    assert checked.passes >= 3 and not checked.refuted and not checked.note


def test_half_precision_is_tried_in_float64() -> None:
    model, inputs = build("MLP, ReLU")
    checked = find_symmetry(model.bfloat16(), (inputs[0].bfloat16(),)).checked
    assert checked.dtype == "float64" and checked.error <= 1e-12
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())


def test_the_numbers_of_the_weights_do_not_matter() -> None:
    model, inputs = build("convolutions")
    first = find_symmetry(model, inputs).checked
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(float("nan"))
    assert find_symmetry(model, inputs).checked == first


def test_dropout_is_left_out_and_named() -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Dropout(0.5), nn.Linear(7, 3))
    inputs = (torch.randn(4, 5),)
    kept = find_symmetry(model, inputs, training=True)
    assert "in distribution" in kept.checked.note and kept.checked.passes >= 3
    assert not find_symmetry(model, inputs).checked.note
    wrong, _ = grown(Monomial, GeneralLinear)(kept)
    assert refute(model, wrong, inputs, training=True).checked.refuted


@pytest.mark.parametrize("name", ["LSTM", "TransformerEncoderLayer", "Transformer"])
def test_dropout_inside_modules_is_left_out(name: str) -> None:
    model, inputs = build(name)
    for part in model.modules():
        if isinstance(part, nn.LSTM | nn.MultiheadAttention | nn.Dropout):
            setattr(part, "p" if isinstance(part, nn.Dropout) else "dropout", 0.5)
    checked = find_symmetry(model, inputs, training=True).checked
    assert checked.passes >= 3 and not checked.refuted
    assert "in distribution" in checked.note


def test_meta_tensors_and_large_models_are_left_out(monkeypatch) -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    checked = find_symmetry(model, (torch.randn(4, 5),)).checked
    assert checked.passes == 0 and "meta device" in str(checked)
    model, inputs = build("MLP, ReLU")
    monkeypatch.setattr(module, "LARGEST", 10)
    checked = find_symmetry(model, inputs).checked
    assert checked.passes == 0 and "above the limit" in str(checked)


def test_large_models_are_tried_in_float32_and_judged_in_float64(monkeypatch) -> None:
    monkeypatch.setattr(trials, "SMALL", 10)
    for name in ("convolutions", "Llama", "BERT", "LSTM"):
        model, inputs = build(name)
        checked = find_symmetry(model, inputs).checked
        assert checked.dtype == "float32" and not checked.refuted and checked.error <= 1e-4
    model, inputs = build("MLP, ReLU")
    wrong, (space,) = grown(Monomial, GeneralLinear)(find_symmetry(model, inputs))
    left = refute(model, wrong, inputs)
    assert left.checked.dtype == "float64"
    assert left.checked.refuted == (f"{space}: GeneralLinear(7) became Monomial(7)",)


def test_without_the_check_a_wrong_rule_passes_unnoticed(monkeypatch) -> None:
    from paramsym.checking import find

    model, inputs = build("MLP, GELU")
    wrong, _ = grown(Permutation, Monomial)(find_symmetry(model, inputs, check=False))
    monkeypatch.setattr(find, "infer", lambda graph: wrong)
    unnoticed = find_symmetry(model, inputs, check=False)
    assert unnoticed == wrong and not unnoticed.checked.passes
    assert worst(model, unnoticed, inputs) >= 1e-3
    kept = find_symmetry(model, inputs)
    assert kept.checked.refuted and worst(model, kept, inputs) <= 1e-12


def test_the_result_prints_and_is_read_back() -> None:
    model, inputs = build("MLP, ReLU")
    symmetry = find_symmetry(model, inputs)
    text = str(symmetry.checked)
    assert text.startswith("refutation: 8 passes in float64 at generic weights, worst error ")
    assert text.endswith("; nothing refuted")
    back = ParameterSymmetry.from_json(symmetry.to_json())
    assert back == symmetry and back.checked == symmetry.checked
    wrong, _ = grown(Monomial, GeneralLinear)(symmetry)
    left = refute(model, wrong, inputs)
    assert left == symmetry and left.checked != symmetry.checked  # it takes no part in equality
    assert "a defect of paramsym that you should report: " in str(left.checked)
    assert ParameterSymmetry.from_json(left.to_json()).checked == left.checked


def test_a_device_of_the_caller_without_numbers_changes_nothing() -> None:
    """Large models are built inside `torch.device("meta")`, and often asked about there, too."""

    class Counted(nn.Sequential):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            last = torch.arange(input.shape[1]).max()  # on the device of the caller
            return super().forward(input * 2 if last > 1 else input)

    def built() -> nn.Module:
        return Counted(nn.Linear(3, 5), nn.LayerNorm(5), nn.Linear(5, 2))

    with torch.device("meta"):
        inside = find_symmetry(built(), (torch.zeros(7, 3),))
        assert torch.get_default_device().type == "meta"
    assert str(inside) == str(find_symmetry(built(), (torch.zeros(7, 3),)))
    assert inside.spaces and not inside.unknown

"""Gradients at right angles to orbits: right models pass, wrong backwards are found and placed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from paramsym import find_symmetry, tangent
from paramsym.dynamics.gradients import GradientCheck, check_gradients
from paramsym.recording.outputs import floating_outputs
from tests.models import Small, Tied
from tests.tracing import programs, zoo
from tests.tracing.random_networks import STEPS, RandomNetwork

Backward = Callable[[Tensor, Tensor], Tensor]  # cotangent and input ↦ cotangent of the input


def wrong(backward: Backward, forward: Callable[[Tensor], Tensor] = torch.clone) -> zoo.Apply:
    """A layer whose backward says what it likes."""

    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            return backward(grads[0], *ctx.saved_tensors)

    return zoo.Apply(Custom.apply)


def relu(backward: Backward) -> zoo.Apply:
    return wrong(backward, torch.relu)


def loss_fn(returned: Any) -> Tensor:
    """A function of all outputs that no symmetry of its own has."""
    parts = []
    for y in floating_outputs(returned):
        y = torch.view_as_real(y) if y.is_complex() else y
        target = torch.linspace(-1, 1.3, y.numel(), dtype=y.dtype).reshape(y.shape).cos()
        parts.append((y - target).square().mean() + (y * target).mean())
    return torch.stack(parts).sum()


def perceptron(middle: nn.Module, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(20, 64), middle, nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10)
    )
    return model.to(dtype), torch.randn(32, 20, dtype=dtype)


def checked(middle: nn.Module, dtype: torch.dtype = torch.float32) -> GradientCheck:
    """The check of a perceptron, whose symmetry is read off its forward pass."""
    model, x = perceptron(middle, dtype)
    return check_gradients(model, find_symmetry(model, (x,), check=False), loss_fn, (x,))


# -- right models ------------------------------------------------------------------------------

FEW = ["MLP, ReLU", "MLP, leaky ReLU", "MLP, squared ReLU", "MLP, identity", "MLP, radial",
       "convolutions", "GPT-2", "Llama", "BERT", "ViT"]  # fmt: skip


@pytest.mark.parametrize("name", FEW, ids=zoo.names(FEW))
def test_right_models_are_at_right_angles(name: str, dtype: torch.dtype) -> None:
    model, inputs = zoo.build(name)
    symmetry = zoo.derived(name)
    found = check_gradients(model.to(dtype), symmetry, loss_fn, inputs)
    assert found, str(found)
    if dtype == torch.float64:
        assert max(row.measured for row in found.rows if row.verdict == "right") <= 1e-13


def test_a_batch_norm_passes_in_both_modes(dtype: torch.dtype) -> None:
    model = Small().to(dtype)
    x = model.example_inputs()
    rows = []
    for training in (False, True):
        symmetry = find_symmetry(model, x, training=training, check=False)
        found = check_gradients(model, symmetry, loss_fn, x, training=training)
        assert found, str(found)
        rows.append(len(found.rows))
    assert rows[0] != rows[1]  # batch statistics absorb scales


def test_statistics_that_rounding_hides_are_read_all_the_same() -> None:
    model = Small()
    x = model.example_inputs()
    symmetry = find_symmetry(model, x, check=False)
    with torch.no_grad():
        model.last.weight.mul_(1e-12)  # beside a bias of one
    found = check_gradients(model, symmetry, loss_fn, x)
    assert found, str(found)


def right_models(count: int) -> Iterator[tuple[str, nn.Module, Any]]:
    """The zoo, random networks and random programs."""
    for name in zoo.ZOO:
        yield name, *zoo.build(name)
    source, names = random.Random(0), sorted(STEPS)
    for k in range(count):
        steps = [(source.choice(names), source.randrange(8), source.randrange(8))
                 for _ in range(source.randrange(2, 7))]  # fmt: skip
        network = RandomNetwork(source.choice("vsi"), steps, source.randrange(4), k % 8)
        yield f"network {steps}", network, (network.inputs,)
    for k in range(count):
        program = programs.draw(k)
        inputs = tuple(each.draw(torch.Generator().manual_seed(1)) for each in program.inputs)
        yield f"program {k}", program.build(0), inputs


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::Warning")
def test_no_alarm_on_right_models() -> None:
    seen = dict.fromkeys((torch.float64, torch.float32), 0)
    for name, model, inputs in right_models(150):
        symmetry = find_symmetry(model, inputs)
        for dtype in seen:
            try:
                found = check_gradients(model.to(dtype), symmetry, loss_fn, inputs)
            except RuntimeError:  # constants of one precision, or no gradient at all
                continue
            assert not found.wrong, (name, dtype, str(found))
            seen[dtype] += found.passed
    assert min(seen.values()) >= 200


# -- wrong backwards ---------------------------------------------------------------------------

FOUND: dict[str, Backward] = {
    "one per cent too large": lambda g, x: 1.01 * g * (x > 0),
    "leaks 0.1 %": lambda g, x: torch.where(x > 0, g, 1e-3 * g),
    "detached": lambda g, x: torch.zeros_like(g),
    "straight through": lambda g, x: g,
    "one sample lost": lambda g, x: torch.cat([0 * g[:1], (g * (x > 0))[1:]]),
    "one unit lost": lambda g, x: torch.cat([0 * g[:, :1], (g * (x > 0))[:, 1:]], 1),
    "units in another order": lambda g, x: (g * (x > 0)).roll(1, 1),
    "samples in another order": lambda g, x: (g * (x > 0)).flip(0),
    "clipped": lambda g, x: (g * (x > 0)).clamp(-1e-4, 1e-4),
}


@pytest.mark.parametrize("backward", FOUND.values(), ids=zoo.names([*FOUND]))
def test_wrong_backwards_are_found_and_placed(backward: Backward, dtype: torch.dtype) -> None:
    found = checked(relu(backward), dtype)
    (row,) = found.wrong
    assert not found and (row.name, row.writers, row.readers) == (
        "mlp", ("0.weight", "0.bias"), ("2.weight",)
    )  # fmt: skip
    assert found.spaces["mlp.2"].verdict == "right"
    assert "between 0.weight, 0.bias and 2.weight" in str(found)
    assert row.measured > 300 * row.floor


def test_a_right_backward_of_ones_own_passes_beside_them(dtype: torch.dtype) -> None:
    found = checked(relu(lambda g, x: g * (x > 0)), dtype)
    assert found
    assert max(row.floor for row in found.rows) <= {torch.float32: 1e-7}.get(dtype, 1e-14)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**31), st.floats(1e-3, 1.0))
def test_random_mistakes_are_found(seed: int, size: float) -> None:
    """Linear maps of the cotangent, of every direction: none but those that commute passes."""
    noise = torch.randn(64, 64, generator=torch.Generator().manual_seed(seed)) / 8
    found = checked(relu(lambda g, x: (g + size * g @ noise) * (x > 0)))
    assert [row.name for row in found.wrong] == ["mlp"]


def test_a_layer_norm_that_forgets_its_mean_is_found_in_a_stream_that_turns() -> None:
    def backward(g: Tensor, x: Tensor) -> Tensor:
        y = (x - x.mean(-1, keepdim=True)) / x.var(-1, correction=0, keepdim=True).sqrt()
        rate = x.var(-1, correction=0, keepdim=True).rsqrt()
        return rate * (g - y * (g * y).mean(-1, keepdim=True))  # − mean(g) is missing

    def build(norm: nn.Module) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 8), norm, nn.Linear(8, 3))

    x = torch.randn(16, 5)
    right = nn.LayerNorm(8, eps=0.0, elementwise_affine=False)
    for model, passed in ((build(right), True), (build(wrong(backward, right)), False)):
        symmetry = find_symmetry(model, (x,), check=False)
        assert check_gradients(model, symmetry, loss_fn, (x,)).passed == passed


BLIND: dict[str, Callable[[], nn.Module]] = {
    "behind all readers": lambda: nn.Sequential(
        nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3), wrong(lambda g, x: 2 * g)
    ),
    "before all writers": lambda: nn.Sequential(
        wrong(lambda g, x: 2 * g), nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)
    ),
}


@pytest.mark.parametrize("name", BLIND, ids=zoo.names([*BLIND]))
def test_what_no_space_encloses_is_not_seen(name: str) -> None:
    torch.manual_seed(0)
    model, x = BLIND[name](), torch.randn(9, 5)
    assert check_gradients(model, find_symmetry(model, (x,)), loss_fn, (x,))


def test_a_saturated_softmax_is_no_alarm() -> None:
    """Its roundings hardly change with the parameters; the pairing in float64 tells them apart."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 3), nn.Softmax(-1))
    with torch.no_grad():
        model[0].weight.mul_(12)
    x = torch.randn(64, 5)
    symmetry = find_symmetry(model, (x,))
    assert check_gradients(model, symmetry, loss_fn, (x,))


@pytest.mark.parametrize("factor, passed", [(1.0, True), (1.1, False)])
def test_lower_precision_inside_raises_the_floor_to_its_own(factor: float, passed: bool) -> None:
    model, x = perceptron(relu(lambda g, x: factor * g * (x > 0)))
    symmetry = find_symmetry(model, (x,), check=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = check_gradients(model, symmetry, lambda y: loss_fn(y.float()), (x,))
    assert (found.dtype, found.precision) == ("float32", "bfloat16")
    assert found.passed == passed and min(row.floor for row in found.rows) > 1e-5


def test_inputs_may_be_written_to_and_are_left_alone() -> None:
    model, x = perceptron(nn.ReLU())
    shifted = nn.Sequential(zoo.Apply(lambda x: x.add_(1)), *model)
    before = x.clone()
    symmetry = find_symmetry(shifted, (x,), check=False)
    assert check_gradients(shifted, symmetry, loss_fn, (x,)) and torch.equal(before, x)


# -- tied, frozen, integers, frames ------------------------------------------------------------


def test_tied_parameters_count_once() -> None:
    model, tokens = Tied(), torch.arange(11)[None]
    symmetry = find_symmetry(model, (tokens,))
    found = check_gradients(model, symmetry, loss_fn, (tokens,))
    assert symmetry.ties and found, str(found)


def test_frozen_parameters_are_differentiated_as_well() -> None:
    model, x = perceptron(relu(lambda g, x: 1.01 * g * (x > 0)))
    symmetry = find_symmetry(model, (x,))
    model[0].requires_grad_(False)
    found = check_gradients(model, symmetry, loss_fn, (x,))
    assert [row.name for row in found.wrong] == ["mlp"]
    assert model[0].weight.grad is None and not model[0].weight.requires_grad


def test_what_no_gradient_reaches_is_said_not_to_be_checked() -> None:
    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.middle, self.last = nn.Linear(5, 7), nn.Linear(7, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                x = torch.relu(self.first(x))
            return self.last(torch.relu(self.middle(x)))

    torch.manual_seed(0)
    model, x = Features(), torch.randn(9, 5)
    symmetry = find_symmetry(model, (x,))
    model.first.requires_grad_(False)
    found = check_gradients(model, symmetry, loss_fn, (x,))
    assert [row.verdict for row in found.rows] == ["not checked", "right"]
    model.first.requires_grad_(True)  # trained, and yet detached
    assert not check_gradients(model, symmetry, loss_fn, (x,))


def test_the_model_is_left_alone() -> None:
    model = Small().train()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    symmetry = find_symmetry(model, model.example_inputs(), training=True)
    check_gradients(model, symmetry, loss_fn, model.example_inputs(), training=True)
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    assert model.training and all(p.grad is None for p in model.parameters())


def test_the_measure_is_that_of_the_dense_matrix() -> None:
    model, x = perceptron(relu(lambda g, x: 1.01 * g * (x > 0)), torch.float64)
    symmetry = find_symmetry(model, (x,), check=False)
    row = check_gradients(model, symmetry, loss_fn, (x,)).spaces["mlp"]
    loss_fn(model(x)).backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    operator = tangent(symmetry, model.state_dict())
    block = operator.dense()[: operator.blocks[0].size]
    own = (block != 0).any(0)
    exact = (block @ gradient).norm() / (gradient[own].norm() * block.norm())
    assert row.measured == pytest.approx(float(exact), rel=0.1)  # lengths are estimated


def test_results_are_plain_and_say_when_nothing_was_shown() -> None:
    found = checked(nn.ReLU())
    data = json.loads(json.dumps(found.to_dict()))
    assert data["passed"] and [row["name"] for row in data["rows"]] == [*found.spaces]
    model, x = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), torch.randn(9, 5)
    empty = check_gradients(model, find_symmetry(model, (x,)), loss_fn, (x,))
    assert not empty and "nothing was shown" in str(empty)


# -- bad input ---------------------------------------------------------------------------------


def _penalty(model: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda y: y.square().mean() + sum(p.square().sum() for p in model.parameters())


class Noisy(nn.Module):
    """Noise inside of the model, from its own generator."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.own = torch.Generator().manual_seed(0) if own else None

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn(x.shape, generator=self.own)


class Skipping(nn.Module):
    """Noise from the generator of Python, or of NumPy, as depths are often dropped."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + self.draw())


def test_a_penalty_on_weights_is_refused() -> None:
    model, x = perceptron(nn.ReLU())
    symmetry = find_symmetry(model, (x,), check=False)
    with pytest.raises(ValueError, match="'0.weight'.* past the outputs.*Leave the penalty out"):
        check_gradients(model, symmetry, _penalty(model), (x,))


def test_a_backward_that_adds_something_is_told_from_a_penalty() -> None:
    with pytest.raises(ValueError, match="its backward gives another one to '0.weight'.*linear"):
        checked(relu(lambda g, x: g * (x > 0) + 1e-4))


def test_reading_past_the_chosen_outputs_is_refused() -> None:
    kept: list[Tensor] = []

    class Leaky(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            kept[:] = [torch.relu(self[0](x))]
            return self[1](kept[0])

    model, x = Leaky(nn.Linear(5, 7), nn.Linear(7, 3)), torch.randn(9, 5)
    symmetry = find_symmetry(model, (x,), check=False)
    with pytest.raises(ValueError, match="past the outputs"):
        check_gradients(model, symmetry, lambda y: y.sum() + kept[0].square().sum(), (x,))


@pytest.mark.parametrize(
    "noise",
    [nn.Dropout(0.5), Noisy(False), Noisy(True), Skipping(random.random), Skipping(np.random.rand)],
)
def test_a_model_that_draws_is_refused(noise: nn.Module) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), noise, nn.Linear(7, 3))
    x = torch.randn(9, 5)
    plain = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Identity(), nn.Linear(7, 3))
    symmetry = find_symmetry(plain, (x,))
    with pytest.raises(ValueError, match="draws random numbers.*training=False"):
        check_gradients(model, symmetry, loss_fn, (x,), training=True)


def test_noise_in_the_loss_does_no_harm() -> None:
    model, x = perceptron(nn.ReLU())
    symmetry = find_symmetry(model, (x,), check=False)
    assert check_gradients(
        model, symmetry, lambda y: (y + torch.randn(y.shape)).square().mean(), (x,)
    )


def test_the_symmetry_of_the_other_mode_is_told_from_a_wrong_backward() -> None:
    model = Small()
    symmetry = find_symmetry(model, model.example_inputs(), training=True)
    with pytest.raises(ValueError, match="outputs themselves change.*another mode"):
        check_gradients(model, symmetry, loss_fn, model.example_inputs())


@pytest.mark.parametrize(
    "loss, message",
    [
        (lambda y: y, "one real number"),
        (lambda y: y.sum() * float("nan"), "finite number"),
        (lambda y: y.detach().sum(), "no way from the loss"),
        (lambda y: (0 * y).square().sum().sqrt(), "gradient of '0.weight'"),
    ],
)
def test_losses_that_are_none_are_refused(loss: Callable, message: str) -> None:
    model, x = perceptron(nn.ReLU())
    symmetry = find_symmetry(model, (x,), check=False)
    with pytest.raises(ValueError, match=message):
        check_gradients(model, symmetry, loss, (x,))


def test_weights_that_are_no_numbers_and_numbers_of_draws_are_refused() -> None:
    model, x = perceptron(nn.ReLU())
    symmetry = find_symmetry(model, (x,), check=False)
    with pytest.raises(ValueError, match="draws=1.*two displaced"):
        check_gradients(model, symmetry, loss_fn, (x,), draws=1)
    with torch.no_grad():
        model[2].weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match="'2.weight' holds numbers that are not finite"):
        check_gradients(model, symmetry, loss_fn, (x,))

"""Teleports keep the function, raise what they climb, carry the optimiser, and lose nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paramsym import ParameterSymmetry, act, act_dual, find_symmetry
from paramsym.dynamics.loss import ModelLoss
from paramsym.dynamics.objectives import Objective
from paramsym.dynamics.orbit_action import OrbitAction
from paramsym.dynamics.teleportation import teleport
from tests.models import Small, Tied
from tests.tracing import zoo


def uniform(seed: int) -> tuple[nn.Module, Tensor, Callable[[Tensor], Tensor]]:
    """5-6-7-8 with leaky ReLU, as in the paper, with its loss."""
    generator = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for before, after in ((5, 6), (6, 7), (7, 8)):
        layers += [nn.Linear(before, after, bias=False), nn.LeakyReLU(0.1)]
    model = nn.Sequential(*layers[:-1]).double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.rand(p.shape, generator=generator, dtype=torch.float64))
    x, y = (torch.rand(4, n, generator=generator, dtype=torch.float64) for n in (5, 8))
    return model, x, lambda found: (found - y).square().sum(1).mean()


def last_loss(seed: int, bound: float | None, momentum: float = 0.0) -> float:
    model, x, error = uniform(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=momentum)
    symmetry = find_symmetry(model, (x,), check=False)
    for epoch in range(50):
        if epoch == 5 and bound is not None:
            found = teleport(model, symmetry, error, (x,), optimizer, bound=bound)
            assert found.loss_change <= 1e-12
            assert found.after.parameter_norm <= bound * found.before.parameter_norm
        optimizer.zero_grad()
        error(model(x)).backward()
        optimizer.step()
    return float(error(model(x)).detach())


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {n: t.clone() for n, t in model.state_dict().items()}


def unchanged(model: nn.Module, before: dict[str, Tensor]) -> bool:
    return all(torch.equal(before[n], t) for n, t in model.state_dict().items())


def test_descent_goes_on_faster_by_the_default_bound_and_diverges_without() -> None:
    plain = [last_loss(seed, None) for seed in range(5)]
    teleported = [last_loss(seed, 1.5) for seed in range(5)]
    assert sum(teleported) <= 0.4 * sum(plain)
    assert all(b < a for a, b in zip(plain, teleported, strict=True))
    assert not math.isfinite(last_loss(0, 1e6))


@pytest.mark.parametrize("objective", ["gradient", "sharpness"])
def test_the_objective_grows_and_the_element_leads_there(objective: str) -> None:
    model, x, error = uniform(0)
    symmetry = find_symmetry(model, (x,), check=False)
    before = snapshot(model)
    found = teleport(model, symmetry, error, (x,), objective=objective)
    assert found.after.objective > found.before.objective and found.loss_change <= 1e-12
    assert found.steps >= 2 and found.evaluations <= 16
    assert found.element is not None
    moved = act(symmetry, found.element, before)
    assert all(torch.allclose(moved[n], t, rtol=1e-12) for n, t in model.state_dict().items())
    error(model(x)).backward()
    norm = math.hypot(*(float(p.grad.norm()) for p in model.parameters()))
    assert found.after.gradient_norm == pytest.approx(norm, rel=1e-10)
    assert "evaluations" in str(found)


def test_elements_belong_to_the_symmetry_in_training_mode_as_well() -> None:
    model = Small().double()
    x = model.example_inputs()
    symmetry = find_symmetry(model, x, training=True, check=False)
    found = teleport(model, symmetry, error_of, x, training=True)
    assert found.steps and found.loss_change <= 1e-12
    assert found.element is not None and found.element.symmetry == symmetry


def test_why_no_further_step_was_taken_is_said() -> None:
    model, x, error = uniform(0)
    symmetry = find_symmetry(model, (x,), check=False)
    state = snapshot(model)
    assert "all evaluations" in teleport(model, symmetry, error, (x,), steps=2).ended
    model.load_state_dict(state)
    assert "bound" in teleport(model, symmetry, error, (x,)).ended
    model.load_state_dict(state)
    assert teleport(model, symmetry, error, (x,), bound=1).steps == 0


def test_objectives_and_their_slopes_are_those_of_the_dense_hessian() -> None:
    torch.manual_seed(0)
    model, x = (
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(),
        torch.randn(6, 3),
    )
    names = [n for n, _ in model.named_parameters()]
    shapes = [p.shape for p in model.parameters()]
    target = torch.randn(6, 2).double()

    def error(y: Tensor) -> Tensor:
        return (y - target).square().mean()

    def flat(point: Tensor) -> Tensor:
        parts = point.split([s.numel() for s in shapes])
        state = {n: p.reshape(s) for n, p, s in zip(names, parts, shapes, strict=True)}
        return error(torch.func.functional_call(model, state, (x.double(),)))

    point = torch.cat([p.detach().flatten() for p in model.parameters()])
    hessian = torch.func.hessian(flat)
    gradient = torch.func.grad(flat)(point)
    exact = {
        "gradient": (gradient.square().sum().log(),
                     2 * hessian(point) @ gradient / gradient.square().sum()),
        "sharpness": (-torch.linalg.eigvalsh(hessian(point))[-1],
                      -torch.func.grad(lambda p: torch.linalg.eigvalsh(hessian(p))[-1])(point)),
    }  # fmt: skip
    loss = ModelLoss(model, error, (x,), "test")
    for objective, (value, slope) in exact.items():
        of = Objective(loss, objective, torch.Generator().manual_seed(0))
        for _ in range(10):  # the search goes on where it was
            found = of.at(loss.state)
        derivative = torch.cat([found.derivative[n].flatten() for n in names])
        assert found.value == pytest.approx(float(value), rel=1e-6)
        assert torch.allclose(derivative, slope, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_the_sharpness_is_the_largest_eigenvalue_where_eigenvalues_crowd(seed: int) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 4), nn.LeakyReLU(), nn.Linear(4, 3)).double()
    x, target = torch.randn(5, 6).double(), torch.randn(5, 3).double()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.3)  # eigenvalues come in near pairs of both signs

    def error(y: Tensor) -> Tensor:
        return (y - target).square().mean()

    def sharpness() -> float:
        names, shapes = zip(*((n, p.shape) for n, p in model.named_parameters()), strict=True)

        def flat(point: Tensor) -> Tensor:
            parts = point.split([s.numel() for s in shapes])
            state = {n: p.reshape(s) for n, p, s in zip(names, parts, shapes, strict=True)}
            return error(torch.func.functional_call(model, state, (x,)))

        point = torch.cat([p.detach().flatten() for p in model.parameters()])
        return float(torch.linalg.eigvalsh(torch.func.hessian(flat)(point))[-1])

    before = sharpness()
    symmetry = find_symmetry(model, (x,), check=False)
    found = teleport(model, symmetry, error, (x,), objective="sharpness", steps=8)
    after = sharpness()
    assert found.steps and after < before
    assert -found.before.objective == pytest.approx(before, rel=1e-3)
    assert -found.after.objective == pytest.approx(after, rel=1e-3)


MODELS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "linear": lambda: zoo.build("MLP, identity"),  # changes of basis and shifts
    "batch norm": lambda: (Small().eval(), Small().example_inputs()),  # moving buffers
    "tied": lambda: (Tied(), (torch.arange(11)[None],)),
    "GPT-2": lambda: zoo.build("GPT-2"),  # frames, fused attention
}


def error_of(returned: Any) -> Tensor:
    y = getattr(returned, "logits", returned)
    target = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape).cos()
    return (y - target).square().mean()


@pytest.mark.parametrize("name", MODELS)
def test_momentum_becomes_what_it_would_be_at_the_new_point(name: str) -> None:
    model, inputs = MODELS[name]()
    model = model.double()
    symmetry = find_symmetry(model, inputs, check=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)

    def gradients() -> None:
        optimizer.zero_grad()
        floating = ModelLoss(model, error_of, inputs, "test")
        for name, slope in floating.gradient(floating.params).items():
            floating.own[name].grad = slope

    before = snapshot(model)
    gradients()
    optimizer.step()  # momentum is the gradient
    momentum = [optimizer.state[p]["momentum_buffer"].clone() for p in model.parameters()]
    found = teleport(model, symmetry, error_of, inputs, optimizer, steps=4)
    assert found.loss_change <= 1e-10 and not unchanged(model, before)
    gradients()
    apart = 0.0
    for p, earlier in zip(model.parameters(), momentum, strict=True):
        held = optimizer.state[p]["momentum_buffer"]
        expected = torch.zeros_like(p) if p.grad is None else p.grad
        assert torch.allclose(held, expected, rtol=1e-7, atol=1e-9)
        apart = max(apart, float((held - earlier).abs().max()))
    assert apart > 1e-4  # the old momentum would not have done


def test_second_moments_follow_scales_and_hold_everything_else() -> None:
    model, inputs = zoo.build("MLP, identity")
    model = model.double()
    symmetry = find_symmetry(model, inputs, check=False)
    adam = torch.optim.Adam(model.parameters(), lr=0.0)
    error_of(model(inputs[0].double())).backward()
    adam.step()
    before = snapshot(model)
    found = teleport(model, symmetry, error_of, inputs, adam)
    assert set(found.held) == {*symmetry.spaces, *symmetry.shift_of}  # bases and shifts alone
    assert found.steps == 0 and unchanged(model, before)

    model, x, error = uniform(0)
    symmetry = find_symmetry(model, (x,), check=False)
    adam = torch.optim.Adam(model.parameters(), lr=0.0, betas=(0.0, 0.0))
    error(model(x)).backward()
    adam.step()
    assert not teleport(model, symmetry, error, (x,), adam).held
    adam.zero_grad()
    error(model(x)).backward()
    for p in model.parameters():
        assert p.grad is not None
        assert torch.allclose(adam.state[p]["exp_avg"], p.grad, rtol=1e-9)
        assert torch.allclose(adam.state[p]["exp_avg_sq"], p.grad.square(), rtol=1e-9)


def test_scales_move_under_adam_beside_changes_of_basis_that_are_held() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.Linear(5, 3)).double()
    x = torch.randn(7, 4).double()
    symmetry = find_symmetry(model, (x,), check=False)
    first = torch.optim.AdamW(model[:2].parameters(), lr=0.0, betas=(0.0, 0.0), amsgrad=True)
    second = torch.optim.SGD(model[2:].parameters(), lr=0.0, momentum=0.9)  # one of several

    def descend() -> None:
        model.zero_grad()
        error_of(model(x)).backward()
        first.step()
        second.step()

    descend()
    found = teleport(model, symmetry, error_of, (x,), [first, second])
    assert found.steps and 0 < len(found.held) < len(symmetry.spaces) + len(symmetry.shifts)
    held = {p: {**first.state[p], **second.state[p]} for p in model.parameters()}
    model.zero_grad()
    error_of(model(x)).backward()
    for p, entries in held.items():
        assert p.grad is not None
        for key in entries.keys() & {"exp_avg", "momentum_buffer"}:
            assert torch.allclose(entries[key], p.grad, rtol=1e-9, atol=1e-12)
        for key in entries.keys() & {"exp_avg_sq", "max_exp_avg_sq"}:
            assert torch.allclose(entries[key], p.grad.square(), rtol=1e-9, atol=1e-15)


def test_frozen_parameters_stay() -> None:
    model, x, error = uniform(0)
    symmetry = find_symmetry(model, (x,), check=False)
    model[0].requires_grad_(False)
    before = snapshot(model)
    found = teleport(model, symmetry, error, (x,))
    assert torch.equal(before["0.weight"], model[0].weight) and found.held == ("mlp",)
    assert not torch.equal(before["2.weight"], model[2].weight) and found.loss_change <= 1e-12


class Shrinking:
    """No symmetry: it shrinks all parameters."""

    def slopes(self, state: dict[str, Tensor], covector: dict[str, Tensor]) -> Tensor:
        return torch.stack([(x * state[n]).sum() for n, x in covector.items()]).sum()[None]

    def moved(self, state: dict[str, Tensor], coordinates: Tensor) -> dict[str, Tensor]:
        return {n: x * coordinates[0].exp() for n, x in state.items()}

    def carried(self, state: Any, coordinates: Tensor, moments: Any) -> Any:
        return moments

    def holding(self, names: Collection[str], moments: Any) -> Shrinking:
        return self


class Halved(OrbitAction):
    """Another action with the same interface: steps of half the length."""

    def moved(self, state: Any, coordinates: Tensor) -> dict[str, Tensor]:
        return super().moved(state, coordinates / 2)

    def holding(self, names: Collection[str], moments: Any) -> Halved:
        return self


def test_any_action_takes_part_and_one_that_moves_the_loss_is_refused() -> None:
    model, x, error = uniform(0)
    before = snapshot(model)
    with pytest.raises(ValueError, match="loss would move.*Nothing was changed"):
        teleport(model, Shrinking(), error, (x,))
    assert unchanged(model, before)
    action = Halved(find_symmetry(model, (x,), check=False))
    found = teleport(model, action, error, (x,))
    assert found.steps and found.loss_change <= 1e-12


def test_nothing_is_lost_when_something_fails() -> None:
    model, x, error = uniform(0)
    symmetry = find_symmetry(model, (x,), check=False)
    before, calls = snapshot(model), []

    def breaking(y: Tensor) -> Tensor:
        calls.append(y)
        if len(calls) > 4:
            raise RuntimeError("out of memory")
        return error(y)

    with pytest.raises(RuntimeError, match="out of memory"):
        teleport(model, symmetry, breaking, (x,))
    assert unchanged(model, before)
    adagrad = torch.optim.Adagrad(model.parameters())
    with pytest.raises(ValueError, match="'sum'.*action is not known"):
        teleport(model, symmetry, error, (x,), adagrad)
    assert unchanged(model, before)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"objective": "loss"}, "objective='loss'.*none of"),
        ({"bound": 0.5}, "bound=0.5.*at least 1"),
        ({"steps": 1}, "steps=1.*at least two"),
        ({"optimizer": torch.optim.SGD([nn.Parameter(torch.ones(1))])}, "none of its parameters"),
        ({"optimizer": nn.Linear(1, 1)}, "optimizer=….*a Linear came"),
    ],
)
def test_bad_choices_are_refused(changes: dict[str, Any], message: str) -> None:
    model, x, error = uniform(0)
    symmetry = find_symmetry(model, (x,), check=False)
    with pytest.raises(ValueError, match=message):
        teleport(model, symmetry, error, (x,), **changes)


def test_a_vanishing_gradient_and_a_penalty_are_refused() -> None:
    model, x, _ = uniform(0)
    symmetry = find_symmetry(model, (x,), check=False)
    with pytest.raises(ValueError, match="gradient vanishes or overflows"):
        teleport(model, symmetry, lambda y: 0 * y.sum(), (x,))
    with pytest.raises(ValueError, match="past the outputs"):
        teleport(model, symmetry, lambda y: y.sum() + model[0].weight.sum(), (x,))
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="requires_grad=False.*Unfreeze"):
        teleport(model, symmetry, lambda y: y.sum(), (x,))


def test_a_model_without_freedom_stays() -> None:
    model, x = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), torch.randn(9, 5)
    before = snapshot(model)
    found = teleport(model, find_symmetry(model, (x,)), error_of, (x,))
    assert found.steps == 0 and "nothing that moves" in found.ended and unchanged(model, before)


def test_act_dual_is_what_carries_momentum() -> None:
    model, x, error = uniform(0)
    symmetry: ParameterSymmetry = find_symmetry(model, (x,), check=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        error(model(x)).backward()
        optimizer.step()
    before = snapshot(model)
    named = dict(model.named_parameters())
    momentum = {n: optimizer.state[p]["momentum_buffer"].clone() for n, p in named.items()}
    found = teleport(model, symmetry, error, (x,), optimizer)
    assert found.element is not None
    dual = act_dual(symmetry, found.element, before, momentum)
    for n, p in named.items():
        assert torch.allclose(optimizer.state[p]["momentum_buffer"], dual[n], rtol=1e-10)

"""Training goes on as it would have, from the least norm of its orbit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from paramsym import Rebalance, Rebalanced, act, act_dual, act_state, balance
from paramsym.training.entries import entries_of
from paramsym.training.lightning import RebalanceCallback
from tests.training.networks import MADE, Run, scales

OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, 0.02),
    "momentum": lambda p: optim.SGD(p, 0.02, momentum=0.9),
    "Nesterov": lambda p: optim.SGD(p, 0.02, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "Adam": lambda p: optim.Adam(p, 0.01, amsgrad=True),
    "AdamW": lambda p: optim.AdamW(p, 0.01, foreach=True),
    "fused Adam": lambda p: optim.Adam(p, 0.01, fused=True),
    "NAdam": lambda p: optim.NAdam(p, 0.01),
    "RAdam": lambda p: optim.RAdam(p, 0.01),
    "Adamax": lambda p: optim.Adamax(p, 0.01),
    "RMSprop": lambda p: optim.RMSprop(p, 0.01, momentum=0.9, centered=True),
    "Adagrad": lambda p: optim.Adagrad(p, 0.01),
}
FUNCTION = {torch.float64: 1e-12, torch.float32: 1e-6}


def apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / other.abs().max())


def furthest(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    floats = [n for n in other if other[n].is_floating_point()]
    return max(apart(one[n], other[n]) for n in floats)


def cost(model: nn.Module, power: float) -> float:
    return sum(float(p.detach().double().abs().pow(power).sum()) for p in model.parameters())


# -- one rebalance ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FUNCTION, ids=str)
@pytest.mark.parametrize("optimizer", ["momentum", "Adam"])
@pytest.mark.parametrize("name", MADE)
def test_the_function_stays_and_the_norm_is_that_of_balance(
    name: str, optimizer: str, dtype: torch.dtype
) -> None:
    run = Run(name, OPTIMIZERS[optimizer], dtype=dtype)
    rebalance = Rebalance(run.symmetry, run.optimizer, every=100, model=run.model)
    run.step()
    params, before = run.state(), (run.output(), run.output(training=False))
    places = {n: p.data_ptr() for n, p in run.model.state_dict().items()}
    found = rebalance.now()
    assert apart(run.output(), before[0]) <= FUNCTION[dtype]
    assert apart(run.output(training=False), before[1]) <= FUNCTION[dtype]
    assert places == {n: p.data_ptr() for n, p in run.model.state_dict().items()}
    still = {*rebalance.held} & {*run.symmetry.spaces}
    least = balance(run.symmetry, params, hold=still, shifts=False)
    assert cost(run.model, 2) == pytest.approx(found.value, rel=1e-6)
    assert found.before == pytest.approx(least.before, rel=1e-6)
    assert found.value == pytest.approx(least.value, rel=1e-6)
    if name != "linear":  # of which null directions let the norm fall for ever
        assert found.status == "OPTIMAL" and found.gap <= 1e-3 * found.value
        assert found.value < 0.99 * found.before
    wrong = run.state()
    weight = next(n for n, p in wrong.items() if p.ndim > 1)
    run.model.load_state_dict({**wrong, weight: 1.1 * wrong[weight]})
    assert apart(run.output(training=False), before[1]) > 1e-4


@pytest.mark.parametrize("name", ["relu", "convolutional"])
def test_sums_of_absolute_values(name: str) -> None:
    run = Run(name, OPTIMIZERS["SGD"])
    rebalance = Rebalance(run.symmetry, run.optimizer, objective="l1", model=run.model)
    params, before = run.state(), run.output()
    found = rebalance.now()
    least = balance(run.symmetry, params, objective="l1", shifts=False)
    assert found.value == pytest.approx(least.value, rel=1e-4)
    assert cost(run.model, 1) == pytest.approx(found.value, rel=1e-12)
    assert apart(run.output(), before) <= 1e-12 and found.value < 0.99 * found.before
    squares = cost(run.model, 2)
    Rebalance(run.symmetry, run.optimizer, model=run.model).now()
    assert cost(run.model, 2) < 0.999 * squares  # the least of one is not the least of the other


@pytest.mark.parametrize("name", ["relu", "squared", "convolutional", "transformer"])
def test_warm_rebalances_stay_within_the_tolerance_of_balance(name: str) -> None:
    for dtype in FUNCTION:
        run = Run(name, OPTIMIZERS["momentum"], dtype=dtype)
        rebalance = Rebalance(run.symmetry, run.optimizer, every=100, model=run.model)
        for _ in range(4):
            rebalance.now()
            run.step()
            least = balance(run.symmetry, run.state(), shifts=False)
            found = rebalance.now()
            assert found.gap <= 1e-3 * found.value
            assert found.value == pytest.approx(least.value, rel=1e-6)


# -- the state of the optimiser --------------------------------------------------------------------


def keeps(run: Run) -> dict[str, dict[str, Any]]:
    """The state of an optimiser by name."""
    state = run.optimizer.state
    return {n: dict(state[p]) for n, p in run.model.named_parameters() if p in state}


@pytest.mark.parametrize(
    "optimizer", ["SGD", "momentum", "Nesterov", "Adam", "AdamW", "fused Adam"]
)
@pytest.mark.parametrize("name", ["relu", "transformer"])
def test_one_rebalance_is_balance_and_act_and_act_state(name: str, optimizer: str) -> None:
    run = Run(name, OPTIMIZERS[optimizer])
    rebalance = Rebalance(
        run.symmetry, run.optimizer, every=100, model=run.model, tolerance=1e-12, gradients=True
    )
    for _ in range(3):
        run.step()
    params, state = run.state(), copy.deepcopy(keeps(run))
    grads = {n: p.grad.clone() for n, p in run.model.named_parameters() if p.grad is not None}
    found = rebalance.now()
    still = {*rebalance.held} & {*run.symmetry.spaces}
    slow = balance(run.symmetry, params, hold=still, shifts=False)
    assert furthest(run.state(), slow.params) <= 1e-5  # the tolerance is on the norm, its square
    element = found.element
    assert furthest(run.state(), act(run.symmetry, element, params)) <= 1e-12
    expected, reached = act_state(run.symmetry, element, state, params), keeps(run)
    for n, entries in expected.items():
        for key, value in entries.items():
            if value is not None:
                torch.testing.assert_close(reached[n][key], value, rtol=1e-11, atol=0)
    dual = act_dual(run.symmetry, element, params, grads)
    for n, p in run.model.named_parameters():
        torch.testing.assert_close(p.grad, dual[n], rtol=1e-10, atol=1e-14)
    assert furthest(grads, dual) > 0.01


@pytest.mark.parametrize("optimizer", [n for n in OPTIMIZERS if n != "SGD"])
def test_entries_move_to_what_the_moved_gradients_would_have_made(optimizer: str) -> None:
    """The same gradients, seen at another point: which degree each entry has, by trial."""
    quiet = {"eps": 1e-300} if optimizer not in ("momentum", "Nesterov") else {}

    def fed(run: Run, gradients: list[dict[str, Tensor]]) -> dict[str, dict[str, Any]]:
        for group in run.optimizer.param_groups:
            group |= {**quiet, "weight_decay": 0.0}
        for own in gradients:
            for n, p in run.model.named_parameters():
                p.grad = own[n].clone()
            run.optimizer.step()
        return keeps(run)

    one, other = (Run("relu", OPTIMIZERS[optimizer]) for _ in range(2))
    generator = torch.Generator().manual_seed(2)
    drawn = [
        {n: torch.randn(p.shape, generator=generator).double()
         for n, p in one.model.named_parameters()} for _ in range(3)
    ]  # fmt: skip
    rebalance = Rebalance(one.symmetry, one.optimizer, every=100, model=one.model)
    fed(one, drawn)
    element = rebalance.now().element
    duals = [act_dual(one.symmetry, element, one.state(), own) for own in drawn]
    expected, reached = fed(other, duals), keeps(one)
    entries, worst = entries_of(one.optimizer)[0], 0.0
    for n, own in expected.items():
        for key, value in own.items():
            torch.testing.assert_close(reached[n][key], value, rtol=1e-9, atol=0)
            assert key in entries
    plain = fed(Run("relu", OPTIMIZERS[optimizer]), drawn)
    for n, own in plain.items():
        for key, value in own.items():
            if entries[key]:
                worst = max(worst, apart(value, reached[n][key]))
    assert worst > 0.1  # it had to move


# -- when ------------------------------------------------------------------------------------------


def test_every_nth_step_until_it_is_removed() -> None:
    run = Run("relu", OPTIMIZERS["momentum"])
    rebalance = Rebalance(run.symmetry, run.optimizer, every=3, model=run.model)
    counts = []
    for _ in range(7):
        run.step()
        counts.append(rebalance.count)
    assert counts == [0, 0, 1, 1, 1, 2, 2] and rebalance.steps == 7
    assert isinstance(rebalance.last, Rebalanced)
    rebalance.remove()
    for _ in range(3):
        run.step()
    assert rebalance.count == 2 and rebalance.steps == 7


def test_within_a_block_and_with_two_lines() -> None:
    run = Run("relu", OPTIMIZERS["Adam"], named=True)
    with Rebalance(run.symmetry, run.optimizer, every=1) as rebalance:
        run.step()
    run.step()
    assert rebalance.count == 1
    Rebalance(run.symmetry, run.optimizer, every=1)  # nobody holds it, and it goes on
    run.step()
    least = balance(run.symmetry, run.state(), shifts=False)
    assert least.before == pytest.approx(least.value, rel=1e-4)


def test_groups_and_frozen_parameters_move_together() -> None:
    run = Run("relu", OPTIMIZERS["SGD"])
    first, *others = run.model.parameters()
    first.requires_grad_(False)
    groups = [{"params": others[:2], "lr": 0.1}, {"params": others[2:], "weight_decay": 0.01}]
    optimizer = optim.SGD(groups, lr=0.02, momentum=0.9)
    rebalance = Rebalance(run.symmetry, optimizer, every=1, model=run.model)
    before = run.output()
    kept, start = first.clone(), rebalance.now()
    assert apart(run.output(), before) <= 1e-12 and start.value < 0.99 * start.before
    assert apart(first, kept) > 0.01 and not first.requires_grad
    run.loss().backward()
    optimizer.step()
    assert rebalance.count == 2 and rebalance.last is not None
    assert cost(run.model, 2) == pytest.approx(rebalance.last.value)


def test_gradients_stay_where_they_are_by_default() -> None:
    run = Run("relu", OPTIMIZERS["SGD"])
    rebalance = Rebalance(run.symmetry, run.optimizer, every=100, model=run.model)
    run.step()
    grads = [p.grad.clone() for p in run.model.parameters() if p.grad is not None]
    rebalance.now()
    for p, grad in zip(run.model.parameters(), grads, strict=True):
        assert p.grad is not None and torch.equal(p.grad, grad)


def test_bounds_and_what_is_held() -> None:
    run = Run("relu", OPTIMIZERS["SGD"])
    first, second = scales(run.symmetry)
    rebalance = Rebalance(
        run.symmetry, run.optimizer, model=run.model, hold=first, bounds={second: (0.9, 1.1)}
    )
    assert rebalance.held == {first: "it was asked for"}
    params, before = run.state(), run.output()
    found = rebalance.now()
    least = balance(run.symmetry, params, hold=first, bounds={second: (0.9, 1.1)}, shifts=False)
    assert found.value == pytest.approx(least.value, rel=1e-4) and second in found.held
    assert apart(run.output(), before) <= 1e-12
    free = balance(run.symmetry, params, shifts=False)
    assert found.value > 1.01 * free.value


def test_in_the_order_of_a_trainer() -> None:
    class Module(nn.Module):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

    run = Run("relu", OPTIMIZERS["momentum"])

    class Trainer:
        optimizers = (run.optimizer,)

    callback = RebalanceCallback(run.symmetry, "net", every=2)
    callback.on_train_start(Trainer(), Module(run.model))
    for _ in range(5):
        run.step()
    callback.on_train_end(Trainer(), Module(run.model))
    run.step()
    assert callback.rebalance is not None
    assert callback.rebalance.steps == 5 and callback.rebalance.count == 2

"""What training that knows its orbit promises: one curve for each orbit, and no rise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, optim

from paramsym import Rebalance, act, act_state
from tests.training.networks import Run, rescaling

OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, 0.02),
    "momentum": lambda p: optim.SGD(p, 0.02, momentum=0.9, weight_decay=1e-3),
    "Adam": lambda p: optim.Adam(p, 0.003),
    "RMSprop": lambda p: optim.RMSprop(p, 0.001, momentum=0.9),
}
EXACT = 1e-14  # tolerance of a rebalance from which equal orbits give equal points


class Multiplicative(optim.Optimizer):
    """w ← w − η w² ∂L/∂w, which commutes with positive scales of w."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p -= group["lr"] * p.square() * p.grad


def curve(run: Run, steps: int = 25) -> Tensor:
    return torch.tensor([run.step() for _ in range(steps)], dtype=torch.float64)


def apart(one: Tensor, other: Tensor) -> float:
    return float(((one - other) / other).abs().max())


def rebalanced(run: Run, every: int = 1, **options: Any) -> Rebalance:
    return Rebalance(
        run.symmetry, run.optimizer, every, model=run.model, tolerance=EXACT, **options
    )


@pytest.mark.parametrize("name", ["relu", "squared", "convolutional"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_equivalent_points_train_alike_if_they_are_rebalanced_first(
    name: str, optimizer: str
) -> None:
    curves = []
    for scaled in (0, 1, 2):
        run = Run(name, OPTIMIZERS[optimizer], scaled)
        rebalanced(run).now()
        curves.append(curve(run))
    assert apart(curves[1], curves[0]) <= 1e-9 and apart(curves[2], curves[0]) <= 1e-9
    free = [curve(Run(name, OPTIMIZERS[optimizer], scaled)) for scaled in (0, 1)]
    assert apart(free[1], free[0]) > 1e-3


@pytest.mark.parametrize("name", ["relu", "squared"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_move_within_training_is_undone_by_the_next_rebalance(name: str, optimizer: str) -> None:
    """State and parameters that a scale has moved, with both degrees, come back together."""

    def run_moved(strength: float, rebalance: bool) -> Tensor:
        run = Run(name, OPTIMIZERS[optimizer], scaled=0)
        hook = rebalanced(run)
        curve(run, 5)
        element = rescaling(run.symmetry, strength, seed=8)
        named = dict(run.model.named_parameters())
        state = {n: run.optimizer.state[p] for n, p in named.items() if p in run.optimizer.state}
        state = {n: entries for n, entries in state.items() if entries}
        if "square_avg" in next(iter(state.values()), {}):
            assert all(set(own) >= {"square_avg", "momentum_buffer"} for own in state.values())
            renamed = {n: {"exp_avg_sq": own["square_avg"]} for n, own in state.items()}
            for n, own in act_state(run.symmetry, element, renamed).items():
                state[n]["square_avg"].copy_(own["exp_avg_sq"])
        else:
            for n, own in act_state(run.symmetry, element, state).items():
                run.optimizer.state[named[n]] = own
        run.model.load_state_dict(act(run.symmetry, element, run.state()))
        if rebalance:
            hook.now()
        else:
            hook.remove()
        return curve(run)

    still = run_moved(0.0, rebalance=True)
    assert apart(run_moved(0.7, rebalance=True), still) <= 1e-9
    assert apart(run_moved(0.7, rebalance=False), still) > 1e-3


@pytest.mark.parametrize("name", ["relu", "squared"])
def test_steps_that_commute_with_scales_have_one_curve_with_and_without(name: str) -> None:
    curves = []
    for every in (0, 1, 3):
        run = Run(name, lambda p: Multiplicative(p, 2.0))
        if every:
            assert rebalanced(run, every, entries={}).now().value < 100
        curves.append(curve(run))
    assert curves[0][-1] < 0.9 * curves[0][0]
    assert apart(curves[1], curves[0]) <= 1e-9 and apart(curves[2], curves[0]) <= 1e-9
    descent = [Run(name, lambda p: optim.SGD(p, 0.1)) for _ in range(2)]
    rebalanced(descent[1])
    assert apart(curve(descent[1]), curve(descent[0])) > 1e-3


@pytest.mark.parametrize(("power", "objective"), [(2, "l2"), (1, "l1")])
def test_no_rebalance_raises_a_penalised_loss(power: int, objective: str) -> None:
    """Descent on L + λ Σ |w|^p in turns with its minimum over the orbit."""
    strength, falls = 3e-3, []
    run = Run("relu", OPTIMIZERS["SGD"])

    def penalised() -> Tensor:
        norms = [p.abs().pow(power).sum() for p in run.model.parameters()]
        return run.loss() + strength * torch.stack(norms).sum()

    rebalance = rebalanced(run, 10**6, objective=objective)
    for _ in range(15):
        run.optimizer.zero_grad()
        penalised().backward()
        run.optimizer.step()
        before = float(penalised().detach())
        found = rebalance.now()
        after = float(penalised().detach())
        assert after <= before * (1 + 1e-14)
        assert before - after == pytest.approx(
            strength * (found.before - found.value), abs=1e-12 * before
        )
        falls.append(before - after)
    assert falls[0] > 0.01 and sum(fall > 0 for fall in falls) >= 3
    with torch.no_grad():  # another point of the orbit has the loss, and a larger penalty
        least = float(penalised())
    run.model.load_state_dict(act(run.symmetry, rescaling(run.symmetry, 0.3, 1), run.state()))
    assert float(penalised().detach()) > least * 1.001

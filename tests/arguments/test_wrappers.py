"""What wraps a model or an optimiser is taken for what it holds, or refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.utils.checkpoint import checkpoint

import paramsym
from paramsym.arguments import WrongKind, module_of, optimizer_of
from paramsym.geometry.updates import updates_of


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).double()


INPUTS = (torch.randn(3, 4, dtype=torch.float64),)


@pytest.fixture
def ranks() -> Iterator[None]:
    store = distributed.HashStore()
    distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
    yield
    distributed.destroy_process_group()


def compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend="eager")


WRAPS = {
    "compiled": compiled,
    "DataParallel": nn.DataParallel,
    "DistributedDataParallel": nn.parallel.DistributedDataParallel,
    "both": lambda model: compiled(nn.DataParallel(model)),
}


@pytest.mark.parametrize("kind", WRAPS)
def test_a_wrapped_model_is_the_model(kind: str, ranks: None) -> None:
    model = network()
    wrapped = WRAPS[kind](model)
    assert module_of(wrapped) is model
    assert paramsym.find_symmetry(wrapped, INPUTS) == paramsym.find_symmetry(model, INPUTS)
    assert_alike(wrapped, model)


def assert_alike(wrapped: Any, model: nn.Module) -> None:
    """Every function that takes a model takes both, and finds the same."""
    symmetry = paramsym.find_symmetry(wrapped, INPUTS)
    assert symmetry.signature == paramsym.find_symmetry(model, INPUTS).signature
    assert paramsym.verify(wrapped, symmetry, INPUTS).error < 1e-12
    assert paramsym.audit(wrapped, INPUTS).unexplained == 0
    loss = lambda y: y.square().mean()  # noqa: E731
    assert paramsym.check_gradients(wrapped, symmetry, loss, INPUTS).passed
    assert paramsym.teleport(wrapped, symmetry, loss, INPUTS, steps=3).loss_change < 1e-12
    assert paramsym.readings(wrapped, symmetry, model.state_dict(), INPUTS)
    assert paramsym.assert_lowering(wrapped, INPUTS).worst < 1e-12
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    assert paramsym.ConservationLedger(symmetry, wrapped, optimizer).laws
    paramsym.Rebalance(symmetry, optimizer, model=wrapped).remove()


class Checkpointed(nn.Sequential):
    """Layers whose activations are computed again in the backward pass."""

    reentrant = False

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return checkpoint(super().forward, input, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activations_that_are_computed_again_are_as_those_that_are_kept(reentrant: bool) -> None:
    """A backward pass outside of the call would compute them at the model's own weights."""
    model = network()
    wrapped = Checkpointed(*model)
    wrapped.reentrant = reentrant
    assert_alike(wrapped, model)
    x = INPUTS[0].clone().requires_grad_()
    wrapped(x).sum().backward()  # checkpoints are there again
    assert x.grad is not None and wrapped(x).grad_fn.name().startswith("Checkpoint") == reentrant


def test_what_is_compiled_inside_runs_as_it_was_written() -> None:
    model = network()
    model[1] = compiled(model[1])
    model.compile(backend="eager")
    symmetry = paramsym.find_symmetry(model, INPUTS)
    assert str(symmetry.spaces["mlp"].group) == "Monomial(6)"
    assert paramsym.verify(model, symmetry, INPUTS).error < 1e-12


def test_weights_of_a_wrapped_model_are_told_from_those_of_the_model() -> None:
    model = network()
    symmetry = paramsym.find_symmetry(model, INPUTS)
    g = symmetry.sample(torch.Generator().manual_seed(0))
    for wrapped, prefix in ((compiled(model), "_orig_mod."), (nn.DataParallel(model), "module.")):
        with pytest.raises(ValueError, match=f"begin with '{prefix}'"):
            paramsym.act(symmetry, g, wrapped.state_dict())


class Accelerated(torch.optim.Optimizer):
    """As accelerate has it: an optimiser by name alone, without hooks of its own."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer = optimizer

    @property
    def state(self) -> Any:
        return self.optimizer.state

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    @property
    def defaults(self) -> Any:
        return self.optimizer.defaults

    def step(self, closure: Any = None) -> None:
        self.optimizer.step(closure)


class Lookahead:
    """It steps in a way of its own, and holds weights of its own."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer, self.state = optimizer, {}


def schedule(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 3)


@pytest.mark.parametrize("wrap", [Accelerated, schedule, lambda o: Accelerated(Accelerated(o))])
def test_a_wrapped_optimiser_is_the_optimiser(wrap: Any) -> None:
    model = network()
    symmetry = paramsym.find_symmetry(model, INPUTS)
    inner = torch.optim.SGD(model.named_parameters(), lr=0.01, momentum=0.9)
    optimizer = wrap(inner)
    assert optimizer_of(optimizer, "f()") is inner
    assert updates_of(optimizer)[0].name == "sgd"
    with paramsym.Rebalance(symmetry, optimizer, every=1) as rebalance:
        model(*INPUTS).square().mean().backward()
        inner.step()
    assert rebalance.count == 1
    with paramsym.ConservationLedger(symmetry, model, optimizer) as ledger:
        inner.step()
        ledger.step()
    assert ledger.steps == 1
    paramsym.teleport(model, symmetry, lambda y: y.square().mean(), INPUTS, optimizer, steps=2)


LOOKS = Lookahead(torch.optim.SGD(network().parameters()))


@pytest.mark.parametrize("wrong", [None, "SGD", 3, network(), object(), {"lr": 0.1}, LOOKS])
def test_what_is_no_optimiser_is_refused(wrong: Any) -> None:
    model = network()
    symmetry = paramsym.find_symmetry(model, INPUTS, check=False)
    for call in (
        lambda: paramsym.ConservationLedger(symmetry, model, wrong),
        lambda: paramsym.Rebalance(symmetry, wrong),
        lambda: optimizer_of(wrong, "f()"),
    ):
        with pytest.raises(WrongKind, match=r"came, .* expected.*\. (Pass|Train)"):
            call()


def test_a_ledger_that_is_a_block_leaves_no_hooks() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    symmetry = paramsym.find_symmetry(model, INPUTS)
    with (
        pytest.raises(KeyboardInterrupt),
        paramsym.ConservationLedger(symmetry, model, optimizer) as ledger,
    ):
        model(*INPUTS).square().mean().backward()
        optimizer.step()
        ledger.step()
        raise KeyboardInterrupt
    optimizer.step()
    optimizer.step()  # it would ask for ledger.step() in between
    assert ledger.steps == 1
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks

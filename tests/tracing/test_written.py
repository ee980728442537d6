"""Buffers that the forward pass writes in training mode move as what is written into them.

For each network a random element moves parameters, buffers and freed inputs; one forward pass in
training mode must then leave the moved buffers: update(g·θ, g·x) = g·update(θ, x).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paramsym import ParameterSymmetry, act, act_inputs, find_symmetry
from paramsym.algebra import Permutation
from paramsym.structure.axes import Fixed
from paramsym.tracing.written import UNTOLD
from tests.tracing.zoo import randomise


class Written(nn.Module):
    """Two layers around an activation, and what `update` does to buffers with the features."""

    def __init__(
        self,
        update: Callable[[Any, Tensor], Any],
        activation: Callable[[Tensor], Tensor] = torch.relu,
        see: str = "after",
        **shapes: Any,
    ):
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 3)
        self.update, self.activation, self.see = update, activation, see
        for name, shape in (shapes or {"mean": (6,)}).items():
            self.register_buffer(name, torch.rand(shape))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        y = self.activation(h)
        if self.training:
            with torch.no_grad():
                self.update(self, {"inputs": x, "before": h, "after": y}[self.see])
        return self.last(y)


def _mean_and_variance(m: Any, h: Tensor) -> None:
    m.mean.mul_(0.9).add_(0.1 * h.mean(0))
    m.square.lerp_(h.var(0), 0.25)


def _normalised_by_hand(m: Any, h: Tensor) -> None:
    F.batch_norm(h, m.mean, m.square, training=True, momentum=0.3)


def _both_in_one(m: Any, h: Tensor) -> None:
    m.both[0].lerp_(h.mean(0), 0.3)
    m.both[1].mul_(0.5).add_(h.amax(0))


def _second_moments(m: Any, h: Tensor) -> None:
    m.moments.mul_(0.9).add_(h.T @ h, alpha=0.1)


BOTH: dict[str, Any] = {"mean": (6,), "square": (6,)}


def _convolutions(norm: Callable[[int], nn.Module], conv: Any, size: int, activation: Any) -> Any:
    pool = {1: nn.AdaptiveAvgPool1d, 2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}[size]
    model = nn.Sequential(
        conv(2, 5, 2), norm(5), activation(), conv(5, 4, 2), activation(), pool(1), nn.Flatten(),
        nn.Linear(4, 3),
    )  # fmt: skip
    return model, (torch.randn(7, 2, *[4] * size),)


def _statistics(**more: Any) -> Callable[[int], nn.Module]:
    return lambda n: nn.InstanceNorm2d(n, track_running_stats=True, **more)


def _mlp(*norms: Callable[[int], nn.Module], activation: Any = nn.ReLU) -> Any:
    layers = [
        part for norm in norms for part in (nn.LazyLinear(6), norm(6), activation())
    ]  # fmt: skip
    model, x = nn.Sequential(*layers, nn.LazyLinear(3)), torch.randn(7, 5)
    model(x)
    return model, (x,)


def _tiny(n: int) -> nn.Module:
    return nn.BatchNorm1d(n, eps=1e-12)


def _hand(*args: Any, **more: Any) -> Any:
    return Written(*args, **more), (torch.randn(7, 5),)


# (network with inputs, arguments of find_symmetry, buffers that move with their printed powers)
NETWORKS: dict[str, tuple[Callable[[], Any], dict[str, Any], set[str]]] = {
    "batch norm in one dimension": (
        lambda: _convolutions(nn.BatchNorm1d, nn.Conv1d, 1, nn.ReLU), {},
        {"1.running_mean", "1.running_var"},
    ),
    "batch norm in two dimensions": (
        lambda: _convolutions(nn.BatchNorm2d, nn.Conv2d, 2, nn.Tanh), {},
        {"1.running_mean", "1.running_var"},
    ),
    "batch norm in three dimensions": (
        lambda: _convolutions(nn.BatchNorm3d, nn.Conv3d, 3, nn.ReLU), {},
        {"1.running_mean", "1.running_var"},
    ),
    "batch norm across processes": (
        lambda: _convolutions(nn.SyncBatchNorm, nn.Conv2d, 2, nn.ReLU), {},
        {"1.running_mean", "1.running_var"},
    ),
    "instance norm": (
        lambda: _convolutions(_statistics(affine=True), nn.Conv2d, 2, nn.Tanh), {},
        {"1.running_mean", "1.running_var"},
    ),
    "two batch norms, one that absorbs scales": (
        lambda: _mlp(nn.BatchNorm1d, _tiny), {},
        {f"{k}.running_{name}" for k in (1, 4) for name in ("mean", "var")},
    ),
    "signs pass on either side of a batch norm": (
        lambda: _mlp(nn.BatchNorm1d, activation=nn.Tanh), {},
        {"1.running_mean", "1.running_var"},
    ),
    "a mean and a variance by hand": (
        lambda: _hand(_mean_and_variance, **BOTH), {}, {"mean", "square"},
    ),
    "own buffers of a batch norm": (
        lambda: _hand(_normalised_by_hand, torch.tanh, **BOTH), {}, {"mean", "square"},
    ),
    "rows of one buffer": (lambda: _hand(_both_in_one, both=(2, 6)), {}, {"both"}),
    "second moments": (lambda: _hand(_second_moments, moments=(6, 6)), {}, {"moments"}),
    "a mean of features that change basis": (
        lambda: _hand(lambda m, h: m.mean.lerp_(h.mean(0), 0.3), lambda h: h), {}, {"mean"},
    ),
    "a mean of an input that changes basis": (
        lambda: _hand(lambda m, x: m.mean.lerp_(x.mean(0), 0.3), see="inputs", mean=(5,)),
        {"free_inputs": True}, {"mean"},
    ),
}  # fmt: skip


def _written(
    model: nn.Module, state: dict[str, Tensor], inputs: dict[str, Tensor]
) -> dict[str, Tensor]:
    """The whole state after a forward pass in training mode."""
    state = {name: tensor.clone() for name, tensor in state.items()}
    torch.func.functional_call(model.train(), state, kwargs=inputs)
    return state


def _cases(symmetry: ParameterSymmetry) -> dict[str, Any]:
    """Random elements: of all spaces, then of each by itself, those included that are not exact."""
    generator = torch.Generator().manual_seed(5)
    chosen = [None, *symmetry.spaces]
    return {str(only): symmetry.sample(generator, only=only) for only in chosen}


def _error(one: dict[str, Tensor], other: dict[str, Tensor], names: set[str]) -> float:
    return max(
        float((one[n] - other[n]).abs().max() / other[n].abs().max().clamp_min(1)) for n in names
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_an_update_of_moved_buffers_is_the_moved_update(name: str) -> None:
    torch.manual_seed(0)
    build, arguments, moving = NETWORKS[name]
    model, example = build()
    randomise(model.double())
    inputs = {"input" if isinstance(model, nn.Sequential) else "x": example[0].double()}
    found = find_symmetry(model, inputs, training=True, **arguments)
    assert found.checked is not None and not found.checked.refuted
    symmetry = found.restrict(translations=False)
    state = dict(model.state_dict())
    buffers = {n for n, b in model.named_buffers() if b.is_floating_point() and b.ndim}
    moves = {n for n in buffers if not all(isinstance(a, Fixed) for a in symmetry.signature[n])}
    assert moves == moving
    plain = _written(model, state, inputs)
    assert all(not torch.equal(plain[n], state[n]) for n in moving)
    worst, behind = 0.0, dict.fromkeys(moving, 0.0)
    for g in _cases(symmetry).values():
        there = act_inputs(symmetry, g, inputs) if symmetry.inputs else inputs
        moved = act(symmetry, g, state)
        expected = act(symmetry, g, plain)
        worst = max(worst, _error(_written(model, moved, there), expected, buffers))
        left = _written(model, moved | {n: state[n] for n in buffers}, there)
        behind = {n: max(e, _error(left, expected, {n})) for n, e in behind.items()}
    assert worst <= 1e-12
    assert min(behind.values()) > 1e-3  # each of them, left where it was, ends elsewhere


def test_what_is_moved_trained_and_moved_back_evaluates_as_what_was_trained() -> None:
    torch.manual_seed(0)
    model, (x,) = _mlp(nn.BatchNorm1d, activation=nn.Tanh)
    model, x = model.double(), x.double()
    symmetry = find_symmetry(model, (x,), training=True).restrict(Permutation, translations=False)
    g = symmetry.sample(torch.Generator().manual_seed(0))

    def trained(state: dict[str, Tensor]) -> dict[str, Tensor]:
        model.load_state_dict(state)
        optimizer = torch.optim.SGD(model.train().parameters(), 0.01, 0.9)
        for _ in range(20):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
        return {name: tensor.clone() for name, tensor in model.state_dict().items()}

    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    plain = trained(start)
    back = act(symmetry, ~g, trained(act(symmetry, g, start)))
    model.load_state_dict(plain)
    expected = model.eval()(x).detach()
    model.load_state_dict(back)
    assert float((model(x).detach() - expected).abs().max()) <= 1e-12
    model.load_state_dict(back | {n: t for n, t in act(symmetry, ~g, plain).items() if "run" in n})
    assert float((model(x).detach() - expected).abs().max()) > 1e-3


HELD: dict[str, tuple[Callable[[], Any], str]] = {
    "a variance of features that change basis": (
        lambda: _hand(_mean_and_variance, lambda h: h, see="before", **BOTH), "square",
    ),
    "a cosine of features with a scale": (
        lambda: _hand(lambda m, h: m.mean.copy_(h.mean(0).cos())), "mean",
    ),
    "an unknown function": (
        lambda: _hand(lambda m, h: m.mean.copy_(torch.special.i0(h.mean(0)))), "mean",
    ),
    "data": (lambda: _hand(lambda m, x: m.mean.copy_(x.mean(0)), see="inputs", mean=(5,)), "mean"),
    "a count": (lambda: _hand(lambda m, x: m.mean.add_(1.0)), "mean"),
}  # fmt: skip


@pytest.mark.parametrize("name", HELD)
def test_a_write_that_no_type_tells_restricts_nothing_and_says_so(name: str) -> None:
    torch.manual_seed(0)
    build, held = HELD[name]
    model, inputs = build()
    found = find_symmetry(model, inputs, training=True)
    assert found.signature[held] == (Fixed(getattr(model, held).shape[0]),)
    assert found.reasons[held] == (UNTOLD,)
    model.update = lambda m, h: None
    free = find_symmetry(model, inputs, training=True)
    assert found.spaces == free.spaces and found.shifts == free.shifts
    assert all(found.signature[n] == free.signature[n] for n, _ in model.named_parameters())
    if name == "a variance of features that change basis":
        assert str(found.signature["mean"][0]) == str(found.signature["first.bias"][0])


def test_numbers_of_batches_and_evaluation_mode_stay_as_they_are() -> None:
    model, inputs = _mlp(nn.BatchNorm1d)
    training = find_symmetry(model, inputs, training=True)
    assert training.signature["1.num_batches_tracked"] == ()
    frozen = _mlp(lambda n: nn.BatchNorm1d(n, momentum=0.0))[0]
    assert find_symmetry(frozen, inputs) == find_symmetry(model, inputs)
    hand = Written(_mean_and_variance, **BOTH)
    assert all(find_symmetry(hand, inputs).signature[n] == (Fixed(6),) for n in BOTH)

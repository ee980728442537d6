"""Where an action by construction cannot begin, and batches that it cannot be called with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paramsym.discovery.acting.constructed import constructed_action

DOUBLE = torch.float64


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


class Noise(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return torch.tanh(z + torch.randn_like(z))


def perceptron(between: nn.Module | None = None) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(3, 3), between or nn.Tanh(), nn.Linear(3, 1)).double()
    for seed, p in enumerate(model.parameters()):
        p.data = normal(*p.shape, seed=seed)
    return model


MODEL, X = perceptron(), normal(2, 3, seed=9)
PARAMS = {n: p.detach() for n, p in MODEL.named_parameters()}
ACTION = constructed_action(MODEL, X)
H = 0.3 * normal(14, seed=4)


def test_a_network_that_draws_noise_is_refused() -> None:
    with pytest.raises(ValueError, match="two runs of the network gave two answers"):
        constructed_action(perceptron(Noise()), X)
    constructed_action(perceptron(nn.Dropout(0.5)), X)  # the control: in evaluation mode


@pytest.mark.parametrize("frame", ["projected", "commuting"])
def test_it_works_in_inference_mode(frame: Any) -> None:
    action = constructed_action(MODEL, X, frame=frame)
    wanted, speed = action(H, PARAMS, X), action.velocity(H, PARAMS, X)
    with torch.inference_mode():
        given = H * 1, {n: t * 1 for n, t in PARAMS.items()}, X * 1
        made = constructed_action(MODEL, given[2], frame=frame)
        found = action(*given), action.velocity(*given), made(*given)
    for name in PARAMS:
        assert torch.equal(found[0][name], wanted[name])
        assert torch.equal(found[1][name], speed[name])
        assert torch.equal(found[2][name], wanted[name])
    assert max(float((wanted[n] - PARAMS[n]).abs().max()) for n in PARAMS) > 0.05


@pytest.mark.parametrize("training", [False, True])
def test_a_module_keeps_its_answers_in_the_mode_that_was_asked_for(training: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).double()
    x = normal(3, 3, seed=2)
    params = {n: p.detach() for n, p in model.named_parameters()}
    action = constructed_action(model, x, training=training)
    assert action.training is training
    moved = action(0.5 * normal(len(action.identity), seed=3), params, x)
    outputs = {}
    for mode in (False, True):
        model.train(mode)
        with torch.no_grad():
            pair = [torch.func.functional_call(model, p, (x,)) for p in (moved, params)]
        outputs[mode] = float((pair[0] - pair[1]).abs().max())
    assert outputs[training] < 1e-12 and outputs[not training] > 1e-3


@pytest.mark.parametrize("method", ["__call__", "velocity"])
def test_batches_that_do_not_fit_are_refused(method: str) -> None:
    call = getattr(ACTION, method)
    assert call(H, PARAMS, normal(5, 3)).keys() == PARAMS.keys()  # the control
    for data, why in (
        (normal(40, 3), "the batch has 40 outputs.*no more than entries take changes up, 16"),
        (X[:0], "the batch has 0 outputs, and at least one was expected"),
        (normal(2, 4), "does not run on this batch .RuntimeError: mat1 and mat2"),
        (X + 0j, "does not run on this batch"), (None, "does not run on this batch .TypeError"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=why):
            call(H, PARAMS, data)


@pytest.mark.parametrize("method", ["__call__", "velocity"])
def test_other_kinds_of_arguments_are_refused(method: str) -> None:
    call = getattr(ACTION, method)
    weight = PARAMS["0.weight"]
    for h, params, why in (
        (H.tolist(), PARAMS, "a list and a dict came"),
        (H.numpy(), PARAMS, "a ndarray and a dict came"),
        (H, None, "a Tensor and a NoneType came"),
        (H, {**PARAMS, "0.weight": weight.tolist()}, "'0.weight' came as a list"),
        (H, {**PARAMS, "0.weight": weight.to("meta")}, "'0.weight' came as a meta tensor"),
        (H, {**PARAMS, "0.weight": weight + 0j}, "not real and finite"),
    ):
        with pytest.raises(ValueError, match=why):
            call(h, params, X)


@pytest.mark.parametrize("method", ["__call__", "velocity"])
def test_ties_with_different_numbers_are_refused(method: str) -> None:
    model: Any = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    model[2].weight = model[0].weight
    params = {n: p.detach() for n, p in model.named_parameters(remove_duplicate=False)}
    action = constructed_action(model, X)
    call, h = getattr(action, method), 0.1 * normal(len(action.identity))
    found = call(h, params, X)
    assert torch.equal(found["0.weight"], found["2.weight"])
    with pytest.raises(ValueError, match="'2.weight' and '0.weight' came with different numbers"):
        call(h, {**params, "2.weight": params["2.weight"] + 1}, X)


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("following='2.weight'.: a collection of names", {"following": "2.weight"}),
    ("the batch has 0 outputs", {"data": X[:0]}),
    ("does not run on this batch", {"data": normal(2, 4)}),
    ("'weight' came as a meta tensor", {"function": nn.Linear(3, 1, device="meta")}),
    ("function=3", {"function": 3, "params": PARAMS}),
    ("no parameters came", {"params": [1]}),
    ("'0.weight' came as a list", {"params": {"0.weight": [1.0]}}),
    ("'nope' of shape .3,. came where Sequential has nothing", {"params": {"nope": X[0]}}),
    (r"'0.weight' of shape .2, 3. came where Sequential has \(3, 3\)", {"params": {"0.weight": X}}),
    ("have no entries", {"function": lambda p, x: p["e"].sum(), "params": {"e": X[:0]}}),
    ("directions=….: a list came", {"directions": [[1.0]]}),
    ("not real and finite", {"directions": torch.full((1, 16), torch.nan)}),
    ("torch.complex128 came", {"directions": normal(1, 16) + 0j}),
]


@pytest.mark.parametrize(("message", "other"), REFUSED, ids=[f"{k}" for k in range(len(REFUSED))])
def test_arguments_that_do_not_fit_are_refused(message: str, other: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=message):
        constructed_action(**{"function": MODEL, "data": X, **other})

"""Repair of activation statistics, and running statistics from data."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from paramsym import interpolate
from paramsym.merging.batch_norms import reset_batch_norms
from paramsym.merging.evaluation import returned_at
from paramsym.merging.layers import layers_of
from paramsym.merging.repair import BOTH, SCALE, repair
from tests.models import Small, Tied
from tests.tracing.zoo import Convolutional, build

State = dict[str, Tensor]


def state_of(model: nn.Module, seed: int) -> State:
    """Parameters of another network of the same architecture."""
    generator = torch.Generator().manual_seed(seed)
    return {
        n: t.double() + 0.5 * torch.randn(t.shape, generator=generator, dtype=torch.float64)
        if n in dict(model.named_parameters()) else t.double() if t.is_floating_point() else t
        for n, t in model.state_dict().items()
    }  # fmt: skip


def statistics(model: nn.Module, params: State, inputs: tuple) -> dict[str, tuple[Tensor, Tensor]]:
    """Mean and deviation of every channel, by a way of its own: one hook per module."""
    found = {}
    copy = deepcopy(model).double().eval()
    copy.load_state_dict(params)
    axes = {n: layer.output_axis for n, layer in layers_of(model).items() if layer.linear}
    for name, module in copy.named_modules():
        if name in axes:

            def hook(_, __, y, name=name):
                rows = y.detach().transpose(axes[name], -1).reshape(-1, y.shape[axes[name]])
                found[name] = rows.mean(0), rows.var(0, correction=0).sqrt()

            module.register_forward_hook(hook)
    copy(*(x.double() for x in inputs))
    return found


def perceptron(bias: bool = True) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(5, 16, bias), nn.ReLU(), nn.Linear(16, 12, bias), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(12, 3)).double()


X = (torch.randn(400, 5, generator=torch.Generator().manual_seed(9), dtype=torch.float64),)


def test_every_hidden_channel_gets_the_mean_statistics_of_its_parents() -> None:
    model = perceptron()
    a, b = state_of(model, 1), state_of(model, 2)
    merged = interpolate(a, b, 0.25)
    found = repair(model, merged, [a, b], X, weights=[3, 1])
    assert found.layers == {"0": BOTH, "2": BOTH}
    assert found.left == {"4": "it makes what the model returns"}
    stats = [statistics(model, p, X) for p in (a, b, found.params, merged)]
    for name in ("0", "2"):
        for k in range(2):
            target = 0.75 * stats[0][name][k] + 0.25 * stats[1][name][k]
            torch.testing.assert_close(stats[2][name][k], target, rtol=1e-10, atol=1e-12)
        lost = 0.75 * stats[0][name][1] + 0.25 * stats[1][name][1]
        assert float((stats[3][name][1] / lost).mean()) < 0.95  # what the mean of weights loses


def test_nothing_that_came_is_changed_and_what_did_not_change_is_shared() -> None:
    model = perceptron().train()
    a, b = state_of(model, 1), state_of(model, 2)
    merged = interpolate(a, b, 0.5)
    kept = [{n: t.clone() for n, t in s.items()} for s in (a, b, merged, model.state_dict())]
    found = repair(model, merged, [a, b], X)
    for state, before in zip((a, b, merged, model.state_dict()), kept, strict=True):
        assert all(torch.equal(state[n], before[n]) for n in before)
    assert model.training
    assert not any(m._forward_hooks for m in model.modules())
    assert found.params["4.weight"] is merged["4.weight"]
    assert not torch.equal(found.params["0.weight"], merged["0.weight"])


def test_a_network_is_its_own_repair() -> None:
    model = perceptron()
    a = state_of(model, 1)
    found = repair(model, a, [a], X).params
    assert all(torch.allclose(found[n], a[n], rtol=1e-10, atol=1e-12) for n in a)


def test_without_a_bias_the_deviation_alone_is_matched_and_it_is_said() -> None:
    model = perceptron(bias=False)
    a, b = state_of(model, 1), state_of(model, 2)
    found = repair(model, interpolate(a, b, 0.5), [a, b], X)
    assert found.layers == {"0": SCALE, "2": SCALE}
    stats = [statistics(model, p, X) for p in (a, b, found.params)]
    for name in ("0", "2"):
        target = [(stats[0][name][k] + stats[1][name][k]) / 2 for k in range(2)]
        torch.testing.assert_close(stats[2][name][1], target[1], rtol=1e-10, atol=1e-12)
        assert not torch.allclose(stats[2][name][0], target[0], rtol=1e-3)


def test_convolutions_of_every_kind() -> None:
    torch.manual_seed(0)
    model = Convolutional().double().eval()
    x = (torch.randn(6, 2, 8, 8).double(),)
    a, b = state_of(model, 1), state_of(model, 2)
    found = repair(model, interpolate(a, b, 0.5), [a, b], x)
    assert {*found.layers} == {"stem", "deep", "grouped", "up", "join"}
    stats = [statistics(model, p, x) for p in (a, b, found.params)]
    for name in found.layers:
        for k in range(2):
            target = (stats[0][name][k] + stats[1][name][k]) / 2
            torch.testing.assert_close(stats[2][name][k], target, rtol=1e-9, atol=1e-12)


def test_transposed_weights_of_transformers() -> None:
    model, inputs = build("GPT-2")
    a, b = state_of(model, 1), state_of(model, 2)
    for state in (a, b):
        state["lm_head.weight"] = state["transformer.wte.weight"]
    merged = interpolate(a, b, 0.5)
    found = repair(model, merged, [a, b], inputs)
    assert len(found.layers) == 8
    assert found.left == {"lm_head": "its weight or bias has several places"}

    def deviation(params: State) -> Tensor:
        kept = []
        layer = model.transformer.h[1].mlp.c_fc
        hooks = {layer: lambda y: kept.append(y.flatten(0, 1).std(0, correction=0))}
        returned_at(model, params, inputs, "test", hooks)
        return kept[0]

    target = (deviation(a) + deviation(b)) / 2
    torch.testing.assert_close(deviation(found.params), target, rtol=1e-9, atol=0)
    assert not torch.allclose(deviation(merged), target, rtol=0.01)


def test_a_dead_channel_gets_its_mean_and_no_infinite_scale() -> None:
    model = perceptron()
    a, b = state_of(model, 1), state_of(model, 2)
    b["0.weight"][3] = -a["0.weight"][3]  # cancels in the mean
    found = repair(model, interpolate(a, b, 0.5), [a, b], X).params
    assert all(bool(t.isfinite().all()) for t in found.values())
    stats = [statistics(model, p, X)["0"] for p in (a, b, found)]
    assert float(stats[2][0][3]) == pytest.approx(float(stats[0][0][3] + stats[1][0][3]) / 2)
    assert float(stats[2][1][3]) < 1e-12


class Shared(nn.Module):
    """One layer that runs twice, and one that never does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.idle = nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.again(torch.relu(self.again(self.first(x))))))


def test_layers_that_one_change_cannot_repair_are_left_with_the_reason() -> None:
    model = Shared().double()
    a, b = state_of(model, 1), state_of(model, 2)
    found = repair(model, interpolate(a, b, 0.5), [a, b], X, hold="first")
    assert found.layers == {}
    assert found.left == {
        "first": "held", "again": "it is called 2 times", "idle": "it is called 0 times",
        "last": "it makes what the model returns",
    }  # fmt: skip
    assert [*repair(model, a, [a, b], X).layers] == ["first"]


def test_tied_weights_are_left_and_ties_kept() -> None:
    model = Tied().double()
    a = state_of(model, 1)
    a["head.weight"] = a["table.weight"]
    found = repair(model, a, [a], (torch.arange(11),))
    assert found.left["head"] == "its weight or bias has several places"
    assert found.params["head.weight"] is found.params["table.weight"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_narrower_precision_is_kept(dtype: torch.dtype) -> None:
    model = perceptron()
    a, b = ({n: t.to(dtype) for n, t in state_of(model, k).items()} for k in (1, 2))
    found = repair(model, interpolate(a, b, 0.5), [a, b], X)
    assert {t.dtype for t in found.params.values()} == {dtype}
    stats = [
        statistics(model, {n: t.double() for n, t in p.items()}, X) for p in (a, b, found.params)
    ]
    tolerance = 20 * torch.finfo(dtype).eps
    target = (stats[0]["2"][1] + stats[1]["2"][1]) / 2
    torch.testing.assert_close(stats[2]["2"][1], target, rtol=tolerance, atol=tolerance)


def test_parents_of_another_architecture_and_no_parents_are_refused() -> None:
    model = perceptron()
    a = state_of(model, 1)
    with pytest.raises(ValueError, match="at least one"):
        repair(model, a, [], X)
    with pytest.raises(ValueError, match="positive numbers"):
        repair(model, a, [a, a], X, weights=[1, -1])
    with pytest.raises(ValueError, match=r"\(2, 2\)"):
        repair(model, a, [{**a, "0.weight": torch.zeros(2, 2).double()}], X)


# -- batch norms --------------------------------------------------------------------------------


def batches() -> list[tuple[Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(n, 5, generator=generator),) for n in (8, 8, 16)]


def test_running_statistics_are_those_of_stochastic_weight_averaging() -> None:
    model = Small().train()
    params = {n: t.clone() for n, t in model.state_dict().items()}
    kept = {n: t.clone() for n, t in params.items()}
    twin = Small()
    twin.load_state_dict(params)
    update_bn([x for (x,) in batches()], twin)
    found = reset_batch_norms(model, params, batches())
    assert {*found} == {"norm.running_mean", "norm.running_var"}
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, twin.state_dict()[name])
        assert not torch.allclose(tensor, params[name], rtol=0.1)
    assert all(torch.equal(params[n], kept[n]) for n in kept)
    assert all(torch.equal(t, kept[n]) for n, t in model.state_dict().items())
    assert model.norm.momentum == 0.1
    assert model.norm.training


def test_everything_but_batch_norms_is_in_evaluation_mode() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(5, 4), nn.BatchNorm1d(4)).train()
    params = dict(model.state_dict())
    found = reset_batch_norms(model, params, batches()[:1])
    y = model[1](batches()[0][0]).detach()
    torch.testing.assert_close(found["2.running_mean"], y.mean(0))
    torch.testing.assert_close(found["2.running_var"], y.var(0))


def test_no_batches_no_buffers_and_no_batch_norms() -> None:
    model = Small()
    with pytest.raises(ValueError, match="no batches"):
        reset_batch_norms(model, model.state_dict(), [])
    params = {n: t for n, t in model.state_dict().items() if "running_var" not in n}
    with pytest.raises(ValueError, match="'norm.running_var'"):
        reset_batch_norms(model, params, batches())
    plain = nn.Linear(5, 2)
    assert reset_batch_norms(plain, plain.state_dict(), batches()) == {}

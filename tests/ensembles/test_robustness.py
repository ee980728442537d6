"""Judged as attacked: in evaluation mode, NaN counted as wrong, and the network left as it was."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from paramsym.ensembles import MemberEnsemble, OrbitEnsemble, attack, robust_accuracy
from tests.ensembles.networks import CLIP, digits, seeded, trained


def data() -> tuple[Tensor, Tensor]:
    x, y = digits()
    return x[:40], y[:40]


class Counting(nn.Module):
    """Counts its calls in evaluation mode, too."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x

    def classes(self, x: Tensor) -> Tensor:
        return self(x).argmax(-1)


def moody() -> nn.Sequential:
    """Batch statistics and dropout, in training mode but for one module."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 12), nn.BatchNorm1d(12), nn.Dropout(0.5), nn.Linear(12, 10), Counting()
    ).double()
    model[3].eval()
    return model


def test_networks_are_judged_in_evaluation_mode_and_left_as_they_were() -> None:
    x, y = data()
    model = moody()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    attempts = {"clean": x, "fgsm": attack(model, x, y, epsilon=0.1, clip=CLIP)}
    found = [robust_accuracy(model, y, attempts) for _ in range(3)]
    assert found[0].by_attack == found[1].by_attack == found[2].by_attack
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    judged = moody().eval()
    wanted = {n: float((judged(z).argmax(-1) == y).double().mean()) for n, z in attempts.items()}
    assert found[0].by_attack == wanted
    model(x)  # the control: a call in the mode that it has does change it
    assert not torch.equal(before["1.running_mean"], model.state_dict()["1.running_mean"])
    assert int(before["4.count"]) == 0 < int(model.state_dict()["4.count"])


def test_so_is_the_network_of_a_bound_method_and_that_of_an_ensemble() -> None:
    x, y = data()

    class Classifier(nn.Sequential):
        def classes(self, x: Tensor) -> Tensor:
            return self(x).argmax(-1)

    model = Classifier(*moody())
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    by_method = robust_accuracy(model.classes, y, {"clean": x})
    assert by_method.by_attack == robust_accuracy(model, y, {"clean": x}).by_attack
    ensemble = MemberEnsemble(model, [state])
    ensemble.model.train()
    assert robust_accuracy(ensemble, y, {"clean": x}).value == by_method.value
    assert ensemble.model.training
    assert torch.equal(state["1.running_var"], model.state_dict()["1.running_var"])
    assert any(module.training for module in model.modules())


def test_modes_are_given_back_after_a_refusal() -> None:
    x, y = data()
    model = moody()
    with pytest.raises(RuntimeError):
        robust_accuracy(model, y, {"clean": x[:, :3]})
    assert [module.training for module in model] == [True, True, True, False, True]


class Overflowing(nn.Module):
    """NaN for samples whose first entry is above a half."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x[:, :1] > 0.5, math.nan, x)


def test_nan_is_wrong_and_its_samples_are_counted() -> None:
    y = torch.zeros(4).long()
    x = torch.zeros(4, 3).double()
    x[:2, 0] = 0.9
    found = robust_accuracy(Overflowing(), y, {"low": 0 * x, "high": x})
    assert found.by_attack == {"low": 1.0, "high": 0.5} and found.value == 0.5
    assert found.undefined == {"low": 0, "high": 2}
    assert found.right.tolist() == [False, False, True, True]
    ensemble = MemberEnsemble(Overflowing(), [{}, {}])
    of = robust_accuracy(ensemble, y, {"low": 0 * x, "high": x})
    assert of.by_attack == found.by_attack and of.undefined == found.undefined
    with pytest.raises(ValueError, match="2 samples have members that answer NaN"):
        ensemble.vote(x)


def test_attempts_and_labels_that_show_nothing_are_refused() -> None:
    x, y = data()
    of = OrbitEnsemble(trained(), x, "mlp", 3, generator=seeded())
    for predict in (of, of.vote, trained()):
        with pytest.raises(ValueError, match=r"attempts\['a'\].*not finite came"):
            robust_accuracy(predict, 0 * y, {"a": x * math.nan})
        with pytest.raises(ValueError, match=r"torch.int64 of shape \(0,\) came; one class"):
            robust_accuracy(predict, y[:0], {"a": x[:0]})
    with pytest.raises(ValueError, match="torch.float64 of shape"):
        robust_accuracy(of, y.double(), {"a": x})

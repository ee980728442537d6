"""A model that reads g·θ and trains θ, beside the model that knows nothing of g."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized, remove_parametrizations

from paramsym import GroupElement, ParameterSymmetry, act, balance, find_symmetry
from paramsym.interop import parametrize
from tests.tracing.zoo import build, derived, randomise

pytestmark = pytest.mark.filterwarnings("ignore::Warning")


def drawn(symmetry: ParameterSymmetry, seed: int = 0) -> GroupElement:
    plain = symmetry.restrict(translations=False)
    return plain.sample(torch.Generator().manual_seed(seed))


def perceptron() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    return randomise(model).double(), torch.randn(7, 4, dtype=torch.float64)


def tokens_of(inputs: Any) -> dict[str, Any]:
    return {**inputs, "use_cache": False} if isinstance(inputs, dict) else {"input": inputs[0]}


def test_what_is_read_is_moved_and_what_is_kept_is_not() -> None:
    model, x = perceptron()
    symmetry, before = find_symmetry(model, (x,)), copy.deepcopy(model.state_dict())
    out, g = model(x), drawn(find_symmetry(model, (x,)))
    names = parametrize(model, symmetry, g)
    assert {*names} == {n for n in before if n != "4.bias"}
    moved = act(symmetry, g, before)
    for name in names:
        path, attribute = name.split(".")
        layer = model.get_submodule(path)
        kept = layer.get_parameter(f"parametrizations.{attribute}.original")
        assert torch.equal(kept, before[name]) and torch.equal(
            getattr(layer, attribute), moved[name]
        )
        assert not torch.allclose(moved[name], before[name])
    torch.testing.assert_close(model(x), out, rtol=1e-10, atol=1e-10)


def steps(model: nn.Module, x: Tensor, count: int = 20) -> list[float]:
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(count):
        loss = model(x).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses


def test_training_goes_on_as_it_would_have_gone() -> None:
    plain, x = perceptron()
    model = copy.deepcopy(plain)
    symmetry = find_symmetry(model, (x,))
    g = drawn(symmetry)
    there = copy.deepcopy(plain)
    there.load_state_dict(act(symmetry, g, plain.state_dict()))
    parametrize(model, symmetry, g)
    wanted = steps(plain, x)
    assert steps(model, x) == pytest.approx(wanted, rel=1e-8)
    assert steps(there, x) != pytest.approx(wanted, rel=1e-3)  # Adam at g·θ goes elsewhere
    remove_parametrizations(model[0], "weight")
    assert not is_parametrized(model[0], "weight")
    moved = act(symmetry, g, plain.state_dict())
    torch.testing.assert_close(model[0].weight.detach(), moved["0.weight"], rtol=1e-6, atol=1e-8)


def test_a_balanced_layer_is_balanced_where_it_is_read() -> None:
    model, x = perceptron()
    symmetry = find_symmetry(model, (x,))
    g = balance(symmetry, model.state_dict(), shifts=False).element
    parametrize(model, symmetry, g)
    read = [layer.weight for layer in model if isinstance(layer, nn.Linear)]
    bias = model[0].bias
    incoming = read[0].square().sum(1) + bias.square()
    torch.testing.assert_close(incoming, read[1].square().sum(0), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_transformers_compute_what_they_did_and_ties_stay(name: str) -> None:
    model, inputs = build(name)
    model = copy.deepcopy(model).double().eval()
    inputs, symmetry = tokens_of(inputs), derived(name)
    free = symmetry.restrict(spaces=[s.name for s in symmetry.spaces.values() if "mlp" in s.name])
    before = model(**inputs).logits
    count = sum(1 for _ in model.parameters())
    names = parametrize(model, symmetry, drawn(free))
    assert names and sum(1 for _ in model.parameters()) == count
    torch.testing.assert_close(model(**inputs).logits, before, rtol=1e-8, atol=1e-8)


class Tied(nn.Module):
    """One weight under two names, in two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 5, bias=False), nn.Linear(4, 5, bias=False)
        self.second.weight = self.first.weight
        self.last = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu() + self.second(x.flip(0)).relu())


def test_a_tied_weight_stays_one_parameter() -> None:
    torch.manual_seed(0)
    model, x = Tied().double(), torch.randn(5, 4, dtype=torch.float64)
    symmetry = find_symmetry(model, (x,))
    before = model(x)
    assert parametrize(model, symmetry, drawn(symmetry)) == ("first.weight", "last.weight")
    torch.testing.assert_close(model(x), before)
    kept = [layer.parametrizations["weight"].original for layer in (model.first, model.second)]
    assert kept[0] is kept[1] and len([*model.parameters()]) == 3


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.last = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.cell(x)[0])


def refused(model: nn.Module, symmetry: ParameterSymmetry, g: GroupElement, why: str) -> None:
    before = {n: t.clone() for n, t in model.state_dict().items()}
    with pytest.raises(ValueError, match=why):
        parametrize(model, symmetry, g)
    assert not any(is_parametrized(module) for module in model.modules())
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


def test_what_one_tensor_cannot_do_alone_is_refused() -> None:
    torch.manual_seed(0)
    norm = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).eval()
    symmetry = find_symmetry(norm, torch.randn(5, 4))
    refused(norm, symmetry, drawn(symmetry), "running_mean' is a buffer")
    cell = Recurrent()
    symmetry = find_symmetry(cell, torch.randn(5, 2, 3))
    refused(cell, symmetry, drawn(symmetry), "belongs to a recurrent layer")
    (model, _), symmetry = build("GPT-2"), derived("GPT-2")
    g = symmetry.sample(torch.Generator().manual_seed(0))
    refused(model, symmetry, g, r"by the numbers of .* as well.*shifts=False")


def test_a_model_that_is_moved_already_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    symmetry = find_symmetry(model, torch.randn(5, 3))
    first, second = (symmetry.sample(torch.Generator().manual_seed(k)) for k in (0, 1))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parametrize(model, symmetry, first)
    with pytest.raises(ValueError, match="read at '0' through a move already"):
        parametrize(model, symmetry, second)
    for place in ("0.weight", "0.bias", "2.weight"):
        path, _, name = place.rpartition(".")
        remove_parametrizations(model.get_submodule(path), name)
    moved = act(symmetry, first, state)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, moved[name])
    parametrize(model, symmetry, second)  # what was taken out stands in nobody's way

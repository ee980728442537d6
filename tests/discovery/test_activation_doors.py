"""What `lift` must not take: functions that differ elsewhere, masks as numbers, no relations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from paramsym import find_symmetry
from paramsym.discovery import Relation, intertwiners, lift

ODD, GATED = Relation(-1, 0, -1), Relation(-1, 0, 1, -1)


class Paths(nn.Module):
    """silu units beside a linear path and another one that passes tanh; a mean if asked."""

    def __init__(self, mean: bool = False):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)
        self.w, self.z = nn.Linear(3, 2, bias=False), nn.Linear(3, 2, bias=False)
        self.mean = mean
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.a(x))
        h = h.mean(0) if self.mean else h
        return self.b(h) + self.w(x) + torch.tanh(self.z(x))


def change(model: nn.Module, params: dict[str, Tensor]) -> float:
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(9)).double()
    with torch.no_grad():
        return float((functional_call(model, params, (x,)) - model(x)).abs().max())


@pytest.mark.parametrize("rows", [1, 5])
def test_a_wrong_path_is_noticed_where_the_inputs_are_zero(rows: int) -> None:
    model, x = Paths(), torch.zeros(rows, 3).double()
    symmetry = find_symmetry(model, (x,))
    with pytest.raises(ValueError, match="the function changes by"):
        lift(GATED, model, symmetry, (x,), "mlp", skip="z.weight")
    moved = lift(GATED, model, symmetry, (x,), "mlp", skip="w.weight")
    assert change(model, moved) < 1e-12


def test_a_mean_over_one_sample_is_noticed_on_two() -> None:
    model, x = Paths(mean=True), torch.randn(1, 3).double()
    with pytest.raises(ValueError, match="the function changes by"):
        lift(GATED, model, find_symmetry(model, (x,)), (x,), "mlp", skip="w.weight")


def small() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        model[0].weight.mul_(1e-4)  # pyright: ignore[reportArgumentType,reportCallIssue]
        model[0].bias.mul_(1e-4)  # pyright: ignore[reportArgumentType,reportCallIssue]
    return model, torch.randn(5, 3).double() * 1e-2


def test_a_relation_has_to_hold_at_all_magnitudes() -> None:
    """tanh(2z) = 2 tanh(z) to 1e-12 of what this layer gets."""
    model, x = small()
    symmetry = find_symmetry(model, (x,))
    with pytest.raises(ValueError, match="a relation of that function was expected"):
        lift(Relation(2, 0, 2), model, symmetry, (x,), "mlp")
    assert change(model, lift(ODD, model, symmetry, (x,), "mlp")) < 1e-12


MASKS = {
    "tensor": torch.tensor([True, False, True, False]),
    "list": [True, False, True, False],
    "numbers": [0, 2],
    "integers": torch.tensor([0, 2]),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_and_numbers_name_the_same_units(name: str) -> None:
    model, x = small()
    moved = lift(ODD, model, find_symmetry(model, (x,)), (x,), "mlp", units=MASKS[name])
    flipped = moved["0.bias"] == -model.state_dict()["0.bias"]
    assert flipped.tolist() == [True, False, True, False]


WRONG = {
    "a short mask": (ODD, {"units": [True, False]}, "one for each of the 4 units"),
    "half a unit": (ODD, {"units": 1.5}, "numbers or a mask"),
    "a word": (ODD, {"units": "all"}, "numbers or a mask"),
    "twice": (ODD, {"units": [1, 1]}, "each once"),
    "beyond": (ODD, {"units": torch.tensor([1, 4])}, "from 0 to 3"),
    "NaN": (Relation(float("nan"), 0, 1), {}, "finite numbers"),
    "no map": (Relation(0, 1, 1), {}, "other than zero"),
    "no parameters": (ODD, {"params": {}}, "all 4 parameters and buffers"),
    "a family": (intertwiners(torch.relu).families[0], {}, "family.at(t)"),
    "a word for a relation": ("odd", {}, "a Relation was expected"),
}


@pytest.mark.parametrize("name", WRONG)
def test_doors_say_what_came_and_what_to_do(name: str) -> None:
    model, x = small()
    relation, options, text = WRONG[name]
    with pytest.raises((TypeError, ValueError)) as error:
        lift(relation, model, find_symmetry(model, (x,)), (x,), "mlp", **options)
    found = str(error.value)
    assert found.startswith("lift(") and text in found and "expected" in found
    assert found.count(". ") >= 1 and found.endswith(".")

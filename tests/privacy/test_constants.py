"""Keys where the model adds a constant to a parameter: w ↦ 1 + w is no linear map of w."""

import pytest
import torch
from torch import nn

from paramsym import find_symmetry
from paramsym.privacy import Key, encode, retrace
from paramsym.privacy.retracing.expected import Expected
from paramsym.structure.action import act


class Gained(nn.Module):
    """A gain of hidden features, stored as it is or as its distance from one."""

    def __init__(self, constant: float) -> None:
        super().__init__()
        self.constant = constant
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 4)
        self.gain = nn.Parameter(0.1 * torch.randn(8) + 1 - constant)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gain = self.gain + self.constant if self.constant else self.gain
        return self.last(gain * self.first(x).relu())


STEPS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "sgd-decay": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, 0.01),
    "adam-decay": lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
    "adafactor": lambda p: torch.optim.Adafactor(p, 0.01),
}


def given(constant):
    torch.manual_seed(0)
    model = Gained(constant).double().train()
    x, labels = torch.randn(16, 6, dtype=torch.float64), torch.randint(0, 4, (16,))
    symmetry = find_symmetry(model, (x,), training=True, free_inputs=True, free_outputs=True)
    return model, (x, labels), symmetry


def flips(key):
    return any(str(space.group).startswith("Signs") for space in key.acting.spaces.values())


@pytest.mark.parametrize("constant", [0.0, 1.0], ids=["plain", "offset"])
@pytest.mark.parametrize("name", STEPS)
def test_a_key_of_a_gain_retraces(name, constant):
    model, data, symmetry = given(constant)
    optimizer = STEPS[name](list(model.parameters()))
    key = Key.generate(symmetry, torch.Generator().manual_seed(1), optimizer, nn.CrossEntropyLoss())
    found = retrace(model, data, key, STEPS[name], 20, loss=nn.CrossEntropyLoss())
    assert found.largest < 1e-11
    assert found.travelled > 0.01
    # signs are given up where they must be, and nowhere else
    assert flips(key) == (not constant or name in ("sgd", "adam"))


@pytest.mark.parametrize("name", ["sgd-decay", "adamw", "adafactor"])
def test_signs_of_an_offset_gain_part_where_the_step_measures_it(name):
    model, data, symmetry = given(1.0)
    undecayed = STEPS["adam"](list(model.parameters()))
    key = Key.generate(symmetry, torch.Generator().manual_seed(1), undecayed, "cross-entropy")
    found = retrace(model, data, key, STEPS[name], 20, loss=nn.CrossEntropyLoss())
    assert found.largest > 0.01
    assert found.expected is Expected.PARTS


@pytest.mark.parametrize("constant", [0.0, 1.0], ids=["plain", "offset"])
def test_rates_are_the_derivative_of_the_move(constant):
    model, _, symmetry = given(constant)
    undecayed = STEPS["sgd"](list(model.parameters()))
    key = Key.generate(symmetry, torch.Generator().manual_seed(1), undecayed, scalings=True)
    params = model.state_dict()
    ahead = {**params, "gain": params["gain"] + 1}
    moved = act(key.acting, key.element, params)["gain"]
    slope = act(key.acting, key.element, ahead)["gain"] - moved
    order = key.learning_rates.scales["gain"]
    torch.testing.assert_close(slope.abs(), order, rtol=1e-12, atol=0)
    assert (order != 1).all()


class Masked(Gained):
    def forward(self, x):
        mask = torch.tensor([0.0, 0.0, 0.0, -torch.inf], dtype=x.dtype)
        return super().forward(x) + mask


def test_outputs_that_are_masked_out_are_equal():
    torch.manual_seed(0)
    model, x = Masked(0.0).double(), torch.randn(5, 6, dtype=torch.float64)
    symmetry = find_symmetry(model, (x,), free_inputs=True)
    key = Key.generate(symmetry, torch.Generator().manual_seed(1))
    encoded = encode(model, x, key)
    assert (encoded.inputs - x).abs().max() > 0.1
    model.last.weight.data.mul_(torch.nan)
    with pytest.raises(ValueError, match="nan"):
        encode(model, x, key)


def segmenting():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.ReLU(), nn.Conv2d(5, 4, 1)).double()
    x, targets = torch.randn(4, 3, 4, 4).double(), torch.rand(4, 4, 4, 4).double()
    symmetry = find_symmetry(
        model, (x,), training=True, free_inputs={"input": 1}, free_outputs={"output": 1}
    )
    return model, (x, targets), symmetry


SHAPES = {"each": (4, 1, 1), "each-pixel": (4, 4, 4), "columns": (4,), "samples": (4, 1, 1, 1),
          "all": (4, 4, 4, 4), "one": (1,)}  # fmt: skip


@pytest.mark.parametrize("name", ["weight", "pos_weight"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_weights_of_entries_go_along_with_the_axis_of_classes(name, shape):
    model, data, symmetry = segmenting()
    loss = nn.BCEWithLogitsLoss(**{name: torch.rand(shape).double() + 0.1})
    key = Key.generate(symmetry, torch.Generator().manual_seed(2), "adam", loss)
    found = retrace(model, data, key, STEPS["adam"], 10, loss=loss)
    assert found.largest < 1e-12
    moved = getattr(encode(model, data, key, loss).loss, name)
    classes = len(shape) >= 3 and shape[-3] == 4
    assert torch.equal(moved, getattr(loss, name)) != classes


def test_weights_of_entries_without_targets_are_not_guessed():
    model, (x, _), symmetry = segmenting()
    loss = nn.BCEWithLogitsLoss(pos_weight=torch.rand(4, 1, 1).double())
    key = Key.generate(symmetry, torch.Generator().manual_seed(2), "adam", loss)
    with pytest.raises(ValueError, match="counted from the end"):
        encode(model, x, key, loss)

"""Errors have four parts and name the place; each fragment a user relies on is asserted."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from paramsym import relu

GOOD = [([[1, 0], [0, 1]], [0, 0]), ([[1, 1]], [0])]


@pytest.mark.parametrize(
    "bad, words",
    [
        ([([[1, "x"], [0, 1]], [0, 0]), ([[1, 1]], [0])], ["'x'", "layer 1, W[0][1]", "1/3"]),
        ([([[1, "1/0"]], [0]), ([[1]], [0])], ["'1/0'", "non-zero denominator"]),
        ([([[1.0, math.nan]], [0.0]), ([[1.0]], [0.0])], ["nan", "W[0, 1]", "layer 1"]),
        ([([[1, Fraction(1)]], [math.inf]), ([[1]], [0])], ["inf", "b[0]"]),
        ([([[1, 0]], [0]), ([[1, 1]], [0])], ["reads 2", "1, what layer 1 writes", "layer 2"]),
        ([([[1, 0], [1]], [0, 0])], ["lengths [1, 2]", "rectangular"]),
        ([([[1, 0]], [0, 0])], ["1 rows", "2 entries"]),
        ([], ["non-empty list"]),
        ("net", ["str", "(W, b) pairs"]),
        ([{"W": [[1]], "b": [0], "activation": "tanh"}], ["'tanh'", "ReLU"]),
        ([{"weights": [[1]]}], ["weights", '"W"']),
    ],
)
def test_unreadable_networks(bad, words):
    with pytest.raises(relu.ReLUError) as caught:
        relu.decide(bad, GOOD)
    for word in [*words, "relu.decide(a)", "got", "expected"]:
        assert word in str(caught.value)


def test_other_shapes_modes_and_domains():
    three = [([[1, 0, 0]], [0]), ([[1]], [0])]
    with pytest.raises(relu.ReLUError, match="3 and 2 inputs|2 and 3 inputs"):
        relu.decide(GOOD, three)
    with pytest.raises(relu.ReLUError, match="outputs"):
        relu.decide(GOOD, [([[1, 0]], [0]), ([[1], [2]], [0, 0])])
    with pytest.raises(relu.ReLUError, match="'exact' or 'float'"):
        relu.decide(GOOD, GOOD, mode="fuzzy")
    with pytest.raises(relu.ReLUError, match="lower < upper"):
        relu.decide(GOOD, GOOD, domain=(1, 1))
    with pytest.raises(relu.ReLUError, match="dimension 3"):
        relu.decide(GOOD, GOOD, domain=relu.Box((0, 0, 0), (1, 1, 1)))
    with pytest.raises(relu.ReLUError, match="radius > 0"):
        relu.decide(GOOD, GOOD, domain={"ball": 0})
    with pytest.raises(relu.ReLUError, match="domain"):
        relu.decide(GOOD, GOOD, domain="everything")


@pytest.mark.parametrize(
    "module, name, place",
    [
        (torch.nn.Tanh(), "Tanh", "[1]"),
        (torch.nn.GELU(), "GELU", "[1]"),
        (torch.nn.Softplus(), "Softplus", "[1]"),
        (torch.nn.BatchNorm1d(3), "BatchNorm1d", "[1]"),
        (torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Softmax(-1)), "Softmax", "[1][1]"),
    ],
)
def test_other_activations_are_named_with_their_place(module, name, place):
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), module, torch.nn.Linear(3, 1))
    with pytest.raises(relu.ReLUError) as caught:
        relu.decide(net, net)
    assert name in str(caught.value) and place in str(caught.value)


class Custom(torch.nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.first, self.second = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
        self.activation = activation

    def forward(self, x):
        return self.second(self.activation(self.first(x)))


def test_other_operators_in_a_traced_module_are_named():
    with pytest.raises(relu.ReLUError, match="aten.sigmoid"):
        relu.as_network(Custom(torch.sigmoid))


def test_training_dropout_is_refused_and_evaluation_accepted():
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Dropout(0.5),
                              torch.nn.Linear(2, 1))  # fmt: skip
    with pytest.raises(relu.ReLUError, match="eval"):
        relu.as_network(net)
    assert relu.as_network(net.eval()).widths == (2, 2, 1)


def test_modules_in_every_accepted_form_are_one_function():
    torch.manual_seed(0)
    custom = Custom(torch.relu)
    chain = torch.nn.Sequential(custom.first, torch.nn.ReLU(), custom.second)
    nested = torch.nn.Sequential(torch.nn.Sequential(custom.first, torch.nn.ReLU()),
                                 torch.nn.Identity(), custom.second)  # fmt: skip
    pairs = [(custom.first.weight, custom.first.bias), (custom.second.weight, custom.second.bias)]
    exported = torch.export.export(custom, (torch.zeros(1, 2),))
    for other in (chain, nested, pairs, exported):
        assert relu.decide(custom, other).kind == "EQUAL"


def test_two_linear_layers_in_a_row_and_relus_at_the_ends():
    torch.manual_seed(1)
    a, b = torch.nn.Linear(2, 3), torch.nn.Linear(3, 2)
    double = torch.nn.Sequential(a, b, torch.nn.ReLU())
    net = relu.as_network(double)
    assert net.widths == (2, 2, 2)
    x = torch.tensor([[0.5, -1.5]])
    assert np.allclose(net.batch(x.double().numpy()), double(x).detach().double().numpy(),
                       atol=1e-6)  # fmt: skip
    first = relu.as_network(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.ReLU(), a))
    assert first.widths == (2, 2, 3)


def test_a_network_evaluates_points_of_its_own_dimension_only():
    with pytest.raises(relu.ReLUError, match="2, the number of inputs"):
        relu.as_network(GOOD)([1, 2, 3])
    assert relu.as_network(GOOD)([1, "1/3"]) == [Fraction(4, 3)]


def test_fibers_want_the_right_depth():
    with pytest.raises(relu.ReLUError, match="one hidden layer"):
        relu.LayerFiber([*GOOD, ([[1]], [0])])
    with pytest.raises(relu.ReLUError, match="two hidden layers"):
        relu.ThreeLayerFiber(GOOD)
    with pytest.raises(relu.ReLUError, match="at most one"):
        relu.shallow_canonical_form([*GOOD, ([[1]], [0])])

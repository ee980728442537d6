"""Constants of modules: indices, masks, integers, tables without axes, and changes in place."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from paramsym import relu


class Of(nn.Module):
    """A function of the input and of buffers."""

    def __init__(self, function, **buffers):
        super().__init__()
        self.function, self.first = function, nn.Linear(4, 4)
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)

    def forward(self, x):
        return self.function(self, x)


def doubled_in_place(s, x):
    weight = s.first.weight.clone()
    weight.mul_(2).add_(1)
    return F.linear(x, weight)


def counted_in_place(s, x):
    table = torch.zeros(4, dtype=x.dtype)
    table[0] += 1
    return s.first(x) * table.mul_(3).add_(1)


FUNCTIONS = {
    "all of a mask": Of(lambda s, x: s.first(x)[:, s.at], at=torch.ones(4, dtype=torch.bool)),
    "a mask": Of(lambda s, x: x[:, s.at].sum(1, True), at=torch.tensor([True, False, True, True])),
    "places": Of(lambda s, x: s.first(x)[:, s.at], at=torch.tensor([2, -1, 2])),
    "index_select": Of(lambda s, x: x.index_select(1, s.at), at=torch.tensor([2, 0, 2])),
    "repeats": Of(
        lambda s, x: x.repeat_interleave(s.at, 1, output_size=5), at=torch.tensor([1, 1, 2, 1])
    ),
    "weights at places": Of(
        lambda s, x: F.linear(x, s.first.weight[s.at]), at=torch.tensor([2, 0, 2])
    ),
    "weights like the input": Of(lambda s, x: F.linear(x, s.w.type_as(x) * 2), w=torch.ones(2, 4)),
    "a scale without axes": Of(lambda s, x: s.first(x) * s.scale, scale=torch.tensor(0.3)),
    "weights in place": Of(doubled_in_place),
    "tables in place": Of(counted_in_place),
}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_constants_go_where_torch_puts_them(kind):
    torch.manual_seed(0)
    module = FUNCTIONS[kind].double().eval()
    x = torch.randn(20, 4, dtype=torch.float64)
    network = relu.as_network(module, input_shape=(4,))
    expected = module(x).detach().numpy()
    assert np.abs(network.batch(x.numpy()) - expected).max() < 1e-12


@pytest.mark.parametrize("cast", [lambda s, x: x.type_as(s.at), lambda s, x: x.to(s.at)])
def test_no_varying_value_becomes_an_integer_through_another_tensor(cast):
    module = Of(lambda s, x: cast(s, s.first(x)).double(), at=torch.tensor([1])).double()
    with pytest.raises(relu.ReLUError, match="to integers"):
        relu.as_network(module.eval(), input_shape=(4,))


LAYOUTS = {
    "as it is": lambda q: q.view(3, 4) if q.ndim == 1 else q,
    "transposed": lambda q: q.view(4, 3).t(),
    "joined": lambda q: torch.cat([q, q]).view(6, 4)[:3],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.int16, torch.int64])
def test_wide_integers_are_the_numbers_that_they_are_wherever_they_are_moved(layout, dtype):
    def network(codes):
        def function(s, x):
            return F.relu(F.linear(x, LAYOUTS[layout](s.codes) * 0.125))

        return relu.as_network(Of(function, codes=codes).double().eval(), input_shape=(4,))

    codes = torch.arange(12, dtype=dtype) * 7 - 40
    other = codes.clone()
    other[5] += 1
    verdict = relu.decide(network(codes), network(other), mode="float", domain=(-1, 1))
    assert verdict.kind == "DIFFERENT"
    assert relu.decide(network(codes), network(codes.clone()), mode="float").kind == "EQUAL"

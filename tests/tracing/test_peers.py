"""Where published tools break the function, ours must not (measured: shared/design, BALANCE).

Cross-layer equalisation in Brevitas, Neural Compressor and ENorm rescales through operators that
do not pass a scale, or forgets what else carries it; weight matching in rebasin exchanges units
that are not exchangeable. Each test has the network on which that was measured.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paramsym import act, find_symmetry
from paramsym.structure.axes import spaces_of
from tests.tracing.test_rules import Around, _x, free
from tests.tracing.zoo import errors, randomise

CASES = {
    # Brevitas: 14 % error
    "x·x after a layer": (lambda m, x: m[1](m[0](x) * m[0](x)), (5, 5, 3)),
    # Brevitas: 9 %; a scale passes that takes the bias along, from where 1 and it are nothing
    "x + 1 after a layer": (lambda m, x: m[1](F.relu(m[0](x) + 1)), (5, 5, 3)),
    "x + 1 behind a ReLU": (lambda m, x: m[1](F.relu(F.relu(m[0](x)) - 1)), (5, 5, 3)),
    # Brevitas: 6 %
    "an index permutation": (lambda m, x: m[1](F.relu(m[0](x))[:, [3, 1, 0, 4, 2]]), (5, 5, 3)),
    # Neural Compressor: 43 %
    "ReLU6": (lambda m, x: m[1](F.relu6(m[0](x))), (5, 5, 3)),
    # ENorm: 9.5 %, it ignores biases
    "biases": (lambda m, x: m[1](F.relu(m[0](x))), (5, 5, 3)),
}


def _model(name: str) -> nn.Module:
    function, (width, read, out) = CASES[name]
    layers = nn.Linear(4, width), nn.Linear(read, out)
    return randomise(Around(lambda s, m, x: function(m, x), *layers).double())


@pytest.mark.parametrize("name", CASES)
def test_the_function_stays_where_equalisation_breaks_it(name: str) -> None:
    model, inputs = _model(name), (_x(6, 4),)
    found = errors(model, find_symmetry(model, inputs), inputs, strength=2.0)
    assert max(v for k, v in found.items() if k != "a wrong move") < 1e-12
    assert found["a wrong move"] > 1e-3


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("x·x after a layer", 5),
        ("x + 1 after a layer", 5),
        ("x + 1 behind a ReLU", 0),
        ("ReLU6", 0),
        ("biases", 5),
    ],
)
def test_no_scale_passes_where_none_can(name: str, expected: int) -> None:
    assert free(find_symmetry(_model(name), (_x(6, 4),)))[0] == expected


def test_a_rescaled_hidden_layer_takes_its_bias_along() -> None:
    model = _model("biases")
    symmetry = find_symmetry(model, (_x(6, 4),))
    state = model.state_dict()
    generator = torch.Generator().manual_seed(0)
    moved = act(symmetry, symmetry.sample(generator), state)
    (space,) = symmetry.spaces
    for name in ("layers.0.weight", "layers.0.bias", "layers.1.weight"):
        assert any(space in spaces_of(axis) for axis in symmetry.signature[name])
        assert not torch.equal(moved[name], state[name])


# -- the four places where weight matching breaks ------------------------------------------------


class _Flattened(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.first, self.last = nn.Conv2d(2, 4, 3), nn.Linear(64, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.first(F.relu(self.conv(x)).flatten(1))))


class _BatchNormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)
        self.last = nn.Conv2d(4, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.norm(self.conv(x))))


class _Grouped(nn.Module):
    def __init__(self, groups: int) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(2, 4, 1), nn.Conv2d(4, 3, 1)
        self.deep = nn.Conv2d(4, 4, 3, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.deep(F.relu(self.first(x)))))


class _GroupedQueries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(6, 12, bias=False), nn.Linear(6, 6, bias=False)
        self.v, self.o = nn.Linear(6, 6, bias=False), nn.Linear(12, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y(x).unflatten(-1, (-1, 3)).transpose(1, 2) for y in (self.q, self.k, self.v))
        k, v = (y.repeat_interleave(2, 1) for y in (k, v))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (_Flattened, _x(3, 2, 6, 6)),
        (_BatchNormed, _x(3, 2, 6, 6)),
        (lambda: _Grouped(4), _x(3, 2, 6, 6)),
        (lambda: _Grouped(2), _x(3, 2, 6, 6)),
        (_GroupedQueries, _x(2, 5, 6)),
    ],
    ids=["flatten", "running statistics", "depthwise", "grouped", "grouped queries"],
)
def test_units_are_exchanged_only_where_they_may_be(model, inputs: Tensor) -> None:
    torch.manual_seed(0)
    made = randomise(model().double())
    symmetry = find_symmetry(made, (inputs,))
    assert symmetry.log_order() > 0  # there is something to exchange
    found = errors(made, symmetry, (inputs,), strength=1.0)
    assert max(v for k, v in found.items() if k != "a wrong move") < 1e-12
    assert found["a wrong move"] > 1e-3

"""Relations of an activation as moves of a network: the same function at other parameters."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from paramsym import find_symmetry
from paramsym.discovery import Relation, intertwiners, lift
from paramsym.discovery.activations.relation import Family
from paramsym.tracing.pointwise import NotPointwise

GATED = Relation(-1, 0, 1, -1)
FLIP = Relation(-1, 0, -1, 0, 1)
X = (torch.randn(64, 3, generator=torch.Generator().manual_seed(1)).double(),)


class Parallel(nn.Module):
    """U f(Vx + v) + o, and W x beside it where asked."""

    def __init__(
        self, f: Callable[[Tensor], Tensor], path: bool = False,
        writer_bias: bool = True, reader_bias: bool = True,
    ):  # fmt: skip
        super().__init__()
        self.f = f
        self.v = nn.Linear(3, 5, bias=writer_bias)
        self.u = nn.Linear(5, 2, bias=reader_bias)
        self.w = nn.Linear(3, 2, bias=False) if path else None
        generator = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            parameter.data.normal_(generator=generator)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        y = self.u(self.f(self.v(x)))
        return y if self.w is None else y + self.w(x)


def hidden(model: nn.Module, inputs=X, size: int = 5):
    symmetry = find_symmetry(model, inputs)
    return symmetry, next(name for name, s in symmetry.spaces.items() if s.size == size)


def error(model: nn.Module, params: dict[str, Tensor], inputs=X) -> float:
    with torch.no_grad():
        expected, found = model(*inputs), functional_call(model, params, inputs)
    return float((found - expected).abs().max() / expected.abs().max())


def lifted(model: nn.Module, relation: Relation, **options) -> dict[str, Tensor]:
    symmetry, space = hidden(model)
    return lift(relation, model, symmetry, X, space, **options)


def changed(model: nn.Module, params: dict[str, Tensor]) -> set[str]:
    return {n for n, t in model.state_dict().items() if not torch.equal(t, params[n])}


sine, relu = intertwiners(torch.sin), intertwiners(torch.relu).families[0]
LIFTS = {
    "sigmoid, flipped": (torch.sigmoid, FLIP, {"v.weight", "v.bias", "u.weight", "u.bias"}),
    "tanh, odd": (torch.tanh, Relation(-1, 0, -1), {"v.weight", "v.bias", "u.weight"}),
    "sine, odd": (torch.sin, sine.relations[0], {"v.weight", "v.bias", "u.weight"}),
    "sine, half period": (torch.sin, sine.relations[1], {"v.bias", "u.weight"}),
    "sine, period": (torch.sin, sine.relations[2], {"v.bias"}),
    "sine, about π/2": (torch.sin, sine.relations[3], {"v.weight", "v.bias"}),
    "relu, by e^0.7": (F.relu, relu.at(0.7), {"v.weight", "v.bias", "u.weight"}),
    "exp, by 1": (torch.exp, Family(0, 1, 1).at(1.0), {"v.bias", "u.weight"}),
    "relu6, about 3": (F.relu6, Relation(-1, 6, -1, 0, 6), set()),
}


@pytest.mark.parametrize("name", LIFTS)
@pytest.mark.parametrize("units", [None, 3, [0, 2]], ids=["all", "one", "two"])
def test_a_relation_moves_a_layer_and_keeps_its_function(name: str, units) -> None:
    function, relation, expected = LIFTS[name]
    model = Parallel(function)
    moved = lifted(model, relation, units=units)
    assert error(model, moved) <= 1e-12
    assert not expected or changed(model, moved) == expected
    before = model.v.bias[0] if units == 3 else model.v.bias[1]
    still = moved["v.bias"][0 if units == 3 else 1]
    assert units is None or bool(before == still)  # units that were not named stay
    broken = dict(moved)
    for tensor in changed(model, moved) - {"v.bias"} or {"v.bias"}:
        if name != "sine, period":
            broken[tensor] = model.state_dict()[tensor]
            break
    else:
        broken["v.bias"] = moved["v.bias"] + 1e-3
    assert error(model, broken) > 1e-6  # one tensor left behind


def test_moves_compose_as_relations_do() -> None:
    model = Parallel(torch.sin)
    odd, half = sine.generators
    twice = lifted(model, odd, params=lifted(model, half, units=1), units=1)
    once = lifted(model, half @ odd, units=1)
    # V → αV first and then βs: maps of arguments are composed from the outside
    assert error(model, twice) <= 1e-12 and error(model, once) <= 1e-12
    wrap = (twice["v.bias"] - once["v.bias"]).div(2 * math.pi)
    assert torch.allclose(wrap, wrap.round(), atol=1e-12)
    assert torch.allclose(twice["u.weight"], once["u.weight"])


@pytest.mark.parametrize("f", [F.softplus, F.gelu, F.silu, F.hardswish, F.relu, F.logsigmoid])
def test_a_linear_term_goes_into_a_path_beside_the_layer(f) -> None:
    (relation,) = intertwiners(f).relations
    model = Parallel(f, path=True)
    moved = lifted(model, relation, units=[1, 4], skip="w.weight")
    # F.softplus loses e^−20 above 20, which is a relation to 2e-9 of one unit
    assert error(model, moved) <= (1e-9 if f is F.softplus else 1e-12)
    assert changed(model, moved) == {"v.weight", "v.bias", "u.weight", "u.bias", "w.weight"} - (
        {"u.weight"} if relation.a == 1 else set()
    )
    broken = {**moved, "w.weight": model.state_dict()["w.weight"]}
    assert error(model, broken) > 1e-2


def test_softplus_beyond_its_threshold_is_another_function() -> None:
    """torch returns z above 20, so that the reflection is wrong by e^−20 = 2e-9 there."""
    model = Parallel(F.softplus, path=True)
    assert lifted(model, GATED, units=0, skip="w.weight")
    model.v.bias.data[0] = 20.5
    with pytest.raises(ValueError, match="the function changes by"):
        lifted(model, GATED, units=0, skip="w.weight")
    assert lifted(model, GATED, units=0, skip="w.weight", tolerance=1e-8)
    exact = Parallel(lambda z: F.softplus(z, threshold=1000), path=True)
    exact.load_state_dict(model.state_dict())
    assert error(exact, lifted(exact, GATED, units=0, skip="w.weight")) <= 1e-12


def test_two_matrices_read_the_units() -> None:
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.v, self.u, self.t = nn.Linear(3, 5), nn.Linear(5, 2), nn.Linear(5, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.sigmoid(self.v(x))
            return torch.cat([self.u(h), self.t(h)], -1)

    model = Two().double()
    moved = lifted(model, FLIP, units=2)
    assert error(model, moved) <= 1e-12
    assert {"u.bias", "t.bias"} <= changed(model, moved)


def test_a_layer_within_a_deeper_network() -> None:
    deep = nn.Sequential(
        nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5), nn.Sigmoid(), nn.Linear(5, 6), nn.Tanh(),
        nn.Linear(6, 2),
    ).double()  # fmt: skip
    assert error(deep, lifted(deep, FLIP)) <= 1e-12


def test_a_convolution_writes_and_a_product_reads() -> None:
    class Pixels(nn.Module):
        def __init__(self):
            super().__init__()
            self.v, self.u = nn.Conv2d(3, 5, 3, padding=1), nn.Parameter(torch.randn(2, 5))

        def forward(self, x: Tensor) -> Tensor:
            return torch.einsum("oc,bcxy->boxy", self.u, torch.tanh(self.v(x)))

    model = Pixels().double()
    image = (torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(2)).double(),)
    symmetry, space = hidden(model, image)
    moved = lift(Relation(-1, 0, -1), model, symmetry, image, space, units=2)
    assert error(model, moved, image) <= 1e-12
    assert changed(model, moved) == {"v.weight", "v.bias", "u"}
    with pytest.raises(ValueError, match="a relation of that function"):
        lift(FLIP, model, symmetry, image, space)


def test_parameters_in_float32() -> None:
    model = Parallel(torch.sigmoid).float()
    inputs = (X[0].float(),)
    symmetry, space = hidden(model, inputs)
    moved = lift(FLIP, model, symmetry, inputs, space)
    assert moved["v.weight"].dtype == torch.float32 and error(model, moved, inputs) < 1e-6


def test_raw_parameters_take_names() -> None:
    class Raw(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.randn(5, 3)), nn.Parameter(torch.randn(5))
            self.c, self.d = nn.Parameter(torch.randn(2, 5)), nn.Parameter(torch.randn(2))

        def forward(self, x: Tensor) -> Tensor:
            return torch.sigmoid(x @ self.a.T + self.b) @ self.c.T + self.d

    model = Raw().double()
    with pytest.raises(ValueError, match="name it by reader_bias"):
        lifted(model, FLIP)
    assert error(model, lifted(model, FLIP, reader_bias="d")) <= 1e-12


REFUSED = {
    "no linear path": (Parallel(F.silu), GATED, {}, "without one the relation does not lift"),
    "the wrong path": (
        Parallel(F.silu, path=True), GATED, {"skip": "u.weight"}, "a matrix of shape (2, 3)"),
    "no path of that name": (
        Parallel(F.silu, path=True), GATED, {"skip": "x"}, "is no parameter"),
    "no bias behind": (
        Parallel(torch.sigmoid, reader_bias=False), FLIP, {}, "has no bias of 2 numbers"),
    "no bias before": (
        Parallel(torch.sin, writer_bias=False), sine.relations[1], {}, "have no bias"),
    "another function": (
        Parallel(F.gelu), Relation(-1, 0, -1), {}, "a relation of that function was expected"),
    "no such unit": (Parallel(torch.tanh), Relation(-1, 0, -1), {"units": 5}, "from 0 to 4"),
    "a bias that is none": (
        Parallel(torch.sigmoid), FLIP, {"reader_bias": "v.bias"}, "has no bias of 2 numbers"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_lift_is_refused(name: str) -> None:
    model, relation, options, text = REFUSED[name]
    with pytest.raises(ValueError) as found:
        lifted(model, relation, **options)
    assert text in str(found.value) and "expected" in str(found.value)


def test_a_path_that_is_none_is_noticed_by_its_function() -> None:
    class Elsewhere(Parallel):
        def forward(self, x: Tensor) -> Tensor:
            assert self.w is not None
            return self.u(self.f(self.v(x))) + self.w(x.square())

    with pytest.raises(ValueError, match="the function changes by"):
        lifted(Elsewhere(F.silu, path=True), GATED, skip="w.weight")


def test_units_that_pass_two_functions_are_refused() -> None:
    class Split(Parallel):
        def forward(self, x: Tensor) -> Tensor:
            z = self.v(x)
            return self.u(torch.sigmoid(z)) + self.w(x) + self.u.weight.sum() * z.sum(-1, True)

    with pytest.raises(NotPointwise):
        lifted(Split(torch.sigmoid, path=True), FLIP)


def test_a_function_of_several_calls_is_one_function() -> None:
    def swing(z: Tensor) -> Tensor:
        return torch.tanh(z) * z.abs()

    model = Parallel(swing)
    (odd,) = intertwiners(swing).relations
    assert error(model, lifted(model, odd, units=2)) <= 1e-12
    with pytest.raises(ValueError, match="a relation of that function"):
        lifted(model, FLIP)


@pytest.mark.parametrize(
    ("relation", "needs", "words"),
    [
        (Relation(-1, 0, -1), (), "to any hidden layer: V → −V, v → −v, U → −U"),
        (FLIP, ("reader bias",), "where there is o of the readers: "),
        (Relation(1, math.pi, -1), ("writer bias",), "v → v + π, U → −U"),
        (GATED, ("reader bias", "skip"), "W → W + UV"),
        (Relation(2, 0, 0, 0, 1), ("reader bias",), "to no layer"),
    ],
)
def test_what_a_relation_needs_is_said(relation: Relation, needs, words: str) -> None:
    assert relation.needs == needs
    assert words in relation.lifts

"""What was found of a custom operator, registered as its rule."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paramsym import assert_lowering, find_symmetry, rule, verify
from paramsym.discovery import intertwiners, register_rule
from paramsym.lowering.registry import RULES

X = (torch.randn(16, 3, generator=torch.Generator().manual_seed(0)).double(),)


@torch.library.custom_op("intertwined::odd", mutates_args=())
def odd(x: Tensor) -> Tensor:
    return x / (1 + x.square()).sqrt()


@torch.library.custom_op("intertwined::bump", mutates_args=())
def bump(x: Tensor) -> Tensor:
    return x * x.abs()  # homogeneous of degree two, and odd


@torch.library.custom_op("intertwined::ramp", mutates_args=())
def ramp(x: Tensor) -> Tensor:
    return x.clamp_min(0) ** 1.5


@torch.library.custom_op("intertwined::gate", mutates_args=())
def gate(x: Tensor) -> Tensor:
    return 1 / (1 + (-x).exp())


@torch.library.custom_op("intertwined::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return 2 * x


@torch.library.custom_op("intertwined::bell", mutates_args=())
def bell(x: Tensor) -> Tensor:
    return (-x.square()).exp()


@torch.library.custom_op("intertwined::power", mutates_args=())
def power(x: Tensor, p: float) -> Tensor:
    return x.abs() ** p


for operator in (odd, bump, ramp, gate, twice, bell):
    operator.register_fake(torch.empty_like)
power.register_fake(lambda x, p: torch.empty_like(x))


@pytest.fixture(autouse=True)
def _rules() -> Iterator[None]:
    """No rule outlives its test."""
    before = dict(RULES)
    yield
    RULES.clear()
    RULES.update(before)


class Net(nn.Module):
    def __init__(self, operator, *rest: float):
        super().__init__()
        self.a, self.b, self.operator, self.rest = nn.Linear(3, 5), nn.Linear(5, 2), operator, rest
        generator = torch.Generator().manual_seed(3)
        for parameter in self.parameters():
            parameter.data.normal_(generator=generator)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.operator(self.a(x), *self.rest))


EXPECTED = {
    "odd": (odd, {"degree": None, "sign": "odd"}, {"SignedPermutation(5)"}),
    "bump": (
        bump,
        {"degree": Fraction(2), "sign": "odd"},
        {"Permutation(5)", "PositiveScaling(1)", "Signs(1)"},
    ),
    "ramp": (ramp, {"degree": Fraction(3, 2), "sign": "pin"}, {"Monomial(5)"}),
    "gate": (gate, {"degree": None, "sign": "pin"}, {"Permutation(5)"}),
    "twice": (twice, {"linear": True, "factor": 2.0}, {"GeneralLinear(5)"}),
    "bell": (bell, {"degree": None, "sign": "even"}, {"Permutation(5)", "Signs(1)"}),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_custom_operator_gets_its_group(name: str) -> None:
    operator, facts, groups = EXPECTED[name]
    model = Net(operator)
    assert [*find_symmetry(model, X).probed] == [f"intertwined::{name}"]  # there is no rule
    assert register_rule(intertwiners(operator), f"intertwined::{name}") == facts
    symmetry = find_symmetry(model, X)
    assert {str(space.group) for space in symmetry.spaces.values()} == groups
    assert not symmetry.probed
    proof = verify(model, symmetry, X)
    assert proof.error < 1e-12 and proof.control > 1e-3
    assert assert_lowering(model, X).not_computed == ()


def test_a_registration_of_another_function_is_caught() -> None:
    register_rule(intertwiners(odd), "intertwined::gate")
    model = Net(gate)
    with pytest.raises(AssertionError, match="is off by"):
        assert_lowering(model, X)
    claimed = find_symmetry(model, X, check=False)
    assert str(claimed.spaces["mlp"].group) == "SignedPermutation(5)"
    assert verify(model, claimed, X).error > 1e-3
    tried = find_symmetry(model, X)
    assert str(tried.spaces["mlp"].group) == "Permutation(5)"


def test_a_relation_that_was_accepted_too_loosely_is_caught() -> None:
    register_rule(intertwiners(gate), "intertwined::gate")
    assert assert_lowering(Net(gate), X).not_computed == ()

    @rule("intertwined::gate")
    def wrong(build, call):
        (x,) = build.arguments(call, "x")
        return build.unary(x, sign="odd", compute=gate)

    with pytest.raises(AssertionError):
        assert_lowering(Net(gate), X)


def test_a_call_with_further_arguments_stays_unknown() -> None:
    register_rule(intertwiners(lambda z: z.abs() ** 3), "intertwined::power")
    symmetry = find_symmetry(Net(power, 2.0), X)
    assert symmetry.spaces == {} and "power" in next(iter(symmetry.unknown))


@pytest.mark.parametrize(
    ("function", "facts"),
    [
        (torch.sqrt, {"degree": Fraction(1, 2), "sign": "pin"}),
        (torch.log, {"degree": None, "sign": "pin"}),
        (F.gelu, {"degree": None, "sign": "pin"}),  # f(−z) = f(z) − z is no word of a rule
        (torch.cos, {"degree": None, "sign": "even"}),
        (torch.square, {"degree": Fraction(2), "sign": "even"}),
        (torch.sign, {"degree": Fraction(0), "sign": "odd"}),
        (lambda z: z * z + z, {"degree": None, "sign": "pin"}),
        (lambda z: z + 1, {"degree": None, "sign": "pin"}),
        (lambda z: z.abs() ** 0.377, {"degree": None, "sign": "even"}),
    ],
)
def test_only_what_needs_nothing_else_is_stated(function, facts) -> None:
    assert register_rule(intertwiners(function), "intertwined::any") == facts

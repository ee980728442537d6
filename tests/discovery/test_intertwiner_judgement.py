"""Nothing is returned unjudged, whatever the units and the digits of a function."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from paramsym.discovery import intertwiners

Function = Callable[[Tensor], Tensor]


def bump(u: Tensor) -> Tensor:
    return torch.exp(-u.square())


UNITS: dict[str, tuple[Function, str]] = {
    "softplus": (F.softplus, "Z2"),
    "tanh": (torch.tanh, "Z2"),
    "sine": (torch.sin, "D∞"),
    "exp": (torch.exp, "R"),
    "z log|z|": (lambda z: torch.xlogy(z, z.abs()), "R*"),
    "log|z|": (lambda z: torch.log(z.abs()), "R*"),
    "mish": (F.mish, "trivial"),
}


FACTORS = (1e-200, -1e-9, 1e8, 1e200)
CASES = [(name, FACTORS[(k + j) % 4]) for k, name in enumerate(UNITS) for j in (0, 3)]


@pytest.mark.parametrize(("name", "factor"), CASES)
def test_a_factor_changes_nothing(name: str, factor: float) -> None:
    function, group = UNITS[name]
    found = intertwiners(lambda z: factor * function(z))
    plain = intertwiners(function)
    assert found.group == plain.group == group
    assert [r.b / factor for r in found.relations] == pytest.approx([r.b for r in plain.relations])
    assert found.gap.largest <= found.tolerance
    for relation in found.relations:
        assert found.measured(relation).residual <= found.tolerance
        assert found.over(relation.alpha, relation.beta).b == pytest.approx(relation.b)


# staircases mean what they say, roundings are relative: (function, epsilon, group, degree)
DIGITS: dict[str, tuple[Function, float, str, float | None]] = {
    "int8": (lambda z: torch.round(torch.tanh(z) * 127) / 127, 2**-52, "Z2", None),
    "steps of 1/64": (lambda z: torch.round(z * 64) / 64, 2**-52, "D∞", None),
    "steps of 1/1000": (lambda z: torch.round(z * 1000) / 1000, 2**-52, "Z2", None),
    "sign": (torch.sign, 2**-52, "R*", 0),
    "uint8": (lambda z: torch.round(torch.sigmoid(z) * 255) / 256, 2**-52, "Z2", None),
    "relu in bfloat16": (lambda z: F.relu(z.bfloat16()), 2**-7, "R*", 1),
    "sigmoid in bfloat16": (lambda z: torch.sigmoid(z.bfloat16()).double(), 2**-7, "Z2", None),
    "silu in float16": (lambda z: F.silu(z.half()), 2**-10, "Z2", None),
    "an argument in float32": (lambda z: torch.tanh(z.float().double()), 2**-23, "Z2", None),
    "mish in float32": (lambda z: F.mish(z.float()), 2**-23, "trivial", None),
}


@pytest.mark.parametrize("name", DIGITS)
def test_digits_are_those_of_a_type_and_no_steps(name: str) -> None:
    function, epsilon, group, degree = DIGITS[name]
    found = intertwiners(function)
    assert found.scalar.epsilon == epsilon
    assert found.tolerance <= 1e-3
    assert (found.group, found.degree) == (group, degree), str(found)


def test_a_coarse_tolerance_is_the_users_word() -> None:
    def skewed(z: Tensor) -> Tensor:
        return torch.tanh(z) + 0.01 * bump(z)

    assert intertwiners(skewed).group == "trivial"
    coarse = intertwiners(skewed, tolerance=0.05)
    assert coarse.group == "Z2" and coarse.relations[0].residual > 1e-3


def test_a_mixture_is_refused_in_small_units_too() -> None:
    with pytest.raises(ValueError, match="each entry by itself"):
        intertwiners(lambda z: 1e-12 * z.softmax(-1))

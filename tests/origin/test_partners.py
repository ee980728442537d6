"""Clear partners, against a twin that looks at every pair of units."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor, nn

from paramsym import ParameterSymmetry, find_symmetry
from paramsym.origin.partners import CLEAR, Partners, partners

State = dict[str, Tensor]


@cache
def perceptron(n: int = 9) -> ParameterSymmetry:
    model = nn.Sequential(nn.Linear(5, n), nn.ReLU(), nn.Linear(n, 3)).double()
    return find_symmetry(model, (torch.zeros(2, 5).double(),))


def drawn(seed: int, symmetry: ParameterSymmetry) -> State:
    generator = torch.Generator().manual_seed(seed)
    return {
        n: torch.randn(symmetry.shape(n), generator=generator).double() for n in symmetry.signature
    }


def twin(x: Tensor, y: Tensor) -> tuple[int, int]:
    """Units that can be told, and clear ones, one after another."""
    told = clear = 0
    for i in range(len(x)):
        others = min(
            min(float((x[i] - y[j]).norm()), float((x[j] - y[i]).norm()))
            for j in range(len(x)) if j != i
        )  # fmt: skip
        size = max(float(x[i].norm()), float(y[i].norm()))
        if min(float(x[i].norm()), float(y[i].norm())) > 0 and others > 0.01 * size:
            told += 1
            clear += float((x[i] - y[i]).norm()) < CLEAR * others
    return told, clear


def units(params: State) -> dict[str, Tensor]:
    first, bias, last = params["0.weight"], params["0.bias"][:, None], params["2.weight"].T
    return {"": torch.cat([first, bias, last], 1), "0.weight": first, "2.weight": last}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("noise", [0.3, 1.0, 3.0])
def test_they_are_those_that_a_slow_twin_finds(seed: int, noise: float) -> None:
    symmetry = perceptron()
    a = drawn(seed, symmetry)
    b = {n: t + noise * drawn(seed + 100, symmetry)[n] for n, t in a.items()}
    a["0.weight"][2] = a["0.weight"][3]  # told apart by what goes out alone
    found = partners(symmetry, a, b)
    xs, ys = units(a), units(b)
    for tensor in xs:
        got = found["mlp", tensor]
        assert (got.count, got.clear) == twin(xs[tensor], ys[tensor])


def test_an_equal_network_has_clear_partners_alone_and_an_unrelated_one_hardly_any() -> None:
    symmetry = perceptron(40)
    a = drawn(0, symmetry)
    assert partners(symmetry, a, a)["mlp", ""] == Partners(40, 40, 9)
    assert partners(symmetry, a, drawn(1, symmetry))["mlp", ""].share < 0.1


def test_dead_and_equal_units_are_not_counted() -> None:
    symmetry = perceptron()
    a = drawn(0, symmetry)
    for name, t in a.items():
        if name != "2.bias":
            axis = 1 if name == "2.weight" else 0
            t.select(axis, 0).zero_()
            t.select(axis, 2).copy_(t.select(axis, 1))
    assert partners(symmetry, a, a)["mlp", ""] == Partners(6, 6, 9)


def test_chances_are_tails_of_the_binomial_distribution() -> None:
    assert Partners(3, 3, 20).chance(0.25) == pytest.approx(0.25**3)
    assert Partners(3, 2, 20).chance(0.25) == pytest.approx(3 * 0.25**2 * 0.75 + 0.25**3)
    assert Partners(3, 0, 20).chance(0.25) == 1
    assert Partners(5, 5, 20).chance(1.0) == 1

"""Ranges and sums of absolute values along the moduli of rotary query–key pairs."""

from __future__ import annotations

import pytest
import torch

from paramsym import ParameterSymmetry, Space, balance
from paramsym.algebra import ComplexScaling
from paramsym.geometry.costs import scales_of
from paramsym.geometry.result import Status
from paramsym.quantize.incidence import incidence_of
from paramsym.quantize.ranges import minimize_range
from paramsym.structure.axes import parse_axis
from tests.quantize import range_twins as twin
from tests.tracing.zoo import build, derived

pytestmark = pytest.mark.filterwarnings("ignore::Warning")


def queries_and_keys() -> tuple[ParameterSymmetry, twin.State]:
    """Three pairs of coordinates, k with k + 3, with nothing before them."""
    symmetry = ParameterSymmetry(
        {"qk": Space("qk", ComplexScaling(6))},
        {n: tuple(parse_axis(a) for a in t.split(", ")) for n, t in
         {"q": "qk, 4", "k": "qk*, 4"}.items()},
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    return symmetry, {n: torch.randn(6, 4, generator=generator).double() for n in ("q", "k")}


@pytest.mark.parametrize("objective", ["max", "abs"])
def test_the_range_along_moduli_is_that_of_the_twin_from_any_start(objective: str) -> None:
    symmetry, params = queries_and_keys()
    expected = twin.slow_range(symmetry, params, objective, ["qk"])
    for seed in range(4):
        start = twin.moved_at_random(symmetry, params, seed, ["qk"])
        result = minimize_range(symmetry, start, objective, slack=0.0)
        assert result.status is Status.OPTIMAL and list(result.held) == ["qk (phases)"]
        assert result.value == pytest.approx(expected, rel=1e-8)
        assert result.value == pytest.approx(twin.widest(symmetry, result.params, objective))
        torch.testing.assert_close(  # scores without rotation: moduli alone have moved
            result.params["q"][:3] * result.params["k"][:3], params["q"][:3] * params["k"][:3]
        )
    held = minimize_range(symmetry, params, objective, hold="qk")
    assert held.value == held.before > 1.01 * expected


def test_absolute_values_are_least_in_closed_form() -> None:
    symmetry, params = queries_and_keys()
    q, k = (params[n].abs().sum(1).reshape(2, 3).sum(0) for n in ("q", "k"))
    result = balance(symmetry, params, "l1")
    assert result.status is Status.OPTIMAL and "phase mixes" in result.held["qk (phases)"]
    assert result.value == pytest.approx(float(2 * (q * k).sqrt().sum()), rel=1e-10)
    assert result.value < 0.999 * result.before
    fixed = balance(symmetry, params, "l1", anchors={"qk": 2.0})
    assert fixed.value == pytest.approx(float((2 * q + k / 2).sum()), rel=1e-10)


def test_beside_the_gain_before_it_the_pairs_of_a_llama_are_held_and_without_it_they_move() -> None:
    model, _ = build("Llama")
    symmetry = derived("Llama")
    params = twin.state_of(model)
    spaces = [n for n, s in symmetry.spaces.items() if scales_of(s) and s.exact]
    pairs = [n for n in spaces if isinstance(symmetry.spaces[n].group, ComplexScaling)]
    gains = [n for n in spaces if n.endswith("input_layernorm")]
    assert pairs and gains
    assert {*incidence_of(symmetry, params, spaces).held} == {*pairs}
    both = minimize_range(symmetry, params, slack=0.0)
    assert all("raises weights together" in both.held[n] for n in pairs)
    result = minimize_range(symmetry, params, hold=gains, slack=0.0)
    assert result.status is Status.OPTIMAL and not {*pairs} & {*result.held}
    start = twin.moved_at_random(symmetry, params, 0, pairs)
    again = minimize_range(symmetry, start, hold=gains, slack=0.0)
    assert again.before > 1.01 * again.value
    assert again.value == pytest.approx(result.value, rel=1e-9)
    kept = minimize_range(symmetry, start, hold=[*gains, *pairs], slack=0.0)
    assert kept.value > 1.01 * again.value  # what moduli cannot repair where they are held

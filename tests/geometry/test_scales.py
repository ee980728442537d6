"""Scales that are prepared once and found at many points are those of `balance`."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from paramsym import ParameterSymmetry, Space, act, balance
from paramsym.algebra import PositiveScaling
from paramsym.geometry.bounds import limits_of
from paramsym.geometry.costs import cost_along_scales, readers_of, scaled_by
from paramsym.geometry.movers import movers_of
from paramsym.geometry.refilled import Refilled
from paramsym.geometry.scales import Scales
from paramsym.structure.axes import Carried
from tests.geometry.orbits import State, drawn, of_zoo, traced

TOLERANCE = 1e-3
PLAIN = ["MLP, ReLU", "MLP, squared ReLU", "MLP, leaky ReLU", "wide"]


@cache
def network(name: str) -> tuple[ParameterSymmetry, State]:
    """One of the zoo, or one whose matrices are read by PyTorch and not by NumPy."""
    if name != "wide":
        return of_zoo(name)
    sizes = 130, 140, 150, 120
    layers = [nn.Linear(m, n).double() for m, n in zip(sizes, sizes[1:], strict=False)]
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    return traced(model, (torch.randn(3, 130, dtype=torch.float64),))


def prepared(symmetry: ParameterSymmetry, power: float = 2.0, bounds: dict | None = None) -> Scales:
    movers = movers_of(symmetry, power, (), (), shifts=False)
    movers.bases = []
    return Scales(symmetry, power, movers, limits_of(symmetry, bounds or {}, {}, {}), TOLERANCE)


def single(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: p.float() if p.is_floating_point() else p for n, p in state.items()}


@pytest.mark.parametrize("power", [2.0, 1.0])
@pytest.mark.parametrize("name", PLAIN)
def test_a_cost_that_is_filled_again_is_the_cost(name: str, power: float) -> None:
    symmetry, state = network(name)
    scales = prepared(symmetry, power)
    for kind, close in ((lambda s: s, 1e-13), (single, 1e-6)):
        filled = Refilled.of(scales.shapes, scales.readers, kind(state))
        assert filled is not None and filled.anchored
        for seed in (1, 2):
            params = kind(drawn(state, seed))
            assert filled.fits(params)
            expected = cost_along_scales(symmetry, drawn(state, seed), [*scales.shapes], power)
            y = 0.1 * torch.arange(expected.size, dtype=torch.float64) % 1
            point, known = filled.read(params).at(y.numpy()), expected.at(y)
            assert point.value == pytest.approx(known.value, rel=close)
            found = torch.from_numpy(point.gradient)
            assert float((found - known.gradient).abs().max()) <= close * known.value
            up, down = torch.from_numpy(point.sides())
            assert float((up - known.up).abs().max()) <= close * known.value
            assert float((down - known.down).abs().max()) <= close * known.value
        assert not filled.fits({n: p.half() for n, p in state.items()})


@pytest.mark.parametrize("power", [2.0, 1.0])
@pytest.mark.parametrize("name", [*PLAIN, "convolutions", "GPT-2", "Gemma", "Llama", "ResNet"])
def test_scales_near_and_far_are_those_of_balance(name: str, power: float) -> None:
    symmetry, state = network(name)
    scales, objective = prepared(symmetry, power), {2.0: "l2", 1.0: "l1"}[power]
    still = {s for s in symmetry.spaces if s not in scales.shapes}
    for seed in (1, 2):
        for near in (False, True):
            params = drawn(state, seed)
            least = balance(symmetry, params, objective, hold=still, shifts=False)
            found = scales.least(params, near)
            assert found.before == pytest.approx(least.before, rel=1e-12)
            assert found.value - least.value <= found.gap + 1e-9 * least.value
            assert found.unattained == (least.status == "UNATTAINED")
            assert found.gap <= TOLERANCE * found.value or found.unattained
            moved = act(symmetry, scaled_by(symmetry, found.logs), params)
            reached = cost_along_scales(symmetry, moved, (), power).constant
            assert reached == pytest.approx(found.value, rel=1e-9)
            assert found.moves and found.value < found.before


def test_constants_and_other_numbers_are_left_to_the_general_way() -> None:
    for name, kind in (("Gemma", torch.float64), ("MLP, ReLU", torch.float16)):
        symmetry, state = of_zoo(name)
        scales, params = prepared(symmetry), {n: p.to(kind) for n, p in state.items()}
        assert Refilled.of(scales.shapes, scales.readers, params) is None
        assert scales.least(params).value > 0


def test_units_without_weights_are_held_as_balance_holds_them() -> None:
    symmetry, state = of_zoo("MLP, ReLU")
    params = drawn(state, 1)
    weight = next(n for n, p in params.items() if p.ndim == 2)
    row, bias = params[weight], params[weight.replace("weight", "bias")]
    row[2], bias[2] = 0.0, 0.0  # nothing comes in, and what goes out could go to zero
    least, found = balance(symmetry, params, shifts=False), prepared(symmetry).least(params)
    assert found.unattained and least.status == "UNATTAINED"
    assert found.held == least.held and found.held
    assert found.value == pytest.approx(least.value, rel=1e-6)


def test_families_that_lead_back_to_one_another_are_left_to_the_general_way() -> None:
    """Along both scales together nothing changes, which a look at each alone does not tell."""
    sizes = {"a": 3, "b": 4}
    spaces = {n: Space(n, PositiveScaling(size)) for n, size in sizes.items()}
    once, dual = Fraction(1), Fraction(-1)
    up, down = (
        (Carried(((one, once),)), Carried(((other, dual),)))
        for one, other in (("a", "b"), ("b", "a"))
    )
    symmetry = ParameterSymmetry(spaces, {"up": up, "down": down})
    generator = torch.Generator().manual_seed(0)
    params = {
        n: torch.randn(symmetry.shape(n), generator=generator).double() for n in ("up", "down")
    }
    scales = prepared(symmetry)
    readers = readers_of(symmetry, symmetry.blocks, [*sizes], 2.0)
    filled = Refilled.of(scales.shapes, readers, params)
    assert filled is not None and not filled.anchored
    found, least = scales.least(params), balance(symmetry, params, shifts=False)
    assert found.unattained == (least.status == "UNATTAINED")
    assert found.value == pytest.approx(least.value, rel=1e-6)


def test_bounds_hold_at_each_point() -> None:
    symmetry, state = of_zoo("MLP, ReLU")
    bounds = {"*": (0.8, 1.25)}
    scales = prepared(symmetry, bounds=bounds)
    for seed in (1, 2):
        params = drawn(state, seed)
        found = scales.least(params)
        least = balance(symmetry, params, bounds=bounds, shifts=False)
        assert found.value == pytest.approx(least.value, rel=TOLERANCE)
        assert all(float(y.exp().max()) <= 1.25 + 1e-12 for y in found.logs.values())
        assert found.held.keys() == least.held.keys() and not found.unattained
        assert found.value > 1.001 * scales_free(symmetry, params)


def scales_free(symmetry: ParameterSymmetry, params: dict[str, Tensor]) -> float:
    return balance(symmetry, params, shifts=False).value

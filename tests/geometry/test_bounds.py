"""Bounds and anchors on scales: closed forms, a general solver in a box, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import nn

from paramsym import ParameterSymmetry, Space, act, balance, find_symmetry
from paramsym.algebra import GeneralLinear, PositiveScaling
from paramsym.geometry.boxed import Box, gap_in_box, least_in_box, slope_in_box
from paramsym.geometry.newton import minimise
from paramsym.geometry.posynomial import Posynomial
from paramsym.geometry.result import Status
from paramsym.geometry.terms import Factor, Term
from paramsym.structure.patterns import UnknownName
from tests.geometry.test_balance import by_hand, normal, outputs, relu_layer, state_of
from tests.geometry.test_posynomial import drawn, slow
from tests.tracing.zoo import build

pytestmark = pytest.mark.filterwarnings("ignore::Warning")
State = dict[str, torch.Tensor]


# -- the convex program ------------------------------------------------------------------------


def boxed(seed: int, size: int) -> Box:
    """Narrow, wide, absent and empty bounds, some with zero at their end."""
    generator = torch.Generator().manual_seed(seed)
    low, high = torch.rand(2, size, generator=generator, dtype=torch.float64)
    kind = torch.randint(5, (size,), generator=generator)
    low, high = -low, high
    low[kind == 0], high[kind == 0] = -torch.inf, torch.inf
    low[kind == 1] = 0.0
    low[kind == 2], high[kind == 2] = -1e-3, 1e-3
    low[kind == 3] = high[kind == 3]
    return Box(low, high)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6))
def test_the_minimum_in_a_box_is_that_of_a_general_solver(seed: int) -> None:
    f = drawn(seed)
    free, box = torch.ones(f.size, dtype=torch.float64), boxed(seed, f.size)
    y = least_in_box(f, free, box, 1e-12).point.y
    assert bool(((box.low <= y) & (y <= box.high)).all())
    ends = [(None if a == -math.inf else a, None if b == math.inf else b)
            for a, b in zip(box.low.tolist(), box.high.tolist(), strict=True)]  # fmt: skip
    found = minimize(
        lambda z: float(slow(f, torch.from_numpy(z))), box.nearest(torch.zeros(f.size)).numpy(),
        method="L-BFGS-B", jac=lambda z: f.at(torch.from_numpy(z)).gradient.numpy(), bounds=ends,
        options={"ftol": 1e-15, "gtol": 1e-10, "maxiter": 10_000},
    )  # fmt: skip
    assert f.at(y).value <= float(found.fun) * (1 + 1e-12)
    assert f.at(y).value == pytest.approx(float(found.fun), rel=1e-9)
    assert gap_in_box(f.at(y), free, box) <= 1e-11 * f.at(y).value
    assert f.at(minimise(f, free, 1e-12)).value < f.at(y).value  # without the box it is lower


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6))
def test_the_gap_in_a_box_is_never_less_than_what_is_left(seed: int) -> None:
    f = drawn(seed)
    free, box = torch.ones(f.size, dtype=torch.float64), boxed(seed, f.size)
    best = least_in_box(f, free, box, 1e-13).point
    generator = torch.Generator().manual_seed(seed)
    for size in (1.0, 1e-1, 1e-2, 1e-4):
        move = size * torch.randn(f.size, generator=generator, dtype=torch.float64)
        point = f.at(box.nearest(best.y + move))
        assert point.value - best.value <= gap_in_box(point, free, box) * (1 + 1e-9) + 1e-14
    # the gap of the box is less than that of the free program wherever a bound holds something
    everywhere = Box(torch.full_like(free, -torch.inf), torch.full_like(free, torch.inf))
    assert float(slope_in_box(best, free, everywhere).abs().max()) > 1e-3
    assert float(slope_in_box(best, free, box).abs().max()) < 1e-9 * best.value
    assert gap_in_box(best, free, everywhere) > 1e3 * gap_in_box(best, free, box)


def test_a_multiplier_of_the_wrong_sign_costs_the_width_of_the_box() -> None:
    """y = 0 is the lower end, and the cost e^y + 4 e^−y falls upwards: it is not the minimum."""
    mass = torch.ones(1, dtype=torch.float64)
    f = Posynomial({"a": (1,)}, [Term(mass, (Factor("a", (0,), 1.0),)),
                                 Term(4 * mass, (Factor("a", (0,), -1.0),))])  # fmt: skip
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    upwards, downwards = Box(zero, 0.5 * one), Box(-0.5 * one, zero)
    assert gap_in_box(f.at(zero), one, downwards) == 0.0
    left = f.at(zero).value - f.at(0.5 * one).value
    assert left <= gap_in_box(f.at(zero), one, upwards) < 3 * left
    assert float(least_in_box(f, one, upwards, 1e-12).point.y) == 0.5


# -- balance -----------------------------------------------------------------------------------


def sides(params: State) -> tuple[torch.Tensor, torch.Tensor]:
    before = params["a"].square().sum(1) + params["b"].square()
    return before, params["c"].square().sum(0)


def clamped(before: torch.Tensor, after: torch.Tensor, low, high) -> float:
    scales = (after / before).pow(0.25).clamp(low, high)
    return float((scales**2 * before + after / scales**2).sum())


@pytest.mark.parametrize(("low", "high"), [(0.9, 1.1), (0.5, 1.0), (1e-3, 1e3), (1.0, 1.0)])
def test_units_between_bounds_stop_where_these_end(low: float, high: float) -> None:
    symmetry, params = relu_layer()
    result = balance(symmetry, params, bounds={"h": (low, high)})
    assert result.status is Status.OPTIMAL and result.gap < 1e-12
    assert result.value == pytest.approx(clamped(*sides(params), low, high), rel=1e-13)
    assert max(result.moment.values()) < 1e-10
    scales = result.params["b"] / params["b"]
    assert float(scales.min()) >= low - 1e-12 and float(scales.max()) <= high + 1e-12
    assert (result.value > (1 + 1e-8) * balance(symmetry, params).value) == (high < 1e3)


def test_each_unit_has_bounds_of_its_own_and_the_result_says_who_stands_there() -> None:
    symmetry, params = relu_layer()
    low = torch.tensor([0.999, 1.0, 0.99, 0.1, 1e-6], dtype=torch.float64)
    high = torch.tensor([1.001, 1.5, 1.01, 10.0, 1e6], dtype=torch.float64)
    result = balance(symmetry, params, bounds={"h": (low, high)})
    before, after = sides(params)
    assert result.value == pytest.approx(clamped(before, after, low, high), rel=1e-13)
    best = (after / before).pow(0.25)
    at_bound = int(((best <= low) | (best >= high)).sum())
    assert 0 < at_bound < 5
    assert result.held == {"h": f"{at_bound} of 5 scales stand at a bound"}


def test_a_unit_with_weights_on_one_side_has_a_best_value_between_bounds() -> None:
    symmetry, params = relu_layer()
    params["c"][:, 2] = 0.0
    result = balance(symmetry, params, bounds={"h": (1e-4, 1e4)})
    assert result.status is Status.OPTIMAL and "1 of 5" in result.held["h"]
    assert float(result.params["b"][2] / params["b"][2]) == pytest.approx(1e-4)
    assert balance(symmetry, params).status is Status.UNATTAINED
    wide = balance(symmetry, params, bounds={"h": (1e-40, 1e40)})
    assert float(wide.params["b"][2] / params["b"][2]) == pytest.approx(1e-40)


def test_units_that_lead_to_one_another_alone_are_attained_if_one_has_bounds() -> None:
    """Nothing fixed holds the chain from below: both would go to zero together."""
    spaces = {n: Space(n, PositiveScaling(2)) for n in "ij"}
    symmetry = by_hand(spaces, {"in": "i, 3", "mid": "j, i*", "loop": "i, j*"})
    params = normal(4, **{"in": (2, 3), "mid": (2, 2), "loop": (2, 2)})
    free, bounded = balance(symmetry, params), balance(symmetry, params, bounds={"i": (0.1, 10.0)})
    assert free.status is Status.UNATTAINED
    assert bounded.status is Status.OPTIMAL and bounded.value < 0.9 * bounded.before
    assert max(bounded.moment.values()) < 1e-10


def test_anchors_fix_scales_and_leave_the_others_to_be_balanced() -> None:
    symmetry, params = relu_layer()
    anchor = torch.tensor([2.0, math.nan, 0.25, math.nan, 1.0]).double()
    result = balance(symmetry, params, anchors={"h": anchor})
    scales, fixed = result.params["b"] / params["b"], ~anchor.isnan()
    torch.testing.assert_close(scales[fixed], anchor[fixed])
    before, after = sides(params)
    best = torch.where(fixed, anchor, (after / before).pow(0.25))
    assert result.status is Status.OPTIMAL and result.held == {"h": "3 of 5 scales are anchored"}
    assert result.value == pytest.approx(float((best**2 * before + after / best**2).sum()))
    far = balance(symmetry, params, anchors={"h": 1e3})  # a rise is no end of the turns
    torch.testing.assert_close(far.params["b"], 1e3 * params["b"])
    assert far.value > far.before and far.status is Status.OPTIMAL


def test_anchors_and_bounds_hold_while_bases_move() -> None:
    """Between two scaled layers stands a linear interface; all three take turns."""
    spaces = {"h": Space("h", PositiveScaling(4)), "m": Space("m", GeneralLinear(3)),
              "k": Space("k", PositiveScaling(5))}  # fmt: skip
    symmetry = by_hand(spaces, {"a": "h, 6", "b": "m, h*", "c": "k, m*", "d": "2, k*"})
    params = normal(5, a=(4, 6), b=(3, 4), c=(5, 3), d=(2, 5))
    result = balance(symmetry, params, bounds={"h": (0.8, 1.2)}, anchors={"k": 0.5})
    assert result.status is Status.OPTIMAL and result.rounds > 1
    scales = result.params["a"][:, 0] / params["a"][:, 0]
    assert float(scales.min()) >= 0.8 - 1e-12 and float(scales.max()) <= 1.2 + 1e-12
    torch.testing.assert_close(result.params["d"], 2 * params["d"])

    def cost(y: np.ndarray) -> float:  # the nuclear norm is what the best basis leaves
        s = torch.from_numpy(y).exp()[:, None]
        joined = 0.5 * params["c"] @ (params["b"] / s.T)
        middle = 2 * torch.linalg.svdvals(joined).sum()
        return float((s * params["a"]).square().sum() + middle + (2 * params["d"]).square().sum())

    twin = minimize(cost, np.zeros(4), bounds=[(math.log(0.8), math.log(1.2))] * 4,
                    method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-9})  # fmt: skip
    assert result.value == pytest.approx(float(twin.fun), rel=1e-9)


def test_gains_count_as_they_are_used_between_bounds() -> None:
    """γ − 1 is stored as zero: what counts and what is bounded is γ."""
    symmetry = by_hand({"h": Space("h", PositiveScaling(3))}, {"gain": "h", "w": "2, h*"})
    symmetry = ParameterSymmetry(symmetry.spaces, symmetry.signature, offsets={"gain": 1.0})
    params = {"gain": torch.zeros(3).double(), "w": normal(6, w=(2, 3))["w"]}
    result = balance(symmetry, params, bounds={"h": (0.7, 1.05)})
    columns = params["w"].square().sum(0)
    expected = clamped(torch.ones(3), columns, 0.7, 1.05)
    assert result.value == pytest.approx(expected, rel=1e-13)
    assert result.before == pytest.approx(3 + float(columns.sum()))
    wanted = 1 + balance(symmetry, params, anchors={"h": 0.5}).params["gain"]
    torch.testing.assert_close(wanted, torch.full((3,), 0.5).double())


# -- a property --------------------------------------------------------------------------------


def net(seed: int) -> tuple[nn.Module, ParameterSymmetry, State, torch.Tensor]:
    torch.manual_seed(seed)
    widths = [3 + seed % 3, 4 + seed % 5, 5, 3 + seed % 2, 2]
    layers: list[nn.Module] = []
    for a, b in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(a, b, bias=bool((seed + b) % 2)), nn.ReLU()]
    model = nn.Sequential(*layers[:-1]).double()
    x = torch.randn(4, widths[0]).double()
    return model, find_symmetry(model, (x,), check=False), state_of(model), x


def dense(symmetry: ParameterSymmetry, params: State, limits: dict) -> float:
    """L-BFGS-B on the cost of what `act` makes of the parameters, by autograd."""
    names = [*limits]
    sizes = [limits[n][0].shape for n in names]

    def split(y: torch.Tensor) -> dict[str, torch.Tensor]:
        parts = torch.split(y, [s.numel() for s in sizes])
        return {n: p.reshape(s) for n, p, s in zip(names, parts, sizes, strict=True)}

    def cost(z: np.ndarray) -> tuple[float, np.ndarray]:
        y = torch.from_numpy(z.copy()).requires_grad_()
        moved = act(symmetry, symmetry.velocity(split(y)).exp(), params)
        total = torch.stack([p.square().sum() for p in moved.values()]).sum()
        (slope,) = torch.autograd.grad(total, y)
        return float(total), slope.numpy()

    low, high = (torch.cat([limits[n][k].log().reshape(-1) for n in names]).numpy() for k in (0, 1))
    found = minimize(cost, np.zeros(len(low)), jac=True, method="L-BFGS-B",
                     bounds=np.stack([low, high], 1), options={"ftol": 1e-15, "gtol": 1e-10,
                                                              "maxiter": 5000})  # fmt: skip
    return float(found.fun)


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 10**4))
def test_random_nets_have_one_value_between_bounds_that_move_along(seed: int) -> None:
    model, symmetry, params, x = net(seed)
    generator = torch.Generator().manual_seed(seed)
    free = balance(symmetry, params, shifts=False)
    spaces = [*free.moment]

    shapes = {n: (*(symmetry.spaces[base].size for base in symmetry.spaces[n].over),
                  symmetry.spaces[n].size) for n in spaces}  # fmt: skip

    def drawn_scales() -> dict[str, torch.Tensor]:
        unit = {n: torch.rand(s, generator=generator).double() for n, s in shapes.items()}
        return {n: (0.8 * u - 0.4).exp() for n, u in unit.items()}

    low = {n: s.clamp(max=1.0) for n, s in drawn_scales().items()}
    high = {n: s.clamp(min=1.0) for n, s in drawn_scales().items()}
    limits = {n: (low[n], high[n]) for n in spaces}
    first = balance(symmetry, params, shifts=False, bounds=limits)
    assert first.status is Status.OPTIMAL
    assert first.value == pytest.approx(dense(symmetry, params, limits), rel=1e-8)
    assert first.value > free.value
    with torch.no_grad():
        change = torch.func.functional_call(model, first.params, (x,)) - model(x)
        assert float(change.abs().max()) <= 1e-12 * float(model(x).abs().max())
    for _ in range(10):
        share = {n: torch.rand(low[n].shape, generator=generator).double() for n in spaces}
        scales = {n: low[n] ** (1 - share[n]) * high[n] ** share[n] for n in spaces}
        start = act(symmetry, symmetry.velocity({n: s.log() for n, s in scales.items()}).exp(),
                    params)  # fmt: skip
        moved = {n: ((a / scales[n]).clamp(max=1.0), (b / scales[n]).clamp(min=1.0))
                 for n, (a, b) in limits.items()}  # fmt: skip
        result = balance(symmetry, start, shifts=False, bounds=moved)
        assert result.status is Status.OPTIMAL
        assert result.value == pytest.approx(first.value, rel=1e-9)


@pytest.mark.parametrize("name", ["MLP, ReLU", "GPT-2", "Llama"])
def test_bounds_in_traced_networks_are_kept_and_certified(name: str) -> None:
    model, inputs = build(name)
    symmetry, params = find_symmetry(model.double(), inputs, check=False), state_of(model)
    free = balance(symmetry, params, shifts=False)
    result = balance(symmetry, params, shifts=False, bounds={"*": (0.95, 1.05)})
    assert result.status is free.status is Status.OPTIMAL
    assert free.value < result.value < result.before
    assert max(result.moment.values()) < 1e-9
    for space in result.moment:
        if (diagonal := result.element[space].diagonal) is not None:
            assert 0.95 - 1e-12 <= float(diagonal.abs().min())
            assert float(diagonal.abs().max()) <= 1.05 + 1e-12
    if isinstance(inputs, tuple):
        inputs = tuple(x.double() if x.is_floating_point() else x for x in inputs)
    before, after = outputs(model, params, inputs), outputs(model, result.params, inputs)
    assert float((before - after).abs().max() / before.abs().max()) < 1e-12


# -- no point, and bad input -------------------------------------------------------------------


def test_wishes_that_exclude_one_another_leave_the_parameters_as_they_are() -> None:
    symmetry, params = relu_layer()
    cases = [
        ({"bounds": {"h": (0.5, 2.0)}, "anchors": {"h": 3.0}}, "anchored outside their bounds"),
        ({"anchors": {"h": 3.0, "*": 2.0}}, "at two values"),
        ({"hold": "h", "anchors": {"h": 3.0}}, "held: it was asked for"),
    ]
    for wishes, why in cases:
        result = balance(symmetry, params, **wishes)
        assert result.status is Status.INFEASIBLE and why in result.held["h"]
        assert "5 of 5" in result.held["h"] and "h" in str(result)
        assert all(result.params[n] is params[n] for n in params) and not result.element.parts
        assert result.value == result.before == pytest.approx(float(sum(sides(params)).sum()))
    agreed = balance(symmetry, params, hold="h", anchors={"h": 1.0}, bounds={"h": (0.5, 1.0)})
    assert agreed.status is Status.OPTIMAL and agreed.held == {"h": "it was asked for"}
    meeting = balance(symmetry, params, bounds={"h": (0.5, 2.0)}, anchors={"h": 2.0, "*": 2.0})
    assert meeting.status is Status.OPTIMAL and meeting.held == {"h": "5 of 5 scales are anchored"}


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"bounds": {"h": (0.5, math.nan)}}, "nan came"),
        ({"bounds": {"h": (0.5, math.inf)}}, "inf came"),
        ({"bounds": {"h": (0.0, 2.0)}}, "0.0 came"),
        ({"bounds": {"h": (-1.0, 2.0)}}, "-1.0 came"),
        ({"bounds": {"h": ("a", "b")}}, "a number or a tensor"),
        ({"bounds": [("h", (0.5, 2.0))]}, "a list came"),
        ({"anchors": "h"}, "a str came"),
        ({"bounds": {"h": (1.5, 2.0)}}, "exclude 1"),
        ({"bounds": {"h": (0.1, 0.9)}}, "exclude 1"),
        ({"bounds": {"h": (2.0, 0.5)}}, "exclude 1"),
        ({"bounds": {"h": 2.0}}, "a pair"),
        ({"bounds": {"h": (torch.ones(4), 2.0)}}, r"shape \(4,\)"),
        ({"bounds": {"m": (0.5, 2.0)}}, "no scales"),
        ({"anchors": {"h": 0.0}}, "0.0 came"),
        ({"anchors": {"h": math.inf}}, "inf came"),
        ({"anchors": {"h": torch.ones(2, 5)}}, r"shape \(2, 5\)"),
        ({"anchors": {"m": 1.0}}, "no scales"),
        ({"tolerance": 0.0}, "tolerance=0.0"),
        ({"tolerance": math.nan}, "tolerance=nan"),
        ({"tolerance": -1.0}, "tolerance=-1.0"),
        ({"tolerance": math.inf}, "tolerance=inf"),
        ({"rounds": 0}, "rounds=0"),
    ],
)
def test_bad_wishes_are_refused(wishes: dict, message: str) -> None:
    spaces = {"h": Space("h", PositiveScaling(5)), "m": Space("m", GeneralLinear(2))}
    symmetry = by_hand(spaces, {"a": "h, 3", "c": "m, h*", "d": "4, m*"})
    params = normal(7, a=(5, 3), c=(2, 5), d=(4, 2))
    with pytest.raises(ValueError, match=message) as caught:
        balance(symmetry, params, **wishes)
    assert "xpected" in str(caught.value) and str(caught.value).startswith("balance(")


def test_unknown_names_are_refused() -> None:
    symmetry, params = relu_layer()
    for wishes in ({"bounds": {"nowhere": (0.5, 2.0)}}, {"anchors": {"nowhere": 1.0}}):
        with pytest.raises(UnknownName, match="nowhere"):
            balance(symmetry, params, **wishes)


def test_approximate_scales_that_are_named_need_bounds() -> None:
    space = Space("s", PositiveScaling(1), exact=False, why="the ε of a norm")
    symmetry = by_hand({"s": space}, {"w": "s, 3"})
    params = normal(8, w=(1, 3))
    assert "only approximately" in balance(symmetry, params).held["s"]
    with pytest.raises(ValueError, match=r"bounds=\{'s': \(0.9, 1.1\)\}"):
        balance(symmetry, params, include="s")
    result = balance(symmetry, params, include="s", bounds={"s": (0.9, 1.1)})
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(0.81 * result.before)


@pytest.mark.parametrize("far", [1e120, 1e-120, 1e60])
def test_units_rescaled_beyond_the_squares_of_double_precision(far: float) -> None:
    symmetry, params = relu_layer()
    scales = torch.tensor([1.0, far, 1 / far, far, 1.0], dtype=torch.float64)
    start = act(symmetry, symmetry.element(h=scales), params)
    result = balance(symmetry, start)
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(balance(symmetry, params).value, rel=1e-9)
    too_far = act(
        symmetry, symmetry.element(h=torch.full((5,), far**1.4, dtype=torch.float64)), params
    )
    if abs(math.log10(far)) > 100:
        with pytest.raises(ValueError, match="neither overflow nor vanish"):
            balance(symmetry, too_far)

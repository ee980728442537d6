"""Equal up to storage precision: a proved bound within what rounding the stored weights can do."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from forgeries import stored
from networks import gaussian, twin

from paramsym import relu
from paramsym.relu import precision
from paramsym.relu.formats import FORMATS, Rounding, format_of
from paramsym.relu.network import FloatLayer

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def changed(net, layer, edit):
    parts = [(w.copy(), b.copy()) for w, b in net.floats]
    edit(*parts[layer])
    return relu.Network(floats=[FloatLayer(w, b) for w, b in parts], storage=net.storage)


def pair(widths, dtype, seed=0):
    rng = np.random.default_rng(seed)
    a = stored(gaussian(widths, rng), dtype)
    return a, stored(twin(a, rng), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("widths", [(4, 8, 2), (3, 6, 5, 2), (4, 8, 8, 8, 1)])
@pytest.mark.parametrize("domain", [None, (-1, 1), {"ball": 3}])
def test_stored_twins_are_equal_up_to_their_storage(widths, dtype, domain):
    a, b = pair(widths, dtype)
    verdict = relu.decide(a, b, mode="float", domain=domain)
    assert verdict.kind == "EQUAL_TO_PRECISION" and verdict and relu.verify(verdict, a, b)
    bounds = verdict.bounds
    assert bounds.precision is not None and bounds.radius is not None
    assert 0 < bounds.lower <= bounds.upper <= bounds.precision
    assert relu.decide(a, b).kind == "DIFFERENT"  # as real functions they differ
    x = np.random.default_rng(1).normal(size=(2000, widths[0]))
    x *= np.minimum(1, bounds.radius / np.linalg.norm(x, axis=1))[:, None]
    x = np.clip(x, -1, 1) if domain == (-1, 1) else x
    assert np.abs(a.batch(x) - b.batch(x)).max() <= bounds.upper


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("domain", [None, (-1, 1)])
def test_ten_times_the_budget_is_a_difference(dtype, domain):
    a, b = pair((4, 8, 8, 1), dtype)
    budget = relu.decide(a, b, mode="float", domain=domain).bounds.precision
    assert budget is not None
    far = 10 * budget

    def edit(weight, bias):
        bias[0] += far

    other = relu.decide(a, changed(b, 2, edit), mode="float", domain=domain)
    assert other.kind == "DIFFERENT" and other.bounds.lower >= 9 * budget
    assert other.bounds.upper >= far * 0.9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_pruned_unit_is_a_difference(dtype):
    a, b = pair((4, 8, 6, 1), dtype)

    def prune(weight, bias):
        weight[:, 3] = 0.0

    other = changed(b, 1, prune)
    verdict = relu.decide(a, other, mode="float", domain=(-1, 1))
    assert verdict.kind == "DIFFERENT" and relu.verify(verdict, a, other)
    # How far apart: the largest difference seen and a proved bound, both on the box.
    assert 0 < verdict.bounds.lower <= verdict.bounds.upper < np.inf
    assert "<= sup |f - g| <=" in verdict.reason and "box" in verdict.reason


@pytest.mark.parametrize("seed", range(12))
def test_no_pair_beyond_its_bound_is_called_equal(seed):
    """Edits of every size: whatever the verdict, its bounds hold, and loud ones are seen."""
    rng = np.random.default_rng(seed)
    dtype = DTYPES[seed % 3]
    a, b = pair((3, 7, 5, 1), dtype, seed)
    size = 10.0 ** rng.uniform(-9, 0)
    layer = seed % 3

    def edit(weight, bias):
        weight[0, 0] += size * np.abs(weight).max()

    c = changed(b, layer, edit)
    verdict = relu.decide(a, c, mode="float", domain=(-2, 2), budget=5)
    x = rng.uniform(-2, 2, (20_000, 3))
    gap = np.abs(a.batch(x) - c.batch(x)).max()
    assert relu.verify(verdict, a, c) and gap <= verdict.bounds.upper * (1 + 1e-9)
    if verdict.kind == "EQUAL_TO_PRECISION":
        assert verdict.bounds.precision is not None and gap <= verdict.bounds.precision
    if gap > precision.allowed(a, c, verdict.bounds.radius or 0.0):
        assert verdict.kind == "DIFFERENT"


def test_a_bfloat16_copy_of_a_float32_file():
    a = stored(gaussian((4, 8, 8, 2), np.random.default_rng(0)), torch.float32)
    verdict = relu.decide(a, stored(a, torch.bfloat16), mode="float", domain=(-1, 1))
    assert verdict.kind == "EQUAL_TO_PRECISION" and "bfloat16 and float32" in verdict.reason
    fine = relu.decide(a, stored(a, torch.float32), mode="float")
    assert fine.kind == "EQUAL" and fine.bounds.upper < 1e-10


def test_float64_has_no_such_verdict():
    rng = np.random.default_rng(0)
    a = gaussian((4, 8, 2), rng)
    b = relu.Network(floats=stored(a, torch.float32).floats)  # the same numbers, kept as float64
    assert relu.decide(a, twin(a, rng), mode="float").kind == "EQUAL"
    assert relu.decide(a, b, mode="float").kind == "DIFFERENT"
    assert relu.decide(a, stored(a, torch.float32), mode="float").kind == "EQUAL_TO_PRECISION"


def test_tolerance_replaces_the_budget():
    a, b = pair((4, 8, 2), torch.float32)
    bounds = relu.decide(a, b, mode="float").bounds
    assert relu.decide(a, b, tolerance=2 * bounds.upper).kind == "EQUAL_TO_PRECISION"
    assert relu.decide(a, b, tolerance=bounds.lower / 2).kind == "DIFFERENT"
    assert relu.decide(a, b, tolerance=bounds.lower * 1.01, budget=2).kind in (
        "UNDECIDED", "DIFFERENT",
    )  # fmt: skip
    wrongs: tuple[Any, ...] = (-1.0, float("nan"), float("inf"), "1e-6", True)
    for wrong in wrongs:
        with pytest.raises(relu.ReLUError, match="tolerance"):
            relu.decide(a, b, tolerance=wrong)
    with pytest.raises(relu.ReLUError, match="exact mode"):
        relu.decide(a, b, mode="exact", tolerance=1e-3)


# ------------------------------------------------------------------ the two bounds


def corner(net, signs):
    """The network with every weight moved by its whole rounding, up or down."""
    parts = []
    for (w, b), (u, v) in zip(net.floats, precision.roundings(net), strict=True):
        n = w.size
        s, signs = signs[: n + len(b)], signs[n + len(b) :]
        parts.append((w + u * s[:n].reshape(w.shape), b + v * s[n:]))
    return relu.as_network(parts)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(6))
def test_bounds_on_rounding_hold_and_the_pointwise_one_is_attained(dtype, seed):
    rng = np.random.default_rng(seed)
    net = stored(gaussian((2, 3, 3, 1), rng), dtype)
    count = sum(w.size + b.size for w, b in net.floats)
    x = rng.normal(size=2)
    bound = precision.rounding_at(net, x)[0]
    offset, slope = precision.budget(net)[0]
    value = net.batch(x[None, :])[0, 0]
    worst = 0.0
    for _ in range(400):
        other = corner(net, rng.choice([-1.0, 1.0], count))
        worst = max(worst, abs(other.batch(x[None, :])[0, 0] - value))
    # The best signs, one weight at a time: to first order this is what the bound sums up.
    signs = np.zeros(count)
    for k in range(count):
        step = np.zeros(count)
        step[k] = 1.0
        signs[k] = np.sign(corner(net, step).batch(x[None, :])[0, 0] - value)
    best = abs(corner(net, signs).batch(x[None, :])[0, 0] - value)
    assert max(worst, best) <= bound <= offset + slope * np.linalg.norm(x) + 1e-300
    if dtype is not torch.bfloat16:  # there the signs of units flip: second order
        assert best >= 0.8 * bound


def test_formats_contain_half_a_unit_in_the_last_place():
    for dtype in DTYPES:
        held = FORMATS[str(dtype).removeprefix("torch.")]
        for value in (1.0, 1.9, 0.37, 3e-5, 1e-7):
            near = torch.tensor(value).to(dtype)
            assert abs(float(near) - value) <= held.unit * abs(float(near)) + held.tiny
            assert abs(float(near) - value) > 0 or value == 1.0  # else nothing was rounded
        assert format_of(near) is held
    assert format_of(np.zeros(1, dtype=np.float16)).name == "float16"
    assert format_of(torch.zeros(1, dtype=torch.int64)).name == "rational"


def test_two_linear_layers_in_a_row_add_their_roundings():
    torch.manual_seed(0)
    first, second = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)
    net = relu.as_network(torch.nn.Sequential(first, second))
    (held,) = net.storage
    assert isinstance(held, Rounding) and precision.coarse(net)
    w1, w2 = (m.weight.detach().double().numpy() for m in (first, second))
    u = 2.0**-24
    for s1, s2 in itertools.product((1 - u, 1 + u), repeat=2):
        assert (np.abs((w2 * s2) @ (w1 * s1) - w2 @ w1) <= held.weight).all()
    assert (held.weight <= 4 * u * (np.abs(w2) @ np.abs(w1))).all()

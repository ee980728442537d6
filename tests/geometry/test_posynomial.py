"""Sums of exponentials against autograd, and their certified minima against a general solver."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from paramsym.geometry import newton
from paramsym.geometry.newton import (
    certified,
    further,
    least_point,
    minimise,
    newton_step,
    steepness,
    swept,
)
from paramsym.geometry.posynomial import Posynomial
from paramsym.geometry.terms import Factor, Term, is_apart

SHAPES = {"a": (3,), "b": (2, 4), "c": (1,)}


def drawn(seed: int, dtype: torch.dtype = torch.float64, others: bool = True) -> Posynomial:
    """Biases on both sides of everything, maps between families and within one, and odd powers;
    without `others` vectors and matrices alone, from an origin, which NumPy computes."""
    generator = torch.Generator().manual_seed(seed)

    def mass(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64).to(dtype)

    terms = [
        Term(mass(3), (Factor("a", (0,), 2.0),)),
        Term(mass(3), (Factor("a", (0,), -1.0),)),
        Term(mass(3), (Factor("a", (0,), -1.0),)),
        Term(mass(2, 4), (Factor("b", (0, 1), 2.0),)),
        Term(mass(3, 2, 4), (Factor("a", (0,), 2.0), Factor("b", (1, 2), -2.0))),
        Term(mass(3, 3), (Factor("a", (0,), 2.0), Factor("a", (1,), -2.0))),
        Term(mass(2, 4, 4), (Factor("b", (0, 1), 2.0), Factor("b", (0, 2), -2.0))),
        Term(mass(3, 1), (Factor("a", (0,), -1.0), Factor("c", (1,), 1.5))),
        Term(mass(1), (Factor("c", (0,), -0.5),)),
        Term(mass(4, 3, 2),
             (Factor("a", (1,), 1.0), Factor("b", (2, 0), 1.0), Factor("a", (1,), -2.0))),
    ]  # fmt: skip
    if others:
        return Posynomial(SHAPES, terms, constant=0.25)
    origin = torch.randn(12, generator=generator, dtype=torch.float64)
    return Posynomial(SHAPES, [t for t in terms if is_apart(t)], 0.25, origin)


def slow(f: Posynomial, y: torch.Tensor) -> torch.Tensor:
    """The definition, entry by entry of full arrays; its masses have lost their cancelled part."""
    parts, total = f.split(f.exponents(y)), torch.tensor(f.constant, dtype=torch.float64)
    for term in f.terms:
        exponent = torch.zeros(term.mass.shape, dtype=torch.float64)
        for factor in term.factors:
            shape = [n if k in factor.axes else 1 for k, n in enumerate(term.mass.shape)]
            order = sorted(range(len(factor.axes)), key=factor.axes.__getitem__)
            exponent = exponent + factor.power * parts[factor.family].permute(order).reshape(shape)
        total = total + (term.mass.double() * exponent.exp()).sum()
    return total


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_value_slope_and_curvature_are_those_of_autograd(seed: int, others: bool) -> None:
    f = drawn(seed, others=others)
    generator = torch.Generator().manual_seed(seed + 1)
    y, v = torch.randn(2, f.size, generator=generator, dtype=torch.float64)
    point = f.at(y)
    assert point.value == pytest.approx(float(slow(f, y)), rel=1e-13)
    slope = torch.autograd.functional.jacobian(lambda z: slow(f, z), y)
    along = torch.autograd.functional.hvp(lambda z: slow(f, z), y, v)[1]
    torch.testing.assert_close(point.gradient, slope, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(point.hessian(v), along, rtol=1e-11, atol=1e-11)


def test_a_map_from_a_family_to_itself_costs_the_same_on_its_diagonal_everywhere() -> None:
    mass = torch.tensor([[5.0, 1.0], [2.0, 7.0]], dtype=torch.float64)
    term = Term(mass, (Factor("a", (0,), 2.0), Factor("a", (1,), -2.0)))
    f = Posynomial({"a": (2,)}, [term])
    assert f.constant == 12.0 and float(f.terms[0].mass.trace()) == 0.0
    assert float(mass.trace()) == 12.0  # what was given is as it was
    y = torch.tensor([0.3, -0.4], dtype=torch.float64)
    expected = 12.0 + np.exp(1.4) + 2.0 * np.exp(-1.4)
    assert f.at(y).value == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("others", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_the_minimum_is_that_of_a_general_solver(seed: int, others: bool) -> None:
    f = drawn(seed, others=others)
    free = torch.ones(f.size, dtype=torch.float64)
    y = minimise(f, free, 1e-12)
    found = minimize(
        lambda z: float(slow(f, torch.from_numpy(z))), np.zeros(f.size), method="BFGS",
        jac=lambda z: f.at(torch.from_numpy(z)).gradient.numpy(), options={"gtol": 1e-11},
    )  # fmt: skip
    assert f.at(y).value == pytest.approx(float(found.fun), rel=1e-10)
    assert steepness(f.at(y), free) < 1e-9
    assert f.at(y + 1e-3).value > f.at(y).value  # a point beside it is higher


@pytest.mark.parametrize("seed", range(6))
def test_the_gap_is_never_less_than_what_is_left(seed: int) -> None:
    f = drawn(seed)
    free = torch.ones(f.size, dtype=torch.float64)
    best = minimise(f, free, 1e-13)
    generator = torch.Generator().manual_seed(seed)
    for size in (1.0, 0.3, 1e-1, 1e-2, 1e-4):
        move = size * torch.randn(f.size, generator=generator, dtype=torch.float64)
        point = f.at(best + move)
        left, step = point.value - f.at(best).value, newton_step(point, free, accuracy=1e-8)
        assert left <= step.gap * (1 + 1e-9)
        if size <= 1e-2:  # and not much more, where it is small
            assert step.gap <= 4 * left


@pytest.mark.parametrize("seed", range(4))
def test_few_numbers_are_computed_in_numpy_as_many_are_in_torch(seed: int) -> None:
    f, twin = drawn(seed, others=False), drawn(seed, others=False)
    assert f.small is not None and drawn(seed).small is None
    vars(twin)["small"] = None  # the cached property: the same numbers by the path of large ones
    free = torch.ones(f.size, dtype=torch.float64)
    free[[1, 5]] = 0.0
    generator = torch.Generator().manual_seed(seed)
    y, v = torch.randn(2, f.size, generator=generator, dtype=torch.float64)
    one, other = f.at(y), twin.at(y)
    assert one.value == pytest.approx(other.value, rel=1e-14)
    for name in ("up", "down", "gradient", "curvature"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=0, atol=1e-12)
    torch.testing.assert_close(one.hessian(v), other.hessian(v), rtol=1e-12, atol=1e-12)
    own = f.small.at(y.numpy())
    np.testing.assert_allclose(own.hessian(v.numpy()), other.hessian(v), rtol=1e-12, atol=1e-12)
    assert f.small.longest(v.numpy()) >= f.longest(v)  # it is a bound
    torch.testing.assert_close(swept(f, free), swept(twin, free), rtol=1e-10, atol=1e-10)
    found, known = least_point(f, free, 1e-12), least_point(twin, free, 1e-12)
    assert found.point.value == pytest.approx(known.point.value, rel=1e-13)
    assert found.gap <= 1e-12 * found.point.value
    assert certified(found.point, free, 1e-12).gap <= 1e-11 * found.point.value
    start = least_point(f, free, 1e-12, sweep=False)
    assert start.point.value == pytest.approx(known.point.value, rel=1e-13)


def test_a_mass_of_many_numbers_or_of_weights_is_left_to_torch() -> None:
    many, few = torch.ones(2, 1 << 17, dtype=torch.float64), torch.ones(2, 3)
    factors = Factor("a", (0,), 2.0), Factor("b", (1,), -2.0)
    for mass, power, small in ((many, None, True), (few, 2.0, False), (few, None, False)):
        f = Posynomial({"a": (2,), "b": (mass.shape[1],)}, [Term(mass, factors, power)])
        assert (f.small is not None) == small
    wider = torch.ones(2, (1 << 17) + 1, dtype=torch.float64)
    shapes = {"a": (2,), "b": (wider.shape[1],)}
    assert Posynomial(shapes, [Term(wider, factors)]).small is None


def test_what_is_not_free_stays() -> None:
    f = drawn(1)
    free = torch.ones(f.size, dtype=torch.float64)
    free[[0, 5]] = 0.0
    y = minimise(f, free, 1e-12)
    assert not y[[0, 5]].any() and y.any()
    assert f.at(y).value > f.at(minimise(f, torch.ones_like(free), 1e-12)).value


def test_masses_in_single_precision_are_summed_in_double() -> None:
    wide, narrow = drawn(3), drawn(3, torch.float32)
    y = 0.1 * torch.arange(wide.size, dtype=torch.float64)
    assert narrow.at(y).value == pytest.approx(wide.at(y).value, rel=1e-6)
    rounded = Posynomial(SHAPES, [Term(t.mass.double(), t.factors) for t in narrow.terms],
                         narrow.constant)  # fmt: skip
    torch.testing.assert_close(narrow.at(y).gradient, rounded.at(y).gradient, rtol=1e-12, atol=0)


def chain(size: int) -> Posynomial:
    """Two layers of units, each with weights on either side."""
    generator = torch.Generator().manual_seed(0)
    middle = torch.rand(size, size, generator=generator, dtype=torch.float64)
    sides = torch.rand(2, size, generator=generator, dtype=torch.float64) + size / 2
    a, b = (lambda q: Factor("a", (0,), q)), (lambda q: Factor("b", (0,), q))
    return Posynomial(
        {"a": (size,), "b": (size,)},
        [
            Term(9 * sides[0], (a(2.0),)), Term(sides[1], (b(-2.0),)),
            Term(middle, (b(2.0), Factor("a", (1,), -2.0))),
        ],
    )  # fmt: skip


def test_sweeps_foresee_the_moves_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    f = chain(40)
    free = torch.ones(f.size, dtype=torch.float64)
    foreseen = steepness(f.at(swept(f, free)), free)
    monkeypatch.setattr(newton, "_still_to_come", lambda before, last: np.zeros_like(last))
    assert foreseen < 0.1 * steepness(f.at(swept(f, free)), free)


def test_steps_that_drown_in_rounding_are_taken_where_slopes_fall() -> None:
    f = chain(40)
    free = torch.ones(f.size, dtype=torch.float64)
    best = f.at(minimise(f, free, 1e-12))
    away = 1e-8 * torch.randn(f.size, generator=torch.Generator().manual_seed(1)).double()
    near = f.at(best.y + away)
    assert abs(near.value - best.value) < 1e-12 * best.value

    def steepest(point) -> float:
        return steepness(point, free)

    found = further(near, newton_step(near, free, 1e-6).direction, steepest)
    assert found is not None and steepest(found) < 1e-3 * steepest(near)
    assert further(near, away, steepest) is None  # uphill, where no value tells

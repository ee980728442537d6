"""The closed cost along scales against moved weights, and its least value against `balance`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor, nn

from paramsym import Balanced, balance, find_symmetry
from paramsym.geometry.costs import family_shapes
from paramsym.waring import Polynomial, RectifiedMonomial, network
from paramsym.waring.regulariser import Regulariser, regulariser
from tests.waring.regularised import (
    SIZES,
    built,
    norm_of,
    of_size,
    permuted,
    rescaled,
    scales_between,
    state_of,
)

# Terms of even degree alone are among those drawn.
pytestmark = pytest.mark.filterwarnings("ignore:Polynomial")
EXPONENTS = {"l2": 2.0, "l1": 1.0}
OBJECTIVES = list(EXPONENTS)
# `python benchmarks/waring.py --solvers`: CVXPY 1.9.3 with Clarabel 0.11.1, tolerances 1e-12
BY_CVXPY = {
    ("5-4-3", "l2"): 37.0230164912542,
    ("5-4-3", "l1"): 43.2404358567825,
    ("8-11-12-4", "l2"): 73.9470721501468,
    ("8-11-12-4", "l1"): 149.207004893718,
    ("16-32-32-32-8", "l2"): 376.575746205533,
    ("16-32-32-32-8", "l1"): 970.127858354981,
}


def drawn(seed: int, repeated: bool = True) -> tuple[nn.Sequential, torch.Generator]:
    """One to three layers, degrees 1 to 5 that differ by output, powers that are no integers; no
    degree twice in one output if not `repeated`."""
    generator = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    widths = [number(1, 4) for _ in range(number(2, 4))]

    def degrees_of_one() -> list[int]:
        if repeated:
            return [number(1, 5) for _ in range(number(1, 3))]
        return (1 + torch.randperm(5, generator=generator)[: number(1, 3)]).tolist()

    degrees = [[degrees_of_one() for _ in range(width)] for width in widths[1:]]
    powers = [(0.7, 1.0, 1.5, 2.0)[number(0, 3)] for _ in widths[2:]]
    return built(widths[0], degrees, powers), generator


def logs_like(f: Regulariser, generator: torch.Generator, size: float = 1.0) -> list[Tensor]:
    return [size * torch.randn(w, generator=generator, dtype=torch.float64) for w in f.widths]


def least(f: Regulariser, bounds: Sequence[Tensor] | None = None) -> float:
    """The least value of the closed form by a general solver; |log λ| ≤ bounds."""

    if not f.widths:
        return float(f([]))

    def split(y: np.ndarray) -> list[Tensor]:
        return [*torch.from_numpy(y).split(f.widths)]

    box = None if bounds is None else [(-float(b), float(b)) for b in torch.cat([*bounds])]
    found = minimize(
        lambda y: float(f.along_logs(split(y))),
        np.zeros(sum(f.widths)),
        jac=lambda y: torch.cat(f.gradient(split(y))).numpy(),
        method="BFGS" if box is None else "L-BFGS-B",
        bounds=box,
        options={"gtol": 1e-10} if box is None else {"gtol": 1e-10, "ftol": 0.0},
    )
    return float(found.fun)


def balanced(model: nn.Sequential, objective: str, **options: object) -> Balanced:
    layer = model[0]
    assert isinstance(layer, Polynomial)
    x = torch.ones(2, layer.in_features, dtype=torch.float64)
    symmetry = find_symmetry(model, (x,))
    return balance(symmetry, state_of(model), objective, **options)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("objective", OBJECTIVES)
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6))
def test_it_is_the_norm_of_the_moved_weights(objective: str, seed: int) -> None:
    model, generator = drawn(seed)
    f = regulariser(model, objective)
    scales = [y.exp() for y in logs_like(f, generator, 0.5)]
    moved = rescaled(model, scales)
    assert float(f(scales)) == pytest.approx(norm_of(moved, EXPONENTS[objective]), rel=1e-12)
    ones = [torch.ones_like(scale) for scale in scales]
    assert float(f(ones)) == pytest.approx(norm_of(model, EXPONENTS[objective]), rel=1e-13)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6))
def test_the_moved_weights_compute_the_same_function(seed: int) -> None:
    model, generator = drawn(seed)
    layer = model[0]
    assert isinstance(layer, Polynomial)
    x = torch.randn(8, layer.in_features, generator=generator, dtype=torch.float64)
    scales = [y.exp() for y in logs_like(regulariser(model), generator, 0.5)]
    value = model(x)
    assert (rescaled(model, scales)(x) - value).abs().max() <= 1e-11 * value.abs().max()


def test_scales_that_are_undone_without_the_power_change_the_function() -> None:
    model = of_size("5-4-3")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 5, generator=generator, dtype=torch.float64)
    scales = [torch.tensor([2.0, 0.5, 3.0, 1.0], dtype=torch.float64)]
    value = model(x)
    assert (rescaled(model, scales, undone=[1.0])(x) - value).abs().max() > 1e-3 * value.abs().max()
    assert (rescaled(model, scales)(x) - value).abs().max() < 1e-12 * value.abs().max()


@pytest.mark.parametrize("objective", OBJECTIVES)
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6))
def test_the_gradient_is_that_of_autograd(objective: str, seed: int) -> None:
    model, generator = drawn(seed)
    f = regulariser(model, objective)
    logs = [y.requires_grad_() for y in logs_like(f, generator)]
    if not logs:
        assert f.gradient([]) == []
        return
    slopes = torch.autograd.grad(f.along_logs(logs), logs)
    for found, slope in zip(f.gradient([y.detach() for y in logs]), slopes, strict=True):
        torch.testing.assert_close(found, slope, rtol=1e-11, atol=1e-11 * float(slope.abs().max()))


@pytest.mark.parametrize("objective", OBJECTIVES)
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.05, 0.95))
def test_it_is_convex_along_logarithms(objective: str, seed: int, part: float) -> None:
    model, generator = drawn(seed)
    f = regulariser(model, objective)
    one, other = logs_like(f, generator, 2.0), logs_like(f, generator, 2.0)
    between = [(1 - part) * a + part * b for a, b in zip(one, other, strict=True)]
    chord = (1 - part) * float(f.along_logs(one)) + part * float(f.along_logs(other))
    assert float(f.along_logs(between)) <= chord * (1 + 1e-13)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_it_is_not_convex_along_the_scales_themselves(objective: str) -> None:
    """λ^{2/d} and λ^{1/d} are concave for larger d: taking logarithms is no matter of taste."""
    f = regulariser(built(2, [[[5]], [[1]]], [0.7]), objective)
    far, further = [torch.tensor([100.0])], [torch.tensor([10000.0])]
    middle = [torch.tensor([5050.0])]
    assert float(f(middle)) > 1.02 * (float(f(far)) + float(f(further))) / 2


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("size", SIZES)
def test_balance_reaches_its_least_value(size: str, objective: str) -> None:
    model = of_size(size)
    f = regulariser(model, objective)
    result = balanced(model, objective)
    start = f([torch.ones(width) for width in f.widths])
    assert result.before == pytest.approx(float(start), rel=1e-13)
    assert result.status == "OPTIMAL" and 0 <= result.gap <= 1e-8 * result.value
    assert result.value == pytest.approx(least(f), rel=1e-9)
    assert result.value < 0.985 * result.before  # the networks were far from balanced
    scales = scales_between(model, result.params)
    assert float(f(scales)) == pytest.approx(result.value, rel=1e-12)
    steepest = max(float(slope.abs().max()) for slope in f.gradient([s.log() for s in scales]))
    assert steepest < 1e-9 * result.value
    beside = [scale * (1 + 1e-3 * (-1) ** torch.arange(len(scale))) for scale in scales]
    assert float(f(beside)) > result.value * (1 + 1e-9)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("size", SIZES)
def test_the_least_value_is_that_of_cvxpy(size: str, objective: str) -> None:
    known = BY_CVXPY[size, objective]
    assert balanced(of_size(size), objective).value == pytest.approx(known, rel=1e-8)
    other = BY_CVXPY[size, OBJECTIVES[1 - OBJECTIVES.index(objective)]]
    assert known != pytest.approx(other, rel=1e-2)


ORDERS = [[10, 3, 0, 7, 5, 1, 9, 2, 8, 6, 4], [5, 11, 2, 0, 7, 9, 1, 3, 10, 8, 6, 4]]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_least_value_does_not_depend_on_permutations(objective: str) -> None:
    """Nor with bounds that are the same for every coordinate; degrees travel with their unit."""
    f = regulariser(of_size("8-11-12-4"), objective)
    g = regulariser(permuted(of_size("8-11-12-4"), ORDERS), objective)
    generator = torch.Generator().manual_seed(2)
    logs = logs_like(f, generator)
    moved = [y[torch.tensor(order)] for y, order in zip(logs, ORDERS, strict=True)]
    assert float(f.along_logs(logs)) == pytest.approx(float(g.along_logs(moved)), rel=1e-13)
    assert float(f.along_logs(logs)) != pytest.approx(float(g.along_logs(logs)), rel=1e-2)
    free = least(f)
    assert least(g) == pytest.approx(free, rel=1e-10)
    same = [torch.full((width,), 0.1) for width in f.widths]
    bounded = least(f, same)
    assert bounded > 1.001 * free  # the bounds bind
    assert least(g, same) == pytest.approx(bounded, rel=1e-9)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_with_bounds_that_differ_by_coordinate_it_does(objective: str) -> None:
    f = regulariser(of_size("8-11-12-4"), objective)
    g = regulariser(permuted(of_size("8-11-12-4"), ORDERS), objective)
    bounds = [torch.arange(width, dtype=torch.float64) / 20 for width in f.widths]
    known = least(f, bounds)
    assert least(g, bounds) != pytest.approx(known, rel=1e-3)
    moved = [b[torch.tensor(order)] for b, order in zip(bounds, ORDERS, strict=True)]
    assert least(g, moved) == pytest.approx(known, rel=1e-9)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_balance_under_bounds_knows_no_order_of_units(objective: str) -> None:
    model = of_size("5-4-3")
    order = [[2, 0, 3, 1]]
    same = {"*": (0.95, 1.05)}
    value = balanced(model, objective, bounds=same).value
    assert value > 1.0001 * balanced(model, objective).value
    assert balanced(permuted(model, order), objective, bounds=same).value == pytest.approx(
        value, rel=1e-9
    )
    high = torch.tensor([1.0, 1.05, 1.1, 3.0], dtype=torch.float64)
    turned = permuted(model, order)
    unequal = balanced(model, objective, bounds=_box(model, high)).value
    assert balanced(turned, objective, bounds=_box(turned, high)).value != pytest.approx(
        unequal, rel=1e-5
    )
    along = _box(turned, high[torch.tensor(order[0])])
    assert balanced(turned, objective, bounds=along).value == pytest.approx(unequal, rel=1e-9)
    # the scales of the space are those that the next layer undoes, λ^p
    closed = least(regulariser(model, objective), [high.log() / 0.7])
    assert closed == pytest.approx(unequal, rel=1e-9)


def _box(model: nn.Sequential, high: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """1 / high ≤ scale ≤ high for the one space of scales."""
    symmetry = find_symmetry(model, (torch.ones(2, 5, dtype=torch.float64),))
    scaled = [n for n, s in symmetry.spaces.items() if getattr(s.group, "scales", False)]
    ((space, shape),) = family_shapes(symmetry, scaled).items()
    return {space: (1 / high.reshape(shape), high.reshape(shape))}


@pytest.mark.parametrize("power", [0.7, 1.0, 1.5, 3.2])
@pytest.mark.parametrize("degrees", [(1,), (1, 2, 3), (5, 1), (3, 3)], ids=str)
def test_powers_and_degrees(degrees: tuple[int, ...], power: float) -> None:
    model = built(3, [[[*degrees]] * 3, [[1, 2]] * 2], [power])
    for objective in OBJECTIVES:
        result = balanced(model, objective, shifts=False)
        assert result.value == pytest.approx(least(regulariser(model, objective)), rel=1e-9)
        assert result.gap <= 1e-8 * result.value


@pytest.mark.parametrize("objective", OBJECTIVES)
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6))
def test_balance_reaches_it_whatever_the_degrees(objective: str, seed: int) -> None:
    """Units that are alone with their degrees among them, and such that stand apart."""
    model, generator = drawn(seed, repeated=False)
    result = balanced(model, objective, shifts=False)
    assert result.value == pytest.approx(least(regulariser(model, objective)), rel=1e-9)
    assert 0 <= result.gap <= 1e-8 * result.value
    layer = model[0]
    assert isinstance(layer, Polynomial)
    x = torch.randn(8, layer.in_features, generator=generator, dtype=torch.float64)
    change = (torch.func.functional_call(model, result.params, (x,)) - model(x)).abs().max()
    assert change <= 1e-11 * model(x).abs().max()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_unit_takes_part(objective: str) -> None:
    """Units in turns, and one alone: with any of their scales held the optimum is another."""
    model = built(3, [[[1, 2], [3], [1, 2], [3], [2, 3]], [[1]] * 2], [1.5])
    f = regulariser(model, objective)
    value = balanced(model, objective).value
    assert value == pytest.approx(least(f), rel=1e-9)
    for unit in range(5):
        box = torch.full((5,), 50.0, dtype=torch.float64)
        box[unit] = 0.0
        assert least(f, [box]) > value * (1 + 1e-6)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_rotations_among_repeated_squares_gain_nothing_under_l2_and_are_held_under_l1(
    objective: str,
) -> None:
    model = of_size("8-11-12-4")
    result = balanced(model, objective)
    turned = [n for n, s in result.element.symmetry.spaces.items() if "Orthogonal" in str(s.group)]
    assert turned and all(space in result.held for space in turned)
    assert result.value == pytest.approx(least(regulariser(model, objective)), rel=1e-9)


def test_without_biases_and_without_hidden_interfaces() -> None:
    generator = torch.Generator().manual_seed(0)
    first = Polynomial(3, 3, (1, 3), bias=False, generator=generator, dtype=torch.float64)
    last = Polynomial(3, 2, (1, 2), generator=generator, dtype=torch.float64)
    model = nn.Sequential(first, RectifiedMonomial(1.5), last)
    for objective in OBJECTIVES:
        found = least(regulariser(model, objective))
        assert balanced(model, objective).value == pytest.approx(found, rel=1e-9)
        alone = regulariser(nn.Sequential(last), objective)
        assert alone.widths == () and alone.gradient([]) == []
        assert float(alone([])) == pytest.approx(norm_of(last, EXPONENTS[objective]), rel=1e-14)


def test_weights_in_single_precision_are_summed_in_double() -> None:
    model = of_size("5-4-3")
    wide, narrow = regulariser(model), regulariser(of_size("5-4-3").float())
    logs = [torch.tensor([0.3, -0.2, 0.1, 0.0])]
    assert float(narrow.along_logs(logs)) == pytest.approx(float(wide.along_logs(logs)), rel=1e-6)
    assert narrow.along_logs(logs).dtype == torch.float64


def test_later_changes_of_the_weights_do_not_reach_it() -> None:
    model = of_size("5-4-3")
    f = regulariser(model)
    before = float(f([torch.ones(4)]))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2)
    assert float(f([torch.ones(4)])) == before
    assert float(regulariser(model)([torch.ones(4)])) == pytest.approx(4 * before)


def _refused(call: object, *parts: str) -> None:
    with pytest.raises(ValueError) as error:
        call()  # pyright: ignore[reportCallIssue]
    for part in parts:
        assert part in str(error.value), str(error.value)


def test_what_is_no_network_of_the_class_is_refused() -> None:
    first, last = Polynomial(3, 4), Polynomial(4, 2)
    relu, monomial = nn.ReLU(), RectifiedMonomial()
    for modules in ([first, relu, last], [first, last], [first, monomial], [monomial], []):
        _refused(
            lambda modules=modules: regulariser(nn.Sequential(*modules)), "expected", "balance"
        )
    _refused(lambda: regulariser(first), "['Polynomial']", "in an nn.Sequential")  # pyright: ignore[reportArgumentType]
    square = Polynomial(4, 4)
    _refused(
        lambda: regulariser(nn.Sequential(square, monomial, square)), "one layer stands in two"
    )
    _refused(lambda: regulariser(nn.Sequential(first, monomial, first)), "one layer stands in two")
    _refused(
        lambda: regulariser(nn.Sequential(first, monomial, Polynomial(5, 2))),
        "layer 0 has 4 outputs and layer 1 5 inputs", "waring.network",
    )  # fmt: skip


def test_other_bad_input_is_refused() -> None:
    model = network([3, 4, 4, 2], generator=torch.Generator().manual_seed(0))
    _refused(lambda: regulariser(model, "l3"), "'l3'", "'l2'", "'l1'")
    f = regulariser(model)
    _refused(lambda: f([torch.ones(4)]), "[(4,)]", "[4, 4]")
    _refused(lambda: f([torch.ones(4), torch.ones(3)]), "(3,)", "[4, 4]")
    _refused(lambda: f.gradient([torch.ones(4, 1), torch.ones(4)]), "(4, 1)")
    _refused(lambda: f([torch.ones(4), torch.tensor([1.0, 0.0, 1.0, 1.0])]), "interface 1", "0")
    _refused(lambda: f([torch.full((4,), torch.nan), torch.ones(4)]), "interface 0", "nan")
    for name, value in itertools.product(("0.weight", "2.bias"), (torch.nan, torch.inf)):
        own = network([3, 4, 4, 2], generator=torch.Generator().manual_seed(0))
        own.state_dict()[name].flatten()[3] = value
        _refused(lambda own=own: regulariser(own), f"layer {int(name[0]) // 2}", "not finite")


def test_it_prints_its_sizes_and_no_weights() -> None:
    printed = repr(regulariser(of_size("8-11-12-4"), "l1"))
    assert printed == "Regulariser(exponent=1.0, widths=(11, 12), powers=(0.7, 1.5))"

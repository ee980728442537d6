"""Differences of tensors in files, as a whole and unit by unit."""

import math

import pytest
import torch

from paramsym.algebra import GeneralLinear, Monomial, Permutation, PositiveScaling, Scaling
from paramsym.checkpoints.streaming.gaps import Gap, seen_through, typical_size, units_of
from paramsym.structure.axes import Fixed, Product, Sum, carried, parse_axis
from paramsym.structure.space import Space
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.windowed import Window


def symmetry(*axes, **groups) -> ParameterSymmetry:
    spaces = {name: Space(name, group) for name, group in groups.items()}
    return ParameterSymmetry(spaces, {"w": axes})


def gap(x: torch.Tensor, y: torch.Tensor, units=None, panels: int = 1) -> Gap:
    found, low = Gap(units or {}, x.shape), 0
    for one, other in zip(x.chunk(panels), y.chunk(panels), strict=True):
        found.add(one, other, low)
        low += len(one)
    return found


def test_a_unit_at_a_small_scale_is_held_against_itself() -> None:
    x = torch.randn(6, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[2] *= 1e-6
    y = x.clone()
    y[2] = y[2].flip(0)
    units = units_of(symmetry(carried("h"), Fixed(50), h=Monomial(6)), "w")
    for panels in (1, 2, 6):
        assert gap(x, y, units, panels).relative(0.0) > 1
    assert gap(x, y).relative(0.0) < 1e-5  # the control: the tensor as a whole
    assert gap(x, x.clone(), units).relative(0.0) == 0.0


@pytest.mark.parametrize("group", [Permutation(6), Scaling(6), PositiveScaling(6)])
def test_units_that_only_trade_places_have_one_size(group) -> None:
    units = units_of(symmetry(carried("h"), Fixed(3), h=group), "w")
    assert bool(units) == (not isinstance(group, Permutation))


def test_a_head_whose_basis_may_change_is_one_unit_wherever_it_stands() -> None:
    heads = Product((carried("head"), carried("v")))
    axis = Sum((heads, carried("h"), Fixed(2)))
    groups = {"head": Permutation(2), "v": GeneralLinear(3), "h": Monomial(4)}
    units = units_of(symmetry(axis, Fixed(5), **groups), "w")
    assert units[0,].tolist() == [0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 6, 6]
    assert set(units) == {(0,)}


@pytest.mark.parametrize(("types", "tail"), [
    (("{0: h | k}",), (5,)), (("({1: h | (h s)} 2)",), (5,)),
])  # fmt: skip
def test_a_unit_of_one_piece_is_held_against_itself(types, tail) -> None:
    """A unit at a small scale in one slice, beside the same place of another slice."""
    spaces = {"h": Monomial(4), "k": Monomial(4)}
    axes = [*map(parse_axis, types), *map(Fixed, tail)]
    axes = [Fixed(2), *axes] if types[0].startswith("{") else axes
    made = ParameterSymmetry(
        {n: Space(n, g) for n, g in spaces.items()} | {"s": Space("s", Scaling(1), ("h",))},
        {"w": tuple(axes)},
    )
    x = torch.randn(
        made.shape("w"), dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    small = (1, 2) if len(axes) == 3 else (5,)  # the third unit of the second piece
    x[small] *= 1e-9
    y = x.clone()
    y[small][0] *= -3
    units = units_of(made, "w")
    for panels in (1, 2):
        assert gap(x, y, units, panels).relative(0.0) > 1
    assert gap(x, y).relative(0.0) < 1e-7  # the control
    window = Window(tuple((0, n) for n in x.shape), tuple(range(x.ndim)))
    assert gap(x, y, seen_through(window, units)).relative(0.0) > 1


def test_sizes_of_units_are_those_of_a_loop() -> None:
    generator = torch.Generator().manual_seed(1)
    x, noise = torch.randn(2, 12, 7, 3, generator=generator, dtype=torch.float64)
    y = x + 1e-3 * noise
    places = torch.tensor([0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 6, 6])
    worst = float((y - x).abs().max() / x.square().mean().sqrt())
    for unit in range(7):
        own, moved = x[places == unit], y[places == unit]
        worst = max(worst, float((moved - own).abs().max() / own.square().mean().sqrt()))
    assert math.isclose(gap(x, y, {(0,): places}, 3).relative(0.0), worst)


def test_what_is_zero_counts_as_large_as_a_floor() -> None:
    zero, rounded = torch.zeros(4), torch.full((4,), 1e-9)
    other = gap(torch.ones(400), torch.ones(400))
    found = gap(zero, rounded)
    assert found.relative(0.0) == math.inf
    assert found.relative(1e-3 * typical_size([found, other])) < 2e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("panels", [1, 4])
def test_an_infinity_in_both_hides_no_difference(dtype: torch.dtype, panels: int) -> None:
    x = torch.randn(4, 5, dtype=dtype, generator=torch.Generator().manual_seed(0))
    x[1, 2] = -math.inf
    same, units = x.clone(), {(0,): torch.arange(4)}
    assert gap(x, same, units, panels).relative(0.0) == 0.0
    for row in (1, 3):
        other = x.clone()
        other[row, 0] *= 2
        found = gap(x, other, units, panels)
        assert found.relative(0.0) > 0.1 and found.distance > 0.01 and not found.finite
    for wrong in (math.inf, math.nan, 0.0):
        other = x.clone()
        other[1, 2] = wrong
        assert gap(x, other, units, panels).relative(0.0) == math.inf
    nan = x.clone()
    nan[0, 0] = math.nan
    assert gap(nan, nan.clone(), units, panels).relative(0.0) == math.inf


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 1e30), (torch.float64, 1e200)])
def test_numbers_whose_squares_are_beyond_the_range_are_compared(dtype, scale: float) -> None:
    x = scale * torch.randn(4, 5, dtype=dtype, generator=torch.Generator().manual_seed(0))
    other = x.clone()
    other[2, 0] *= 2
    large, small = gap(x, other, {(0,): torch.arange(4)}), gap(x[:, :1] / scale, x[:, :1] / scale)
    assert gap(x, x.clone()).relative(0.0) == 0.0 and large.relative(0.0) > 0.1
    assert 0 < typical_size([large, small]) < math.inf  # or it would excuse any other tensor

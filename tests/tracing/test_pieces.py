"""Scales of single units, and of units that are read in another order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from paramsym import assert_invariant, audit, find_symmetry
from paramsym.structure.symmetry import ParameterSymmetry


def scales(symmetry: ParameterSymmetry) -> int:
    """The dimension of all spaces."""
    return sum(symmetry.dimension(name) for name in symmetry.spaces)


class Function(nn.Module):
    def __init__(self, function: Callable):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Joined(nn.Module):
    """Units of three layers side by side, through a function, into one reader."""

    def __init__(self, widths: tuple[int, ...], order: list[int] | None, function: Callable):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.writers = nn.ModuleList(nn.Linear(3, n) for n in widths)
        self.reader = nn.Linear(sum(widths) if order is None else len(order), 2)
        self.order, self.function = order, function
        for p in self.parameters():
            nn.init.normal_(p, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat([writer(x) for writer in self.writers], -1)
        y = y if self.order is None else y[..., self.order]
        return self.reader(self.function(y))


@pytest.mark.parametrize(
    ("widths", "order"),
    [
        ((2, 1), None),
        ((1, 1, 1), None),
        ((1, 3, 1), None),
        ((4,), [2, 3, 0, 1]),
        ((4,), [1, 3, 0, 2]),
        ((2, 2, 1), [4, 0, 1, 3, 2]),
    ],
    ids=str,
)
def test_every_unit_has_its_own_scale(widths: tuple[int, ...], order: list[int] | None) -> None:
    model = Joined(widths, order, torch.relu).double()
    x = (torch.randn(5, 3, generator=torch.Generator().manual_seed(2)).double(),)
    symmetry = find_symmetry(model, x)
    assert scales(symmetry) == sum(widths)
    assert_invariant(model, symmetry, x)
    found = audit(model, x, symmetry=symmetry)
    assert (found.explained, found.unexplained) == (sum(widths), 0), str(found)


def test_a_function_without_a_degree_leaves_no_scale() -> None:
    model = Joined((2, 1), None, torch.sigmoid).double()
    x = (torch.randn(5, 3).double(),)
    assert scales(find_symmetry(model, x)) == 0
    assert audit(model, x).unexplained == 0


def test_a_unit_that_is_read_twice_keeps_one_scale() -> None:
    """Columns of the reader go along together, and more they cannot say."""
    model = Joined((2, 1), [0, 1, 2, 2], torch.relu).double()
    x = (torch.randn(5, 3).double(),)
    symmetry = find_symmetry(model, x)
    assert_invariant(model, symmetry, x)
    assert scales(symmetry) <= 3


class Windowed(nn.Module):
    """Units whose sizes are cubes of several entries, read from a window that starts anywhere."""

    def __init__(self, before: int, units: int, copies: int, step: int = 1):
        super().__init__()
        self.writer = nn.Linear(3, before + units * copies)
        self.alone = nn.Linear(before, 2)
        self.reader = nn.Linear(units, 2)
        self.sizes, self.shape, self.step = (before, units * copies), (units, copies), step

    def forward(self, x: Tensor) -> Tensor:
        alone, window = self.writer(x).split(self.sizes, -1)
        cubes = window.unflatten(-1, self.shape)[..., :: self.step] ** 3
        return self.alone(torch.relu(alone)) + self.reader(torch.relu(cubes.sum(-1)))


@pytest.mark.parametrize(
    ("before", "units", "copies"), [(3, 3, 2), (4, 3, 2), (1, 2, 2), (5, 3, 4), (1, 4, 3)]
)
def test_a_window_of_whole_units_may_start_anywhere(before: int, units: int, copies: int) -> None:
    """Not only at a multiple of a unit's entries; the units of all pieces keep their scales."""
    model = Windowed(before, units, copies).double()
    x = (torch.randn(5, 3, generator=torch.Generator().manual_seed(2)).double(),)
    symmetry = find_symmetry(model, x)
    assert scales(symmetry) == before + units
    assert_invariant(model, symmetry, x)
    assert audit(model, x, symmetry=symmetry).unexplained == 0


def test_a_window_with_holes_is_read_soundly() -> None:
    model = Windowed(3, 3, 4, step=2).double()
    x = (torch.randn(5, 3, generator=torch.Generator().manual_seed(2)).double(),)
    assert_invariant(model, find_symmetry(model, x), x)


@pytest.mark.parametrize(
    ("function", "group"), [(torch.tanh, "Signs"), (torch.relu, "PositiveScaling")]
)
def test_a_single_unit_turns_its_sign_where_its_function_is_odd(
    function: Callable, group: str
) -> None:
    model = nn.Sequential(nn.Linear(3, 1), Function(function), nn.Linear(1, 2)).double()
    x = (torch.randn(5, 3).double(),)
    symmetry = find_symmetry(model, x)
    assert [type(space.group).__name__ for space in symmetry.spaces.values()] == [group]
    assert_invariant(model, symmetry, x)


def test_the_sign_of_a_whole_stream_is_no_space_of_its_own() -> None:
    """The change of basis of the stream has it, up to a direction that nobody reads."""
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)).double()
    symmetry = find_symmetry(model, (torch.randn(5, 3).double(),))
    assert all(space.size > 1 for space in symmetry.spaces.values())

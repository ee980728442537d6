"""Grids against the definition: nearest points, one step for each group."""

from __future__ import annotations

import math

import pytest
import torch

from paramsym.quantize.grids import Grid

GRIDS = [
    Grid(bits, groups, symmetric)
    for bits in (2, 4, 8)
    for groups in ("tensor", "channel", 3)
    for symmetric in (True, False)
]


def weights(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def by_hand(group: list[float], grid: Grid) -> list[float]:
    """Each number next to the point of its grid that is nearest, by trying all of them."""
    if grid.symmetric:
        most = 2 ** (grid.bits - 1) - 1
        step, codes = max(map(abs, group)) / most, range(-most, most + 1)
    else:
        high, low = max(0.0, *group), min(0.0, *group)
        step = (high - low) / (2**grid.bits - 1)
        zero = round(-low / step)
        codes = range(-zero, 2**grid.bits - zero)
    return [min((k * step for k in codes), key=lambda point, w=w: abs(point - w)) for w in group]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_weights_go_to_the_nearest_point_of_the_grid_of_their_group(grid: Grid) -> None:
    tensor = weights(4, 2, 4)
    index = grid.group_of((4, 2, 4))
    expected = torch.empty_like(tensor)
    for group in range(int(index.max()) + 1):
        own = index == group
        expected[own] = torch.tensor(by_hand(tensor[own].tolist(), grid), dtype=torch.float64)
    torch.testing.assert_close(grid.rounded(tensor), expected, rtol=1e-12, atol=1e-12)


def test_groups_part_a_tensor_as_they_say() -> None:
    assert int(Grid(4).group_of((3, 5)).max()) == 0
    assert Grid(4, "channel").group_of((3, 2, 2))[:, 1, 1].tolist() == [0, 1, 2]
    assert Grid(4, 2).group_of((2, 5)).tolist() == [[0, 0, 1, 1, 2], [3, 3, 4, 4, 5]]
    ranges = Grid(4, "channel", symmetric=False).ranges(torch.tensor([[1.0, -2.0], [3.0, 4.0]]))
    assert ranges.tolist() == [3.0, 4.0]


def test_finer_grids_lose_less_and_what_is_on_a_grid_stays() -> None:
    tensor = weights(16, 12)
    errors = [
        float((Grid(b, groups).rounded(tensor) - tensor).square().sum())
        for b, groups in [(3, "tensor"), (4, "tensor"), (4, "channel"), (4, 3), (8, 3)]
    ]
    assert errors == sorted(errors, reverse=True) and errors[0] > 100 * errors[-1] > 0
    once = Grid(4).rounded(tensor)
    torch.testing.assert_close(Grid(4).rounded(once), once)
    assert torch.equal(Grid(4).rounded(torch.zeros(2, 2)), torch.zeros(2, 2))
    assert Grid(4).rounded(tensor.float()).dtype == torch.float32


def test_the_error_is_about_a_twelfth_of_the_squared_step() -> None:
    tensor = weights(300, 300)
    for grid in (Grid(6), Grid(6, symmetric=False), Grid(6, 30)):
        step = (grid.ranges(tensor) / grid.steps)[grid.group_of((300, 300))]
        measured = float(((grid.rounded(tensor) - tensor) / step).square().mean())
        assert measured == pytest.approx(1 / 12, rel=0.05)


def test_bad_grids_and_numbers_are_refused() -> None:
    for bits in (1, 17, 4.0, True):
        with pytest.raises(ValueError, match=r"Grid\(bits=.*from 2 to 16"):
            Grid(bits)  # pyright: ignore[reportArgumentType]
    for groups in ("rows", 0, True):
        with pytest.raises(ValueError, match=r"Grid\(groups=.*'tensor', 'channel'"):
            Grid(4, groups)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="not real and finite"):
        Grid(4).rounded(torch.tensor([[1.0, math.nan]]))

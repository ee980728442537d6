"""Independent parts of the expected error."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from paramsym import ParameterSymmetry, find_symmetry
from paramsym.geometry.costs import cost_along_scales, scales_of
from paramsym.geometry.result import Status
from paramsym.quantize import components as independent
from paramsym.quantize.components import components
from paramsym.quantize.errors import minimize_quantization_error
from paramsym.quantize.expected_error import ExpectedError
from paramsym.quantize.grids import Grid
from paramsym.quantize.sensitivities import sensitivities
from tests.quantize.test_errors import State, expected, measured

pytestmark = pytest.mark.filterwarnings("ignore::Warning")


class Branches(nn.Module):
    """Two branches on a stream without scales: one has weights of its own, or rows of one tensor
    that both share."""

    def __init__(self, fused: bool = False) -> None:
        super().__init__()
        self.fused = fused
        self.up = nn.ModuleList([nn.Linear(4, 9)] if fused else [nn.Linear(4, 5), nn.Linear(4, 4)])
        self.down = nn.ModuleList([nn.Linear(5, 4), nn.Linear(4, 4)])
        self.out = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.cat([up(x) for up in self.up], -1).relu().split([5, 4], -1)
        return self.out(x + sum(down(h) for down, h in zip(self.down, made, strict=True)))


def problem(model: nn.Module) -> tuple[nn.Module, torch.Tensor, ParameterSymmetry, State, State]:
    torch.manual_seed(0)
    model = model.double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    shape = (6, 4) if isinstance(model, Branches) else (2, 3, 4)
    x = torch.randn(shape, dtype=torch.float64)
    symmetry = find_symmetry(model, (x,), check=False)
    params = {n: p.detach().clone() for n, p in model.state_dict().items()}
    return model, x, symmetry, params, sensitivities(model, [(x,)], projections=None)


def error_of(
    symmetry: ParameterSymmetry, params: State, found: State, grid: Grid, names: list[str]
) -> ExpectedError:
    spaces = [n for n, space in symmetry.spaces.items() if scales_of(space)]
    cost = cost_along_scales(symmetry, params, spaces, 2.0)
    return ExpectedError(symmetry, params, found, names, grid, cost)


# -- components --------------------------------------------------------------------------------

CASES = [  # the components that scales move, where the two branches have one tensor and where not
    (False, Grid(4), 2),
    (False, Grid(3, 2), 2),
    (False, Grid(4, symmetric=False), 2),
    (True, Grid(4), 1),  # all its rows share a step
    (True, Grid(4, "channel"), 2),
]


@pytest.mark.parametrize(("fused", "grid", "count"), CASES, ids=str)
def test_the_error_is_the_sum_over_its_components(fused: bool, grid: Grid, count: int) -> None:
    _, _, symmetry, params, found = problem(Branches(fused))
    names = [n for n in found if params[n].ndim >= 2]
    error = error_of(symmetry, params, found, grid, names)
    parts = components(error)
    assert [bool(part.scales.size) for part in parts] == [True] * count + [False]  # `out` is last
    assert sum(part.groups for part in parts) == error.groups
    y = torch.randn(error.scales.size, dtype=torch.float64)
    own = [part.scales.joined(error.scales.split(y)) for part in parts]
    total = sum(math.exp(part.log(v)) for part, v in zip(parts, own, strict=True))
    assert total == pytest.approx(math.exp(error.log(y)), rel=1e-12)
    norms = sum(part.scales.at(v).value for part, v in zip(parts, own, strict=True))
    whole = error.scales.at(y).value - error.scales.constant
    assert norms == pytest.approx(whole, rel=1e-12)


def test_scales_that_only_the_norm_ties_stay_together() -> None:
    """The layer between two rounded ones is not rounded, but its norm joins their scales."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    x = torch.randn(6, 3).double()
    symmetry = find_symmetry(model.double(), (x,), check=False)
    params = {n: p.detach() for n, p in model.state_dict().items()}
    found = sensitivities(model, [(x,)], projections=None)
    error = error_of(symmetry, params, found, Grid(4), ["0.weight", "4.weight"])
    assert len(components(error)) == 1
    error.scales = type(error.scales)(error.scales.shapes, [])
    assert len(components(error)) == 2


@pytest.mark.parametrize(("fused", "grid", "count"), CASES, ids=str)
def test_one_by_one_and_as_a_whole_the_value_is_one(
    fused: bool, grid: Grid, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, symmetry, params, found = problem(Branches(fused))
    lines: list[str] = []
    apart = minimize_quantization_error(symmetry, params, found, grid, progress=lines.append)
    said = {line.split(",")[0] for line in lines}
    assert said == {f"part {k + 1} of {count + 1}" for k in range(count)}
    with monkeypatch.context() as patch:
        patch.setattr(independent, "components", lambda error: [error])
        whole = minimize_quantization_error(symmetry, params, found, grid)
    assert apart.before == pytest.approx(whole.before, rel=1e-12)
    for one, other in ((apart, whole), (whole, apart)):
        assert one.status is Status.OPTIMAL and 0 <= one.gap <= 1e-3 * one.value
        assert one.value - one.gap <= other.value * (1 + 1e-9)
    assert apart.value < 0.99 * apart.before  # there is something to find
    assert apart.moment.keys() == whole.moment.keys()
    assert max(apart.moment.values()) < 0.1
    there = measured(model, x, apart.params)
    assert apart.value == pytest.approx(expected(apart.params, there, grid), rel=1e-8)


def test_an_error_that_no_scale_moves_leaves_its_share_of_the_gap() -> None:
    """A large constant error widens the gap that the rest may have, and never beyond the whole."""
    _, _, symmetry, params, found = problem(Branches())
    heavy = {**found, "out.weight": found["out.weight"] * 300}
    exact = minimize_quantization_error(symmetry, params, found, Grid(4))
    quick = minimize_quantization_error(symmetry, params, heavy, Grid(4))
    assert quick.status is Status.OPTIMAL and quick.gap <= 1e-3 * quick.value
    assert quick.gap > exact.gap and quick.rounds < exact.rounds

"""Independent parts of the expected error, and the scales inside changes of basis."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from paramsym import ParameterSymmetry, act, find_symmetry
from paramsym.algebra import Element, GeneralLinear
from paramsym.geometry.costs import cost_along_scales, scales_of
from paramsym.geometry.result import Status
from paramsym.quantize import components as independent
from paramsym.quantize.candidates import candidates
from paramsym.quantize.components import components
from paramsym.quantize.diagonals import with_diagonals
from paramsym.quantize.errors import minimize_quantization_error
from paramsym.quantize.expected_error import ExpectedError
from paramsym.quantize.grids import Grid
from paramsym.quantize.sensitivities import sensitivities
from tests.quantize.test_errors import State, expected, measured, scaled

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


class Attention(nn.Module):
    """Two heads of width three on a stream without scales, then a layer of units."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(4, 6) for _ in range(3))
        self.o, self.up, self.down = nn.Linear(6, 4), nn.Linear(4, 5), nn.Linear(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (f(x).unflatten(-1, (2, 3)).transpose(1, 2) for f in (self.q, self.k, self.v))
        read = (q @ k.mT / math.sqrt(3)).softmax(-1) @ v
        x = x + self.o(read.transpose(1, 2).flatten(2))
        return x + self.down(self.up(x).relu())


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


# -- diagonals of changes of basis -------------------------------------------------------------


def bases(symmetry: ParameterSymmetry) -> list[str]:
    return [n for n, s in symmetry.spaces.items() if isinstance(s.group, GeneralLinear)]


@pytest.mark.parametrize("grid", [Grid(4), Grid(4, "channel"), Grid(3, 2)], ids=str)
def test_the_diagonals_of_bases_move(grid: Grid) -> None:
    model, x, symmetry, params, found = problem(Attention())
    result = minimize_quantization_error(symmetry, params, found, grid)
    names = bases(symmetry)
    assert len(names) == 2 and {*names} < result.moment.keys() and not result.held
    for name in names:
        g = result.element[name]
        assert isinstance(g, Element) and g.matrix is not None
        diagonal = g.matrix.diagonal(0, -2, -1)
        assert bool((diagonal > 0).all()) and float((diagonal - 1).abs().max()) > 0.01
        assert torch.equal(g.matrix, torch.diag_embed(diagonal))
    moved = torch.func.functional_call(model, result.params, (x,)) - model(x)
    assert float(moved.abs().max() / model(x).abs().max()) < 1e-12
    again = act(symmetry, result.element, params)
    assert all(torch.equal(again[n], p) for n, p in result.params.items())
    there = measured(model, x, result.params)
    assert result.value == pytest.approx(expected(result.params, there, grid), rel=1e-8)
    assert result.status is Status.OPTIMAL
    held = minimize_quantization_error(symmetry, params, found, grid, hold=names)
    assert result.value < 0.99 * held.value
    assert {*names} <= held.held.keys()


def test_where_no_group_mixes_rows_queries_and_keys_go_to_the_least_norm() -> None:
    """Per channel their scales move each range with its row, so that E does not depend on them."""
    _, _, symmetry, params, found = problem(Attention())

    def imbalance(state: State) -> float:
        q, k = (
            torch.cat([state[f"{n}.weight"], state[f"{n}.bias"][:, None]], 1).square().sum(1)
            for n in "qk"
        )
        return float(((q - k).abs() / (q + k)).max())

    (name,) = (n for n in bases(symmetry) if n.endswith("qk"))
    result = minimize_quantization_error(symmetry, params, found, Grid(4, "channel"))
    held = minimize_quantization_error(symmetry, params, found, Grid(4, "channel"), hold=name)
    assert result.value == pytest.approx(held.value, rel=1e-9)
    assert imbalance(result.params) < 1e-6 < 0.1 < imbalance(held.params)


def test_values_are_equal_along_diagonals_and_not_along_other_bases() -> None:
    model, x, symmetry, params, found = problem(Attention())
    first = minimize_quantization_error(symmetry, params, found, Grid(4))
    start = scaled(with_diagonals(symmetry), params, 1, 1.0)
    result = minimize_quantization_error(symmetry, start, measured(model, x, start), Grid(4))
    assert result.before > 1.1 * first.value
    assert result.value == pytest.approx(first.value, rel=1e-3)
    turns = {n: torch.linalg.qr(torch.randn(2, 3, 3, dtype=torch.float64))[0]
             for n in bases(symmetry)}  # fmt: skip
    turned = act(symmetry, symmetry.element(turns), params)
    other = minimize_quantization_error(symmetry, turned, measured(model, x, turned), Grid(4))
    assert other.value != pytest.approx(first.value, rel=1e-2)


def test_no_point_along_the_diagonals_is_below_the_bound() -> None:
    model, x, symmetry, params, found = problem(Attention())
    result = minimize_quantization_error(symmetry, params, found, Grid(4), tolerance=1e-4)
    for seed in range(10):
        beside = scaled(with_diagonals(symmetry), result.params, seed, 0.02 * (1 + seed % 4))
        there = expected(beside, measured(model, x, beside), Grid(4))
        assert there >= result.value - result.gap


def test_a_dead_coordinate_of_a_basis_stays_and_is_named() -> None:
    model, x, symmetry, params, _ = problem(Attention())
    params["v.weight"][2], params["v.bias"][2] = 0.0, 0.0
    found = measured(model, x, params)
    result = minimize_quantization_error(symmetry, params, found, Grid(4))
    (why,) = result.held.values()
    assert "1 of 6 scales have weights on one side only" in why
    assert torch.equal(result.params["o.weight"][:, 2], params["o.weight"][:, 2])
    assert not torch.equal(result.params["o.weight"][:, 1], params["o.weight"][:, 1])


def test_the_other_candidates_move_diagonals_too() -> None:
    _, _, symmetry, params, found = problem(Attention())
    names = [n for n in found if params[n].ndim >= 2]
    every = candidates(symmetry, params, found, Grid(4), names)
    held = candidates(symmetry, params, found, Grid(4), names, hold=bases(symmetry))
    for name in ("equalised", "range", "error"):
        moved, kept = (act(symmetry, found[name](), params) for found in (every, held))
        assert not torch.equal(moved["v.weight"], params["v.weight"]), name
        assert torch.equal(kept["v.weight"], params["v.weight"]), name


def test_the_symmetry_is_itself_where_nothing_is_mixed() -> None:
    _, _, symmetry, *_ = problem(Branches())
    assert with_diagonals(symmetry) is symmetry
